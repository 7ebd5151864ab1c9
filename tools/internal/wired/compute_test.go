package wired

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire"
)

// What a client says of computing reaches the engine's scheduler, over the socket and into shared
// memory: a load that would take longer than computing is declined there, one that pays is not, and
// what the client computed is reckoned with.
func TestTheSchedulerBehindHearsOfCosts(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*wire.Options){"socket": nil, "shared memory": shared} {
		t.Run(name, func(t *testing.T) {
			r := open(t, small(), change)
			c := putChain(t, r, 16)
			c.Direction = skep.TailFirst
			mem, err := r.Alloc(t.Context(), int64(len(c.Keys)*blockBytes))
			require.NoError(t, err)
			defer mem.Release()
			c.Dest = skep.Destination{Memory: mem.Bytes(), Stride: blockBytes}
			restore := func(k skep.Compute) skep.Session {
				c.Compute = &k
				s, err := r.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{c}})
				require.NoError(t, err)
				return s
			}
			all := skep.Range{From: 0, To: len(c.Keys) * model.BlockTokens}

			s := restore(skep.Compute{Cost: skep.RecomputeCost{PerToken: time.Nanosecond}, LoadOnly: true})
			each(t, s, func(ch *skep.Chunk) { require.ErrorIs(t, ch.Err, skep.Claimed) })
			require.NoError(t, s.Computed(t.Context(), 0, all, time.Duration(all.Len()), 0))
			require.NoError(t, s.Close(t.Context()))
			st, err := r.st.Stats(t.Context())
			require.NoError(t, err)
			two := st.TwoPointers
			require.Equal(t, []int64{1, 1, 1}, []int64{two.Declined, two.Judged, two.Right})

			s = restore(skep.Compute{Cost: skep.RecomputeCost{PerToken: time.Minute}, LoadOnly: true})
			each(t, s, func(ch *skep.Chunk) { require.NoError(t, ch.Err) })
			require.NoError(t, s.Close(t.Context()))

			s = restore(skep.Compute{Cost: skep.RecomputeCost{PerToken: time.Microsecond}})
			cl, err := s.Claim(t.Context(), 0, all.Subset(), skep.Idle)
			require.NoError(t, err)
			n := cl.Granted.To / model.BlockTokens
			for pos := cl.Next; pos < all.To; {
				if cl, err = s.Claim(t.Context(), 0, skep.Only(pos, all.To), skep.Idle); cl.Granted.Len() > 0 {
					n = cl.Granted.To / model.BlockTokens
				}
				require.NoError(t, err)
				pos = cl.Next
			}
			each(t, s, func(ch *skep.Chunk) {
				if ch.Block < n {
					require.ErrorIs(t, ch.Err, skep.Claimed)
				} else {
					require.NoError(t, ch.Err)
				}
			})
			require.NoError(t, s.Close(t.Context()))
		})
	}
}
