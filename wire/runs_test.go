package wire

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/server"
)

// A server from before the frame is not sent it, and a call may name as many keys in runs as in a chain.
func TestLookupsOfRunsAreBounded(t *testing.T) {
	t.Parallel()
	r := serve(t, "unix", newMemstore(storetest.Config{}), server.Options{Limits: server.Limits{Keys: 8}})
	o := r.options()
	o.Conns = 1
	c := r.dial(t, o)
	ch := chainOf(t, c, "a", 8)
	runs := &skep.RunsRequest{Scope: ch.Scope, Runs: [][]skep.Key{ch.Keys[:5], ch.Keys[:3]}}
	got, err := c.LookupRuns(t.Context(), runs)
	require.NoError(t, err)
	require.Equal(t, []int{5, 3}, []int{got.Runs[0].Blocks, got.Runs[1].Blocks})

	runs.Runs = append(runs.Runs, ch.Keys[:1])
	_, err = c.LookupRuns(t.Context(), runs)
	require.ErrorIs(t, err, skep.Invalid)
	require.ErrorContains(t, err, "9")

	x, err := c.conn(t.Context(), 0)
	require.NoError(t, err)
	x.hi.Features &^= frames.FeatureRuns // as if the Welcome had said so
	calls := r.Stats().Calls
	_, err = c.LookupRuns(t.Context(), runs)
	require.ErrorIs(t, err, skep.Unsupported)
	require.Equal(t, calls, r.Stats().Calls, "nothing was sent")
}

// A server that answers for more than it was asked for is not believed.
func TestLookupsOfRunsCheckTheAnswer(t *testing.T) {
	t.Parallel()
	r := serve(t, "unix", &boastful{Store: newMemstore(storetest.Config{})}, server.Options{})
	st := r.st.(*boastful)
	c := r.dial(t, r.options())
	ch := chainOf(t, c, "a", 2)
	for name, answer := range map[string]skep.RunsResult{
		"more runs":     {Runs: make([]skep.RunFound, 3)},
		"fewer runs":    {Runs: make([]skep.RunFound, 1)},
		"more blocks":   {Runs: []skep.RunFound{{Blocks: 2}, {Blocks: 2}}},
		"less than one": {Runs: []skep.RunFound{{Blocks: -1}, {}}},
		"tiers":         {Runs: []skep.RunFound{{Blocks: 1}, {}}, Tiers: make([]skep.Tier, 2)},
	} {
		st.answer.Store(&answer)
		_, err := c.LookupRuns(t.Context(), &skep.RunsRequest{Scope: ch.Scope, Runs: [][]skep.Key{ch.Keys, ch.Keys[:1]}, Tiers: true})
		require.ErrorIs(t, err, skep.Damaged, name)
	}
}

// boastful is a Store that answers as it is told.
type boastful struct {
	skep.Store
	answer atomic.Pointer[skep.RunsResult]
}

func (b *boastful) LookupRuns(ctx context.Context, r *skep.RunsRequest) (skep.RunsResult, error) {
	return *b.answer.Load(), nil
}
