package restore

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// Whose turn it is is said by priority, deadline, chunks issued and place in the request, whatever was issued,
// answered and promoted before: turns says what a look at all chains would.
func TestTurnsAreWhatALookAtAllChainsSays(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, seed))
	draw := func(c *chain) {
		c.priority, c.deadline = rng.IntN(3), time.Time{}
		if n := rng.IntN(3); n > 0 {
			c.deadline = time.Unix(int64(n), 0)
		}
	}
	for range 50 {
		ses := &session{}
		for i := range 1 + rng.IntN(40) {
			n := rng.IntN(4)
			c := &chain{index: i, left: n, items: make([]uint8, n)}
			c.ChainPlan = &layout.ChainPlan{Chain: skep.Chain{Keys: make([]skep.Key, n)}, Blocks: skep.Range{To: n}}
			draw(c)
			ses.chains = append(ses.chains, c)
		}
		for waits := true; waits; {
			var best *chain
			for _, c := range ses.chains {
				if c.left > 0 && c.next < len(c.items) && (best == nil || c.before(best)) {
					best = c
				}
			}
			require.Same(t, best, ses.bestLocked())
			if waits = best != nil; !waits {
				break
			}
			switch c := ses.chains[rng.IntN(len(ses.chains))]; rng.IntN(8) {
			case 0: // as Reprioritise does
				draw(c)
				ses.ordered = false
			case 1: // stopped
				c.left = 0
			default:
				ses.passedLocked()
			}
		}
	}
}
