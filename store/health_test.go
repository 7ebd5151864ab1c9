package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The judgement of drives, as a story a tick: what it did, and what becomes of it.
func TestHealth(t *testing.T) {
	const ms = time.Millisecond
	well := pulse{reads: 10, readOK: 10, mean: 2 * ms, peers: 2 * ms, company: true}
	sluggish := pulse{reads: 10, readOK: 10, mean: 200 * ms, peers: 2 * ms, company: true}
	loaded := pulse{reads: 10, readOK: 10, mean: 200 * ms, peers: 190 * ms, company: true}
	alone := pulse{reads: 10, readOK: 10, mean: 200 * ms}
	idle := pulse{company: true}
	good := pulse{probe: probeGood, took: 1 * ms, company: true}
	lame := pulse{probe: probeGood, took: 300 * ms, company: true}
	badProbe := pulse{probe: probeBad, company: true}
	type scene struct {
		pulse pulse
		times int
		then  condition
	}
	for _, tt := range []struct {
		name   string
		scenes []scene
	}{
		{"well for ever", []scene{{well, 1000, healthy}}},
		{"all under load are slow, so none is", []scene{{well, 20, healthy}, {loaded, 100, healthy}}},
		{"one hiccup is forgiven", []scene{{well, 20, healthy}, {sluggish, 2, healthy}, {well, 1, healthy}, {sluggish, 2, healthy}}},
		{"slow, then fenced, then let in", []scene{{well, 20, healthy}, {sluggish, 3, slow}, {sluggish, 31, fenced}, {lame, 20, fenced}, {good, 2, fenced}, {good, 1, healthy}}},
		{"slow and well again without being fenced", []scene{{well, 20, healthy}, {sluggish, 3, slow}, {good, 2, slow}, {good, 1, healthy}}},
		{"slow with nobody to compare it with: the load, maybe", []scene{{well, 20, healthy}, {alone, 3, slow}, {alone, 1000, slow}, {well, 3, healthy}}},
		{"compared at last", []scene{{well, 20, healthy}, {alone, 1000, slow}, {sluggish, 1, fenced}}},
		{"few reads prove nothing", []scene{{pulse{reads: 2, readOK: 2, mean: time.Second, peers: ms, company: true}, 100, healthy}}},
		{"hung while others go on", []scene{{well, 5, healthy}, {pulse{readsStalled: 900 * ms, company: true}, 1, healthy}, {pulse{readsStalled: time.Second, company: true}, 1, dead},
			{pulse{readsStalled: 9 * time.Second, company: true}, 50, dead}, {good, 3, healthy}}},
		{"the whole machine stands still", []scene{{pulse{readsStalled: 5 * time.Second}, 1, healthy}, {pulse{readsStalled: 10 * time.Second}, 1, dead}}},
		{"slow flushes are no hang", []scene{{pulse{writesStalled: 5 * time.Second, company: true}, 50, healthy}, {pulse{writesStalled: 10 * time.Second, company: true}, 1, dead}}},
		{"bad sectors among good ones", []scene{{pulse{readOK: 9, readFailed: 1, company: true}, 100, healthy}}},
		{"reads fail", []scene{{pulse{readFailed: 2, company: true}, 1, healthy}, {pulse{readFailed: 1, company: true}, 1, fenced}, {badProbe, 10, fenced}, {good, 2, fenced}, {badProbe, 1, fenced}, {good, 3, healthy}}},
		{"writes fail while reads go on", []scene{{pulse{readOK: 5, writeFailed: 3, company: true}, 1, fenced}}},
		{"flushes fail while writes go on", []scene{{pulse{writeOK: 5, flushFailed: 1, company: true}, 3, fenced}}},
		{"an error an hour is none too many", []scene{{pulse{writeFailed: 1, company: true}, 1, healthy}, {pulse{writeOK: 1, company: true}, 1, healthy}, {pulse{writeFailed: 1, company: true}, 2, healthy}}},
		{"gone", []scene{{pulse{gone: true, readFailed: 1, company: true}, 1, dead}, {idle, 100, dead}}},
		{"long ago gone, and nothing failed since", []scene{{pulse{gone: true, readOK: 1, company: true}, 10, healthy}}},
		{"read-only", []scene{{pulse{readOnly: true, writeFailed: 1, company: true}, 1, fenced}}},
		{"worse while fenced", []scene{{pulse{readOnly: true, writeFailed: 1, company: true}, 1, fenced}, {pulse{gone: true, readFailed: 1, company: true}, 1, dead}}},
		{"who falls again has to prove more", []scene{{pulse{writeFailed: 3, company: true}, 1, fenced}, {good, 3, healthy}, {pulse{writeFailed: 3, company: true}, 1, fenced}, {good, 5, fenced}, {good, 1, healthy},
			{pulse{writeFailed: 3, company: true}, 1, fenced}, {good, 11, fenced}, {good, 1, healthy}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := health{rules: defaultRules}
			at := time.Duration(0)
			for i, sc := range tt.scenes {
				for range sc.times {
					p := sc.pulse
					at += h.rules.tick
					p.at = at
					h.step(&p)
				}
				require.Equal(t, sc.then, h.state, "after scene %d: %s", i, h.why)
			}
		})
	}
}

// How long a read may take follows the drive's own latency, within bounds.
func TestHedgeAfter(t *testing.T) {
	r := defaultRules
	require.Equal(t, r.hedgeMin, r.hedgeAfter(healthy, 0))
	require.Equal(t, 400*time.Millisecond, r.hedgeAfter(healthy, 50*time.Millisecond))
	require.Equal(t, r.hedgeMax, r.hedgeAfter(healthy, time.Minute))
	require.Equal(t, r.hedgeMin, r.hedgeAfter(slow, time.Minute))
	require.Zero(t, r.hedgeAfter(dead, time.Minute))
}

// A drive that does not answer stands still for as long as the monitor looks on: a pause of the
// machine counts as one step.
func TestStoodStill(t *testing.T) {
	const ms = time.Millisecond
	var stood time.Duration
	for i, tt := range []struct{ says, step, want time.Duration }{
		{0, 100 * ms, 0},
		{60 * ms, 100 * ms, 60 * ms},
		{160 * ms, 100 * ms, 160 * ms},
		{30 * time.Second, 500 * ms, 660 * ms}, // the machine slept
		{31 * time.Second, 500 * ms, 1160 * ms},
		{20 * ms, 100 * ms, 20 * ms}, // it has answered, and owes another
	} {
		stood = stoodStill(stood, tt.says, tt.step)
		require.Equal(t, tt.want, stood, "look %d", i)
	}
}
