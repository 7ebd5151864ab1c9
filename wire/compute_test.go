package wire

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/server"
)

// A server that does not know the frames of two pointers loads such a chain like any other.
func TestAServerThatKnowsNoCosts(t *testing.T) {
	t.Parallel()
	r := serve(t, "unix", newMemstore(storetest.Config{}), server.Options{})
	o := r.options()
	o.Conns = 1
	c := r.dial(t, o)
	ch := chainOf(t, c, "acme", 8)
	x, err := c.conn(t.Context(), 0)
	require.NoError(t, err)
	x.hi.Features &^= frames.FeatureCompute // as if the Welcome had said so
	ch.Direction, ch.Compute = skep.TailFirst, &skep.Compute{Cost: skep.RecomputeCost{PerToken: time.Nanosecond}, Background: true}
	s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
	require.NoError(t, err)
	cl, err := s.Claim(t.Context(), 0, skep.Only(0, 32), skep.Busy)
	require.NoError(t, err)
	require.NoError(t, s.Computed(t.Context(), 0, skep.Range{From: 0, To: 32}, time.Microsecond, 0))
	for _, x := range collect(t, s) {
		if x.Block*16 < cl.Granted.To {
			require.ErrorIs(t, x.Err, skep.Claimed)
		} else {
			require.NoError(t, x.Err)
		}
		x.Release()
	}
	require.NoError(t, s.Close(t.Context()))
}

// listening is a Store that tells what it was asked to restore.
type listening struct {
	skep.Store
	heard chan skep.RestoreRequest
}

func (l *listening) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	l.heard <- *r
	return l.Store.Restore(ctx, r)
}

// The Store behind hears of every chain's cost what the client said, and of the others nothing.
func TestCostsAsTheStoreBehindHearsThem(t *testing.T) {
	t.Parallel()
	st := &listening{newMemstore(storetest.Config{}), make(chan skep.RestoreRequest, 1)}
	r := serve(t, "unix", st, server.Options{})
	c := r.dial(t, r.options())
	ch := chainOf(t, c, "acme", 2)
	cost := skep.RecomputeCost{Fixed: time.Millisecond, PerToken: 40 * time.Microsecond, PerTokenSquared: 0.5}
	want := []*skep.Compute{
		nil,
		{Cost: cost, Suffix: 7, Weight: 2, Background: true},
		{Cost: cost, LoadOnly: true},
		nil,
		{Cost: cost, Boundary: &skep.Boundary{Chain: 3, BytesPerToken: 8192}},
	}
	req := &skep.RestoreRequest{}
	for _, k := range want {
		x := ch
		x.Direction, x.Compute = skep.TailFirst, k
		req.Chains = append(req.Chains, x)
	}
	s, err := c.Restore(t.Context(), req)
	require.NoError(t, err)
	heard := <-st.heard
	require.Len(t, heard.Chains, len(want))
	for i, k := range want {
		require.Equal(t, k, heard.Chains[i].Compute, "chain %d", i)
	}
	require.NoError(t, s.Close(t.Context()))
}

// Chains of one deadline have one at the Store behind, too: it serves them in turns, and those of the earlier one first.
func TestEqualDeadlinesStayEqual(t *testing.T) {
	t.Parallel()
	st := &listening{newMemstore(storetest.Config{}), make(chan skep.RestoreRequest, 1)}
	r := serve(t, "unix", st, server.Options{})
	c := r.dial(t, r.options())
	ch := chainOf(t, c, "acme", 2)
	soon := time.Now().Add(time.Minute)
	want := []time.Time{soon, soon.Add(time.Minute), {}, soon, soon}
	req := &skep.RestoreRequest{}
	for _, d := range want {
		x := ch
		x.Deadline = d
		req.Chains = append(req.Chains, x)
	}
	s, err := c.Restore(t.Context(), req)
	require.NoError(t, err)
	heard := (<-st.heard).Chains
	require.NoError(t, s.Close(t.Context()))
	for i, d := range want {
		if d.IsZero() {
			require.Zero(t, heard[i].Deadline)
			continue
		}
		require.Equal(t, d.Sub(soon), heard[i].Deadline.Sub(heard[0].Deadline), "chain %d", i)
	}
}

// Costs name chains of their session, each once.
func TestCostsThatAreRefused(t *testing.T) {
	t.Parallel()
	r := serve(t, "unix", newMemstore(storetest.Config{}), server.Options{})
	ch := chainOf(t, r.dial(t, r.options()), "acme", 2)
	cost := skep.Compute{Cost: skep.RecomputeCost{PerToken: 1}}
	for name, x := range map[string]struct {
		costs []frames.ChainCompute
		dir   skep.Direction
		kind  skep.Kind
	}{
		"of no chain":         {[]frames.ChainCompute{{Chain: 1, Compute: cost}}, skep.TailFirst, skep.Invalid},
		"of a chain far away": {[]frames.ChainCompute{{Chain: 1 << 31, Compute: cost}}, skep.TailFirst, skep.Invalid},
		"two of a chain":      {[]frames.ChainCompute{{Compute: cost}, {Compute: cost}}, skep.TailFirst, skep.Invalid},
		"nothing":             {[]frames.ChainCompute{{}}, skep.TailFirst, skep.Invalid},
		"from the head":       {[]frames.ChainCompute{{Compute: cost}}, skep.HeadFirst, skep.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			c := rawDial(t, r.addr)
			c.hello(t, operator)
			c.send(t, frames.Header{Type: frames.TypeCostedRestore, Call: 1},
				&frames.CostedRestoreRequest{Compute: x.costs,
					RestoreRequest: frames.RestoreRequest{Window: 1 << 20,
						Chains: []frames.RestoreChain{{Scope: ch.Scope, Direction: x.dir, Keys: ch.Keys}}}}, "")
			h, body, err := c.next()
			require.NoError(t, err)
			require.Equal(t, frames.TypeError, h.Type)
			var e frames.ErrorBody
			require.NoError(t, frames.Decode(h.Type, body, &e))
			require.Equal(t, x.kind, e.Kind)
		})
	}
}
