package unjudged_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/unjudged"
)

// The first of two drives stands still for a minute, which fences it, or kills it, as long as drives are judged.
//
// Alone: the rules are the process's.
func TestDrives(t *testing.T) {
	was := health.DefaultRules
	defer func() { health.DefaultRules = was }()
	after := func(still device.Stats) health.State {
		r := health.DefaultRules
		judges := []*health.Judge{health.NewJudge(r, health.Reading{}), health.NewJudge(r, health.Reading{})}
		var well device.Stats
		for at := r.Tick; at < time.Minute; at += r.Tick {
			well.Reads.Ops++
			health.Look(at, judges, []health.Reading{{Stats: still}, {Stats: well}})
		}
		return judges[0].State()
	}
	stills := []device.Stats{{ReadsStalled: time.Minute}, {WritesStalled: time.Minute}}
	for _, still := range stills {
		require.NotEqual(t, health.Healthy, after(still))
	}
	unjudged.Drives()
	for _, still := range stills {
		require.Equal(t, health.Healthy, after(still))
	}
	require.NotEqual(t, health.Healthy, after(device.Stats{LastError: device.ErrGone,
		Reads: device.OpStats{Ops: 9, Errors: 9}}))
}
