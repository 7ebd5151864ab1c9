package twopointer

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/tools/drawn"
)

// llama is Llama-3.1-8B on an H100 whose drives move so many Gb/s.
func llama(t *testing.T, gbps float64) Problem {
	g, err := GPUNamed("h100")
	require.NoError(t, err)
	m, err := ModelNamed("llama-3.1-8b")
	require.NoError(t, err)
	return Problem{Layers: m.Layers, Cost: PresetCost(g, m), BytesPerToken: float64(m.BytesPerToken()), BytesPerSecond: gbps / 8 * 1e9, Latency: 200e-6}
}

// For every preset the two ways cross once: shorter prefixes are restored faster by layers, longer ones by tokens, and
// where that is not so to the token the difference is below a thousandth.
func TestTurnIsWhereLayersAndTokensCross(t *testing.T) {
	t.Parallel()
	for _, g := range GPUs() {
		for _, m := range Models() {
			for _, gbps := range []float64{1, 2.5, 10, 40, 160} {
				p := Problem{Layers: m.Layers, Cost: PresetCost(g, m), BytesPerToken: float64(m.BytesPerToken()), BytesPerSecond: gbps / 8 * 1e9, Latency: 200e-6}
				turn := p.Turn()
				for n := 512; n < 1<<16; n += 512 {
					p.Tokens = n
					tokens, layers := p.Best(ByTokens).Seconds, p.Best(ByLayers).Seconds
					if n < turn {
						require.LessOrEqual(t, layers, tokens*1.001, "%s, %s, %g Gb/s, %d of %d tokens", g.Name, m.Name, gbps, n, turn)
					} else {
						require.LessOrEqual(t, tokens, layers*1.001, "%s, %s, %g Gb/s, %d of %d tokens", g.Name, m.Name, gbps, n, turn)
					}
				}
			}
		}
	}
}

func TestTurnOfWhatHasNoLayersToSplit(t *testing.T) {
	t.Parallel()
	p := llama(t, 40)
	p.Layers = 1
	require.Zero(t, p.Turn())
	p = llama(t, 40)
	p.Boundary = 8192
	require.Zero(t, p.Turn(), "of a stage all activations would have to be there before its first layer")
}

// Who goes by layers: what is alone, from the first token, shorter than L_Δ, and may be computed.
func TestWhoGoesByLayers(t *testing.T) {
	t.Parallel()
	p := llama(t, 40)
	short, long := p.Turn()-64, p.Turn()
	for _, x := range []struct {
		what   string
		tokens int
		beside int
		also   int // strands that joined before
		change func(*Strand)
		policy Policy
		want   Mode
	}{
		{what: "short and alone", tokens: short, want: ByLayers},
		{what: "long and alone", tokens: long, want: ByTokens},
		{what: "short, with another of its session", tokens: short, beside: 1, want: ByTokens},
		{what: "short, beside another session's", tokens: short, also: 1, want: ByTokens},
		{what: "not from the first token", tokens: short, change: func(n *Strand) { n.Start = 64 }, want: ByTokens},
		{what: "only loaded", tokens: short, change: func(n *Strand) { n.LoadOnly = true }, want: ByTokens},
		{what: "one layer", tokens: short, change: func(n *Strand) { n.Layers = 1 }, want: ByTokens},
		{what: "a stage with activations", tokens: short, change: func(n *Strand) { n.Boundary = 8192 }, want: ByTokens},
		{what: "decided", tokens: long, change: func(n *Strand) { n.Decided, n.Mode = true, ByLayers }, want: ByLayers},
		{what: "a policy without layers", tokens: short, policy: NoLayers, want: ByTokens},
		{what: "a policy that only loads", tokens: short, policy: LoadOnly, want: ByTokens},
	} {
		t.Run(x.what, func(t *testing.T) {
			s, err := New(Config{Policy: x.policy, Channels: []Channel{{p.BytesPerSecond, p.Latency}}})
			require.NoError(t, err)
			n := Strand{Tokens: x.tokens, Layers: p.Layers, Cost: p.Cost, BytesPerToken: p.BytesPerToken}
			for range x.also {
				other := n
				_, err := s.Step(Event{Kind: Join, New: &other})
				require.NoError(t, err)
			}
			if x.change != nil {
				x.change(&n)
			}
			require.Equal(t, x.want, s.ModeOf(&n, x.beside))
			if x.beside == 0 && x.change == nil {
				d, err := s.Step(Event{Kind: Join, New: &n})
				require.NoError(t, err)
				require.Equal(t, x.want, d.Mode, "and so it is when it joins")
			}
		})
	}
}

