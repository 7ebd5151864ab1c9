package sched_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/sched"
)

// dealt is n blocks in groups of 16, each on one of so many nodes and, with two copies, on the next one.
func dealt(n, nodes, copies int) (list []sched.Span) {
	for from := 0; from < n; from += 16 {
		p := sched.Span{From: from, To: min(from+16, n)}
		for k := range copies {
			p.Nodes = append(p.Nodes, (from/16+k)%nodes)
		}
		list = append(list, p)
	}
	return list
}

// run plays one chain of 1 MiB a block to its end, and returns it and what it took.
func run(w *world, x sched.Spec, perToken time.Duration) (*played, time.Duration) {
	began := time.Now()
	p := w.join(x, mib, perToken)
	p.compute(4)
	return p, p.end.Sub(began)
}

// An engine and three nodes share a chain: it is there about when all of them together can have it there, and no node
// ever has more than two loads.
func TestEngineAndNodesShareAChain(t *testing.T) {
	t.Parallel()
	play(t, []float64{400e6, 400e6, 400e6}, func(w *world) {
		const n = 1200
		p, took := run(w, sched.Spec{Spans: dealt(n, 3, 1)}, 100*time.Microsecond) // 625 blocks a second
		// In a second 625 blocks are computed and 3 × 381 loaded.
		const ideal = time.Second * n / 1769
		require.Less(t, took, ideal*11/10, "ideal is %v", ideal)
		for i, s := range w.nodes {
			require.LessOrEqual(t, s.most, 2)
			require.NotZero(t, p.took[i])
		}
	})
}

// A node at a tenth of the others' speed holds up none of them, and what only it has is computed by an engine that has
// nothing else: with all of it loaded from there, the chain would take four times as long.
func TestAnEngineMeetsASlowNode(t *testing.T) {
	t.Parallel()
	play(t, []float64{1e9, 1e9, 100e6}, func(w *world) {
		const n = 1200
		_, took := run(w, sched.Spec{Spans: dealt(n, 3, 1)}, 100*time.Microsecond)
		alone := 400 * time.Second * mib / 100e6
		require.Less(t, took, alone/3, "all of the slow node's would take %v", alone)
	})
}

// What is queued for a node that turns out to be slow goes to another one that has it: only what it was asked for
// before that showed is waited for. All that was meant for it would take half a minute.
func TestASlowNodesShareMoves(t *testing.T) {
	t.Parallel()
	play(t, []float64{1e9, 1e9, 1e6}, func(w *world) {
		x := sched.Spec{Spans: dealt(600, 3, 2), Compute: &skep.Compute{LoadOnly: true}}
		p, took := run(w, x, time.Second)
		require.NoError(t, p.Declined())
		require.Less(t, took, 15*time.Second)
	})
}

// What nobody has, and what does not come, is computed, wherever it lies.
func TestWhatDoesNotComeIsComputed(t *testing.T) {
	t.Parallel()
	for _, word := range []bool{false, true} {
		play(t, []float64{1e9, 1e9}, func(w *world) {
			spans := dealt(320, 2, 1)
			spans[7].Nodes = nil
			p := w.join(sched.Spec{Spans: spans}, mib, 100*time.Microsecond)
			p.gone[300], p.gone[5] = true, true
			if word {
				p.share()
			}
			p.compute(4)
			require.Equal(t, "computed", p.state[300])
			for b := spans[7].From; b < spans[7].To; b++ {
				require.Equal(t, "computed", p.state[b])
			}
		})
	}
}

// By layers, one that does not come is the engine's with all below it, and what is above is loaded.
func TestALayerThatDoesNotComeIsComputed(t *testing.T) {
	t.Parallel()
	const layers, blocks = 16, 40
	for _, word := range []bool{false, true} {
		play(t, []float64{200e6, 200e6}, func(w *world) {
			x := sched.Spec{Spans: dealt(blocks, 2, 1), ByLayer: true, Layers: skep.Range{To: layers}}
			p := w.join(x, 4*mib, 200*time.Microsecond)
			p.gone[p.Number(17, layers-3)] = true
			if word {
				p.share()
			}
			p.compute(1)
			require.Equal(t, "computed", p.state[p.Number(17, layers-3)])
			require.Equal(t, "loaded", p.state[p.Number(17, layers-1)])
		})
	}
}

