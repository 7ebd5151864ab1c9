package scalebench

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

func options() Options {
	return Options{Nodes: 64, Zones: 4, Racks: 16, Replicas: 2, Blocks: 1e8, BlockBytes: 1 << 20, Rate: 64 << 20,
		Silence: time.Minute, Chain: 2000, Seed: 1}
}

// Copies of what is lost are sent and no others, nothing is lost with a rack or a zone, and of as many nodes as may be
// down by themselves the rest stays as it is.
func TestAClusterLosesNodes(t *testing.T) {
	t.Parallel()
	r, err := Run(t.Context(), options())
	require.NoError(t, err)
	require.Less(t, r.Balance, 1.1)
	require.Greater(t, r.Asked, 50.0)
	of := map[string]Row{}
	for _, x := range r.Changes {
		of[x.Change] = x
	}
	one := of["one node is lost"]
	require.Equal(t, 1, one.Down)
	require.InDelta(t, 1, one.Least, 0.001, "what only that node had is sent once")
	require.InDelta(t, 1.0/64, one.Moved, 0.003)
	require.Zero(t, one.Lost)
	rack := of["a rack is lost"]
	require.Equal(t, 4, rack.Nodes)
	require.Equal(t, 4, rack.Down)
	require.Zero(t, rack.Lost, "replicas are kept apart")
	zone := of["a zone is lost"]
	require.Equal(t, 16, zone.Nodes)
	require.Equal(t, 15, zone.Down, "never the last one of a zone")
	require.Zero(t, zone.Lost)
	join := of["a node joins"]
	require.InDelta(t, 1, join.Least, 0.1)
	require.Greater(t, join.FullSecs, one.FullSecs, "one receives what many send")
}

// Without replicas what a node has is lost with it, and options that cannot be are refused by name.
func TestAClusterWithoutReplicas(t *testing.T) {
	t.Parallel()
	o := options()
	o.Replicas = 1
	r, err := Run(t.Context(), o)
	require.NoError(t, err)
	require.InDelta(t, 1.0/64, r.Changes[0].Lost, 0.003)
	require.Zero(t, r.Changes[0].Moved)
	for name, bad := range map[string]func(o *Options){
		"--nodes":      func(o *Options) { o.Nodes = 3 },
		"--zones":      func(o *Options) { o.Zones = 0 },
		"--racks":      func(o *Options) { o.Racks = 3 },
		"--replicas":   func(o *Options) { o.Replicas = 5 },
		"--blocks":     func(o *Options) { o.Blocks = 0 },
		"--block-size": func(o *Options) { o.BlockBytes = 0 },
		"--rate":       func(o *Options) { o.Rate = 0 },
		"--chain":      func(o *Options) { o.Chain = 0 },
		"--down-after": func(o *Options) { o.Silence = time.Second },
	} {
		o := options()
		bad(&o)
		_, err := Run(t.Context(), o)
		require.ErrorIs(t, err, skep.Invalid)
		require.ErrorContains(t, err, name)
	}
}