// L_Δ is reckoned from the speeds as they are, and again only when one has moved by more than a tenth.
func TestTurnFollowsTheSpeeds(t *testing.T) {
	t.Parallel()
	p := llama(t, 40)
	s, err := New(Config{Channels: []Channel{{p.BytesPerSecond, p.Latency}}})
	require.NoError(t, err)
	n := Strand{Layers: p.Layers, Cost: p.Cost, BytesPerToken: p.BytesPerToken}
	ask := func() (turn, reckoned int) {
		s.ModeOf(&n, 0)
		return s.Crossover()
	}
	speed := func(factor float64) {
		_, err := s.Step(Event{Kind: Speed, Rate: p.BytesPerSecond * factor})
		require.NoError(t, err)
	}
	at, k := ask()
	require.Equal(t, p.Turn(), at)
	require.Equal(t, 1, k)
	for _, f := range []float64{1.05, .95, 1.09, .92} {
		speed(f)
		again, k := ask()
		require.Equal(t, at, again)
		require.Equal(t, 1, k, "%g of the speed is no reason", f)
	}
	speed(.25)
	slower := llama(t, 10)
	moved, k := ask()
	require.Equal(t, slower.Turn(), moved)
	require.NotEqual(t, at, moved)
	require.Equal(t, 2, k)
	n.Tokens = (at + moved) / 2
	before, now := ByLayers, ByLayers
	if n.Tokens >= at {
		before = ByTokens
	}
	if n.Tokens >= moved {
		now = ByTokens
	}
	require.Equal(t, now, s.ModeOf(&n, 0))
	speed(1)
	require.Equal(t, before, s.ModeOf(&n, 0))

	// The engine tells its own speed by what steps take: here four times what it said.
	d, err := s.Step(Event{Kind: Join, New: &Strand{Tokens: 1 << 14, Cost: p.Cost, BytesPerToken: p.BytesPerToken}})
	require.NoError(t, err)
	_, reckoned := ask()
	now2 := time.Duration(0)
	for range 30 {
		g, err := s.Step(Event{At: now2, Kind: Ask, Strand: d.Strand, Want: 256, Idle: true})
		require.NoError(t, err)
		if g.What != Grant {
			break
		}
		took := 4 * (p.Cost.Fixed + p.Cost.Span(g.From, g.To))
		now2 += time.Duration(took * 1e9)
		_, err = s.Step(Event{At: now2, Kind: Computed, Strand: d.Strand, From: g.From, To: g.To, Took: took, Launches: 1})
		require.NoError(t, err)
	}
	_, err = s.Step(Event{At: now2, Kind: Leave, Strand: d.Strand})
	require.NoError(t, err)
	slowed := p
	slowed.Cost = p.Cost.Times(s.Slow(0))
	require.Greater(t, s.Slow(0), 2.0)
	at, k = ask()
	require.InDelta(t, slowed.Turn(), at, 64)
	require.Greater(t, k, reckoned)
}

// Many costs take turns: each is remembered or reckoned again, never taken for another.
func TestTurnsOfManyCosts(t *testing.T) {
	t.Parallel()
	p := llama(t, 40)
	s, err := New(Config{Channels: []Channel{{p.BytesPerSecond, p.Latency}}})
	require.NoError(t, err)
	seed := drawn.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 500 {
		q := p
		q.Cost = p.Cost.Times(float64(1 + rng.IntN(40)))
		s.ModeOf(&Strand{Layers: q.Layers, Cost: q.Cost, BytesPerToken: q.BytesPerToken, Tokens: 64}, 0)
		k := 0
		for k < len(s.turns) && s.turns[k].cost != q.Cost {
			k++
		}
		require.Less(t, k, len(s.turns), "seed %d", seed)
		require.Equal(t, q.Turn(), s.turns[k].at, fmt.Sprint("seed ", seed))
		require.LessOrEqual(t, len(s.turns), turnsKept)
	}
}

// What a Turn costs to reckon, and a decision that finds it reckoned.
func BenchmarkTurn(b *testing.B) {
	m, _ := ModelNamed("llama-3.1-8b")
	g, _ := GPUNamed("h100")
	p := Problem{Layers: m.Layers, Cost: PresetCost(g, m), BytesPerToken: float64(m.BytesPerToken()), BytesPerSecond: 5e9, Latency: 200e-6}
	b.Run("reckoned", func(b *testing.B) {
		for b.Loop() {
			p.Turn()
		}
	})
	s, err := New(Config{Channels: []Channel{{p.BytesPerSecond, p.Latency}}})
	require.NoError(b, err)
	n := Strand{Tokens: 4096, Layers: p.Layers, Cost: p.Cost, BytesPerToken: p.BytesPerToken}
	b.Run("remembered", func(b *testing.B) {
		for b.Loop() {
			s.ModeOf(&n, 0)
		}
	})
}
