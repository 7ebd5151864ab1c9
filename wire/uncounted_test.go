package wire

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/server"
)

// countings is a Store that notes what its lookups count in.
type countings struct {
	*memstore.Store
	mu   sync.Mutex
	seen [][2]bool // in Lookups, in Reuse
}

func (c *countings) note(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = append(c.seen, [2]bool{skep.Counts(ctx), skep.Reuses(ctx)})
}

// last are the last n lookups.
func (c *countings) last(n int) [][2]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.seen[len(c.seen)-n:])
}

func (c *countings) Lookup(ctx context.Context, r *skep.LookupRequest) (skep.LookupResult, error) {
	c.note(ctx)
	return c.Store.Lookup(ctx, r)
}

func (c *countings) LookupRuns(ctx context.Context, r *skep.RunsRequest) (skep.RunsResult, error) {
	c.note(ctx)
	return c.Store.LookupRuns(ctx, r)
}

// A server is told which lookups are no reader's question, and counts every one of a client, and at a server, that is
// from before that was told.
func TestAServerIsToldWhatIsNotCounted(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"unix", "tcp"} {
		for _, old := range []bool{false, true} {
			st := &countings{Store: newMemstore(storetest.Config{}).(*memstore.Store)}
			r := serve(t, where, st, server.Options{})
			o := r.options()
			o.Conns = 1
			c := r.dial(t, o)
			ch := chainOf(t, c, "a", 3)
			if old {
				x, err := c.conn(t.Context(), 0)
				require.NoError(t, err)
				x.hi.Features &^= frames.FeatureUncounted // as if the Welcome had said so
			}
			look := func(ctx context.Context) (counts, uses bool) {
				found, err := c.Lookup(ctx, &skep.LookupRequest{Scope: ch.Scope, Keys: ch.Keys, Lease: skep.NoLease})
				require.NoError(t, err)
				require.Equal(t, 3, found.Blocks)
				_, err = c.LookupRuns(ctx, &skep.RunsRequest{Scope: ch.Scope, Runs: [][]skep.Key{ch.Keys}, Lease: skep.NoLease})
				require.NoError(t, err)
				seen := st.last(2)
				require.Equal(t, seen[0], seen[1])
				return seen[0][0], seen[0][1]
			}
			for _, ask := range []struct {
				ctx          context.Context
				counts, uses bool
			}{
				{t.Context(), true, true},
				{skep.Uncounted(t.Context()), false, false},
				{skep.Continued(t.Context()), false, true},
				{skep.Continued(skep.Uncounted(t.Context())), false, false},
			} {
				counts, uses := look(ask.ctx)
				require.Equal(t, ask.counts || old, counts)
				require.Equal(t, ask.uses || old, uses)
			}
		}
	}
}

// A flag that was not agreed on says nothing.
func TestAFlagThatWasNotAgreedOnSaysNothing(t *testing.T) {
	t.Parallel()
	st := &countings{Store: newMemstore(storetest.Config{}).(*memstore.Store)}
	r := serve(t, "tcp", st, server.Options{})
	ch := chainOf(t, r.dial(t, r.options()), "a", 1)
	c := rawDial(t, r.addr)
	c.hello(t, operator)
	c.send(t, frames.Header{Type: frames.TypeLookup, Call: 1, Flags: frames.FlagUncounted},
		&frames.LookupRequest{LookupRequest: skep.LookupRequest{Scope: ch.Scope, Keys: ch.Keys, Lease: skep.NoLease}}, "")
	h, _, err := c.next()
	require.NoError(t, err)
	require.Equal(t, frames.TypeLookup|frames.Answer, h.Type)
	require.Equal(t, [][2]bool{{true, true}}, st.last(1))
}