// A chain whose load does not pay is declined: all of it is the engine's, and it counts as decided well.
func TestALoadThatDoesNotPayIsDeclined(t *testing.T) {
	t.Parallel()
	play(t, []float64{1e6}, func(w *world) {
		p := w.join(sched.Spec{Spans: dealt(64, 1, 1), Compute: &skep.Compute{LoadOnly: true}}, mib, 10*time.Microsecond)
		require.Equal(t, skep.Claimed, skep.KindOf(p.Declined()))
		p.compute(8)
		require.False(t, slices.ContainsFunc(p.state, func(s string) bool { return s != "computed" }))
		st := w.s.Stats()
		require.Equal(t, []int64{1, 1, 1}, []int64{st.Declined, st.Judged, st.Right})
	})
}

// A claim of anything but what is next gets nothing, and is told what is.
func TestClaimsAreOfWhatIsNext(t *testing.T) {
	t.Parallel()
	play(t, []float64{1e9}, func(w *world) {
		p := w.join(sched.Spec{Spans: []sched.Span{{From: 2, To: 100, Nodes: []int{0}}}}, mib, time.Millisecond)
		for _, tt := range []struct{ want, granted, next int }{
			{0, 2 * tokens, 2 * tokens}, // before the chain's blocks: not ours to load
			{5 * tokens, 0, 5 * tokens}, // what is next lies before
			{2 * tokens, tokens, 3 * tokens},
			{2 * tokens, 0, 3 * tokens},
		} {
			end := tt.want + tokens
			if tt.want == 0 {
				end = 4 * tokens
			}
			c, err := p.Chain.Claim(skep.Range{From: tt.want, To: end}, false, true)
			require.NoError(t, err)
			require.Equal(t, skep.Claim{Granted: skep.Range{From: tt.want, To: tt.want + tt.granted}, Next: tt.next}, c, tt.want)
		}
		err := p.Computed(skep.Range{From: 99 * tokens, To: 101 * tokens}, time.Second, 0)
		require.Equal(t, skep.Invalid, skep.KindOf(err))
		<-time.After(time.Second) // all that was begun has come
		p.Leave()
		c, err := p.Chain.Claim(skep.Range{From: 3 * tokens, To: 4 * tokens}, false, false)
		require.NoError(t, err)
		require.Equal(t, tokens, c.Granted.Len(), "of a chain that has left all is the engine's")
	})
}

// After the last chain has left nothing runs, and the next one is served as the first was.
func TestOneChainAfterTheOther(t *testing.T) {
	t.Parallel()
	play(t, []float64{1e9, 1e9}, func(w *world) {
		for range 3 {
			p, _ := run(w, sched.Spec{Spans: dealt(64, 2, 1)}, 100*time.Microsecond)
			p.Leave()
			<-time.After(time.Second)
		}
	})
}

// Chains of all kinds, on nodes of all speeds, some of whose blocks do not come, each with an engine that claims by
// word or by calls: every block is loaded or computed, none of a chain by blocks is both, and no node has more than two
// loads.
func TestRandomChains(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for round := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, round))
		rates := make([]float64, 1+rng.IntN(5))
		for i := range rates {
			rates[i] = 5e7 * float64(int(1)<<rng.IntN(7))
		}
		play(t, rates, func(w *world) {
			ended := make(chan struct{})
			chains := 1 + rng.IntN(4)
			for range chains {
				n, x := 1+rng.IntN(400), sched.Spec{}
				x.Spans = dealt(n, len(rates), 1+rng.IntN(2)%len(rates))
				for i := range x.Spans {
					if rng.IntN(20) == 0 {
						x.Spans[i].Nodes = nil
					}
				}
				if rng.IntN(3) == 0 {
					x.ByLayer, x.Layers.From = true, rng.IntN(3)
					x.Layers.To = x.Layers.From + 1 + rng.IntN(12)
				}
				p := w.join(x, mib, time.Duration(20+rng.IntN(2000))*time.Microsecond)
				for i := range p.gone {
					p.gone[i] = rng.IntN(200) == 0
				}
				if rng.IntN(2) == 0 {
					p.share()
				}
				step := 1 + rng.IntN(8)
				go func() {
					p.compute(step)
					p.Leave()
					ended <- struct{}{}
				}()
			}
			for range chains {
				<-ended
			}
			for _, n := range w.nodes {
				require.LessOrEqual(t, n.most, 2)
			}
		})
	}
}
