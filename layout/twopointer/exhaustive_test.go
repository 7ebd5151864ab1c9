package twopointer

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// world is a batch small enough to try everything: requests of whole chunks, an engine that
// computes one at a time and a channel that loads one at a time.
type world struct {
	engine Engine
	cost   Cost
	load   float64 // seconds a chunk
	reqs   []small
	turn   int // RoundRobin: who is next

	now, engineFree, channelFree float64
	engineOn, channelOn          int // request, -1: idle
}

type small struct {
	head, tail, left int // chunks
	done             float64
}

const smallChunk = 512

func (w *world) clone() *world {
	c := *w
	c.reqs = append([]small(nil), w.reqs...)
	return &c
}

// compute starts the engine's next chunk, when it may have one.
func (w *world) compute(may func(r int) bool) {
	if w.engineOn >= 0 {
		return
	}
	for k := range w.reqs {
		r := k
		if w.engine == RoundRobin {
			r = (w.turn + k) % len(w.reqs)
		}
		if q := &w.reqs[r]; q.head < q.tail && may(r) {
			w.engineFree = w.now + w.cost.Fixed + w.cost.Span(q.head*smallChunk, (q.head+1)*smallChunk)
			q.head++
			w.engineOn, w.turn = r, r+1
			return
		}
	}
}

func (w *world) startLoad(r int) {
	w.reqs[r].tail--
	w.channelOn, w.channelFree = r, w.now+w.load
}

// advance goes to the next completion and says whether there was one.
func (w *world) advance() (computed, loaded int, ok bool) {
	computed, loaded = -1, -1
	next := math.Inf(1)
	if w.engineOn >= 0 {
		next = w.engineFree
	}
	if w.channelOn >= 0 {
		next = min(next, w.channelFree)
	}
	if math.IsInf(next, 1) {
		return computed, loaded, false
	}
	w.now = next
	end := func(r int) {
		q := &w.reqs[r]
		if q.left--; q.left == 0 {
			q.done = w.now
		}
	}
	if w.engineOn >= 0 && w.engineFree <= next {
		computed, w.engineOn = w.engineOn, -1
		end(computed)
	}
	if w.channelOn >= 0 && w.channelFree <= next {
		loaded, w.channelOn = w.channelOn, -1
		end(loaded)
	}
	return computed, loaded, true
}

// total is Σ completion; without end where something is left undone.
func (w *world) total() (sum float64) {
	for _, q := range w.reqs {
		if q.left > 0 {
			return math.Inf(1)
		}
		sum += q.done
	}
	return sum
}

// optimum is the least Σ completion of all orders of loading, pauses included, while the
// engine goes its way: what anybody could reach who only decides what is loaded.
func (w *world) optimum() float64 {
	best := math.Inf(1)
	if w.channelOn < 0 {
		for r := range w.reqs {
			if q := &w.reqs[r]; q.head < q.tail {
				c := w.clone()
				c.startLoad(r)
				best = min(best, c.optimum())
			}
		}
	}
	c := w.clone()
	c.compute(func(int) bool { return true })
	if _, _, ok := c.advance(); !ok {
		return min(best, w.total())
	}
	return min(best, c.optimum())
}

// scheduled is what the Scheduler makes of it.
func (w *world) scheduled(t *testing.T) float64 {
	s := scheduler(t, Config{Engine: w.engine, Chunk: smallChunk, Unit: smallChunk, Channels: []Channel{{BytesPerSecond: smallChunk / w.load}}})
	at := func() time.Duration { return time.Duration(w.now * 1e9) }
	ask := func(e Event) Decision {
		e.At = at()
		d, err := s.Step(e)
		require.NoError(t, err)
		return d
	}
	for i := range w.reqs {
		d := ask(Event{Kind: Join, New: &Strand{Tokens: w.reqs[i].tail * smallChunk, Cost: w.cost, BytesPerToken: 1}})
		require.Equal(t, i, d.Strand)
	}
	var piece, granted Decision
	gone := make([]bool, len(w.reqs))
	for range 10000 {
		if w.channelOn < 0 {
			if piece = ask(Event{Kind: Ready}); piece.What == Load {
				w.startLoad(piece.Strand)
			}
		}
		for _, idle := range []bool{false, true} {
			w.compute(func(r int) bool {
				granted = ask(Event{Kind: Ask, Strand: r, Want: smallChunk, Idle: idle})
				return granted.What == Grant
			})
		}
		computed, loaded, ok := w.advance()
		if !ok {
			return w.total()
		}
		if computed >= 0 {
			ask(Event{Kind: Computed, Strand: computed, From: granted.From, To: granted.To})
		}
		if loaded >= 0 {
			ask(Event{Kind: Landed, Strand: loaded, From: piece.From, To: piece.To})
		}
		for r := range w.reqs {
			if w.reqs[r].left == 0 && !gone[r] {
				gone[r] = true
				ask(Event{Kind: Leave, Strand: r})
			}
		}
	}
	t.Fatal("it never ends")
	return 0
}

// On batches small enough to try every order of loading, what the scheduler decides chunk by
// chunk is close to the best there is for an engine that is granted all it asks for; now and then better,
// because a claim may be refused.
func TestCloseToTheExhaustiveOptimum(t *testing.T) {
	t.Parallel()
	const seed = 11
	t.Logf("seed %d", seed)
	for _, engine := range []Engine{RoundRobin, FirstCome} {
		t.Run(engine.String(), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, uint64(engine)))
			sum, worst, better := 0.0, 0.0, 0
			cases := 100
			if testing.Short() {
				cases = 20
			}
			for range cases {
				w := &world{engine: engine, engineOn: -1, channelOn: -1, cost: Cost{PerToken: 20e-6, PerSquare: rng.Float64() * 2e-8}}
				w.load = 512 * 20e-6 * (0.3 + 2*rng.Float64())
				k := 2 + rng.IntN(2)
				for range k {
					n := 1 + rng.IntN(7-k)
					w.reqs = append(w.reqs, small{tail: n, left: n})
				}
				best := w.optimum()
				ratio := w.clone().scheduled(t) / best
				sum += ratio
				worst = max(worst, ratio)
				if ratio < 1-1e-9 {
					better++
				}
			}
			t.Logf("mean %.3f × the optimum, worst %.3f ×, better in %d of %d", sum/float64(cases), worst, better, cases)
			require.Less(t, sum/float64(cases), 1.15)
			require.Less(t, worst, 1.6)
		})
	}
}
