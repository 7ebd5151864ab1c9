package twopointer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// linear is an engine of 10 µs a token without overheads; with 1e8 bytes/s and 1,000
// bytes a token loading takes as long.
var linear = Cost{PerToken: 10e-6}

func scheduler(t testing.TB, cfg Config) *Scheduler {
	if cfg.Channels == nil {
		cfg.Channels = []Channel{{BytesPerSecond: 1e8}}
	}
	s, err := New(cfg)
	require.NoError(t, err)
	return s
}

func prompt(tokens int) *Strand {
	return &Strand{Tokens: tokens, Cost: linear, BytesPerToken: 1000}
}

func step(t testing.TB, s *Scheduler, at float64, e Event) Decision {
	e.At = time.Duration(at * 1e9)
	d, err := s.Step(e)
	require.NoError(t, err)
	return d
}

// A stage computes as far as its boundary activations are here, in whatever order they come; what of
// the KV does not come is computed once its activations are here too.
func TestBoundaryActivationsComeFirst(t *testing.T) {
	t.Parallel()
	s := scheduler(t, Config{Chunk: 64, Unit: 16})
	p := prompt(256)
	p.Boundary = 10
	step(t, s, 0, Event{Kind: Join, New: p})
	require.Equal(t, Nothing, step(t, s, 0, Event{Kind: Ask, Want: 256, Idle: true}).What, "nothing is here")
	b := step(t, s, 0, Event{Kind: Ready})
	require.True(t, b.Boundary)
	require.Equal(t, []int{0, 64}, []int{b.From, b.To})
	for _, at := range []int{32, 48, 16} {
		step(t, s, 0, Event{Kind: Landed, Boundary: true, From: at, To: at + 16})
	}
	require.Equal(t, Nothing, step(t, s, 0, Event{Kind: Ask, Want: 256, Idle: true}).What, "the first are not here")
	step(t, s, 0, Event{Kind: Landed, Boundary: true, From: 0, To: 16})
	g := step(t, s, 0, Event{Kind: Ask, Want: 256, Idle: true})
	require.Equal(t, []int{0, 64}, []int{g.From, g.To}, "the last to come were the first: all four are here")

	var last *Decision // the first to be loaded, of the tail
	for st, _ := s.State(0); st.Head < st.Tail; st, _ = s.State(0) {
		switch d := step(t, s, 0, Event{Kind: Ready}); {
		case d.What != Load:
		case d.Boundary || last != nil:
			step(t, s, 0, Event{Kind: Landed, Boundary: d.Boundary, From: d.From, To: d.To})
		default:
			last = &d
		}
		step(t, s, 0, Event{Kind: Ask, Want: 256, Idle: true})
	}
	require.Equal(t, 256, last.To)
	require.False(t, s.Settled(0), "what is on its way may fail")
	step(t, s, 0, Event{Kind: Failed, From: last.From, To: last.To})
	require.False(t, s.Settled(0))
	require.Equal(t, Nothing, step(t, s, 0, Event{Kind: Ask, Want: 256, Idle: true}).What, "its activations are not here")
	for here := false; !here; {
		d := step(t, s, 0, Event{Kind: Ready})
		require.True(t, d.What == Load && d.Boundary)
		step(t, s, 0, Event{Kind: Landed, Boundary: true, From: d.From, To: d.To})
		here = d.To == 256
	}
	g = step(t, s, 0, Event{Kind: Ask, Want: 256, Idle: true})
	require.Equal(t, []int{last.From, last.To}, []int{g.From, g.To})
	require.True(t, s.Settled(0))
}

// The two pointers of one request: grants from the head, loads from the tail, nothing twice.
func TestTwoPointersMeet(t *testing.T) {
	t.Parallel()
	s := scheduler(t, Config{})
	a := step(t, s, 0, Event{Kind: Join, New: prompt(2048)})
	require.Equal(t, Accepted, a.What)
	l := step(t, s, 0, Event{Kind: Ready})
	require.Equal(t, Decision{What: Load, From: 1536, To: 2048, Bytes: 512000, Expected: l.Expected, Compute: l.Compute}, l)
	g := step(t, s, 0, Event{Kind: Ask, Want: 512, Idle: true})
	require.Equal(t, Grant, g.What)
	require.Equal(t, []int{0, 512, 512}, []int{g.From, g.To, g.Jump})
	step(t, s, 0.00512, Event{Kind: Landed, From: 1536, To: 2048})
	step(t, s, 0.00512, Event{Kind: Computed, From: 0, To: 512, Took: 0.00512})
	l = step(t, s, 0.00512, Event{Kind: Ready})
	require.Equal(t, []int{1024, 1536}, []int{l.From, l.To})
	g = step(t, s, 0.00512, Event{Kind: Ask, Want: 4096, Idle: true})
	require.Equal(t, []int{512, 1024, 2048}, []int{g.From, g.To, g.Jump}, "the rest is on its way: go on at the end")
	require.Equal(t, Nothing, step(t, s, 0.006, Event{Kind: Ask, Want: 1, Idle: true}).What)
	require.Equal(t, Nothing, step(t, s, 0.006, Event{Kind: Ready}).What)
	step(t, s, 0.01024, Event{Kind: Landed, From: 1024, To: 1536})
	step(t, s, 0.01024, Event{Kind: Computed, From: 512, To: 1024, Took: 0.00512})
	st, ok := s.State(0)
	require.True(t, ok)
	require.Zero(t, st.Left)
}

// A piece that fails is an island: the engine is sent to it, once what lies before is there.
func TestAFailedPieceIsAnIsland(t *testing.T) {
	t.Parallel()
	s := scheduler(t, Config{})
	step(t, s, 0, Event{Kind: Join, New: prompt(1536)})
	step(t, s, 0, Event{Kind: Ready})
	step(t, s, 0, Event{Kind: Failed, From: 1024, To: 1536})
	g := step(t, s, 0, Event{Kind: Ask, Want: 256, Idle: true})
	require.Equal(t, []int{0, 256}, []int{g.From, g.To})
	l := step(t, s, 0, Event{Kind: Ready})
	require.Equal(t, 1024, l.To, "what comes after the island stays, what comes before is loaded as ever")
	require.Less(t, l.From, 1024)
	g = step(t, s, 0, Event{Kind: Ask, Want: 5000, Idle: true})
	require.Equal(t, []int{256, l.From, 1024}, []int{g.From, g.To, g.Jump}, "jump to the island")
	require.Equal(t, Nothing, step(t, s, 0, Event{Kind: Ask, Want: 512}).What, "what lies before it is on its way")
	step(t, s, 0.01, Event{Kind: Landed, From: l.From, To: 1024})
	g = step(t, s, 0.01, Event{Kind: Ask, Want: 5000})
	require.Equal(t, []int{1024, 1536, 1536}, []int{g.From, g.To, g.Jump})
}

func TestALoadThatCannotPayIsDeclined(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		rate     float64
		loadOnly bool
		want     What
	}{
		{"as fast as computing", 1e8, true, Accepted}, // or as good as that
		{"twice as fast", 2e8, true, Accepted},
		{"half as fast", 5e7, true, Declined},
		{"half as fast, with two pointers", 5e7, false, Accepted},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := scheduler(t, Config{Channels: []Channel{{BytesPerSecond: c.rate, Latency: 1e-4}}})
			n := prompt(4096)
			n.LoadOnly = c.loadOnly
			d := step(t, s, 0, Event{Kind: Join, New: n})
			require.Equal(t, c.want, d.What)
			require.InEpsilon(t, 4096*1000/c.rate+1e-4, d.Expected, 1e-9)
			require.InEpsilon(t, 0.04096, d.Compute, 1e-9)
		})
	}
}

// Declines are right: of loads declined by what was learned of noisy speeds, at least 95 % take
// longer, in truth, than computing did.
func TestDeclinesAreRightInHindsight(t *testing.T) {
	t.Parallel()
	const seed = 5
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	noise := func() float64 { return 0.8 + 0.4*rng.Float64() }
	declined, right, missed, all := 0, 0, 0, 0
	for range 60 {
		rate, slow := 1e8*math.Pow(4, 2*rng.Float64()-1), 0.5+2*rng.Float64() // the truth; 1e8 and 1 are believed
		s := scheduler(t, Config{})
		long := step(t, s, 0, Event{Kind: Join, New: prompt(1 << 22)}).Strand
		now := 0.0
		for i := range 100 {
			if i >= 20 { // after a while of learning, whole requests are asked about, alone
				n := prompt(512 * (1 + rng.IntN(60)))
				n.LoadOnly = true
				probe := *s // a copy: the question must not change what is learned
				probe.chans, probe.stages = append([]channel(nil), s.chans...), append([]stage(nil), s.stages...)
				probe.chans[0].cand = append([]candidate(nil), s.chans[0].cand...)
				probe.chans[0].busy, probe.chans[0].bytes = 0, 0
				probe.strands, probe.live, probe.free = append([]strand(nil), s.strands...), append([]int(nil), s.live...), nil
				d := step(t, &probe, now, Event{Kind: Join, New: n})
				load, compute := 0.0, 0.0
				for at := 0; at < n.Tokens; at += 512 {
					load += 512 * 1000 / rate * noise()
					compute += linear.Span(at, at+512) * slow * noise()
				}
				all++
				if d.What == Declined {
					declined++
					if load > compute {
						right++
					}
				} else if load > 1.2*compute {
					missed++
				}
			}
			l := step(t, s, now, Event{Kind: Ready})
			g := step(t, s, now, Event{Kind: Ask, Strand: long, Want: 512, Idle: true})
			now += max(512*1000/rate*noise(), 1e-6)
			if l.What == Load {
				step(t, s, now, Event{Kind: Landed, Strand: long, From: l.From, To: l.To})
			}
			if g.What == Grant {
				step(t, s, now, Event{Kind: Computed, Strand: long, From: g.From, To: g.To, Took: linear.Span(g.From, g.To) * slow * noise()})
			}
		}
	}
	t.Logf("%d of %d declined, %.1f %% of them right; %d accepted that took 1.2 × as long as computing", declined, all, 100*float64(right)/float64(declined), missed)
	require.Greater(t, declined, 100)
	require.GreaterOrEqual(t, float64(right), 0.95*float64(declined))
}

// With two pointers nothing is declined as a whole: a piece that computing would reach first is just not
// loaded.
func TestAPieceThatCannotPayIsNotLoaded(t *testing.T) {
	t.Parallel()
	s := scheduler(t, Config{Channels: []Channel{{BytesPerSecond: 1e3}}})
	require.Equal(t, Accepted, step(t, s, 0, Event{Kind: Join, New: prompt(4096)}).What)
	require.Equal(t, Nothing, step(t, s, 0, Event{Kind: Ready}).What)
	g := step(t, s, 0, Event{Kind: Ask, Want: 10000, Idle: true})
	require.Equal(t, []int{0, 4096}, []int{g.From, g.To})
}

// Background strands get what nobody else wants, until they are promoted.
func TestPrefetchYieldsUntilPromoted(t *testing.T) {
	t.Parallel()
	s := scheduler(t, Config{})
	bg := prompt(1024)
	bg.Background, bg.LoadOnly = true, true
	a := step(t, s, 0, Event{Kind: Join, New: bg})
	b := step(t, s, 0, Event{Kind: Join, New: prompt(2048)})
	require.Equal(t, b.Strand, step(t, s, 0, Event{Kind: Ready}).Strand)
	bg.Background = false
	step(t, s, 0, Event{Kind: Promote, Strand: a.Strand, New: bg})
	require.Equal(t, a.Strand, step(t, s, 0, Event{Kind: Ready}).Strand)
}

// Costs that an engine may state although no engine has them: what is granted stays within
// what is left, and head never goes back.
func TestOddCosts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]Cost{
		"nothing for each token": {Fixed: 0.01, PerSquare: 1e-12},
		"a launch only":          {Fixed: 0.01},
		"a square only":          {PerSquare: 1e-9},
		"beyond all measure":     {PerToken: 1e9, PerSquare: 1e300},
	} {
		for _, engine := range []Engine{RoundRobin, FirstCome} {
			s := scheduler(t, Config{Engine: engine})
			var slots []int
			for range 3 {
				p := prompt(4096)
				p.Cost = c
				slots = append(slots, step(t, s, 0, Event{Kind: Join, New: p}).Strand)
			}
			for i := range 60 {
				slot, at := slots[i%len(slots)], float64(i)*1e-3
				before, _ := s.State(slot)
				g := step(t, s, at, Event{Kind: Ask, Strand: slot, Want: 1024 - 600*(i%3), Idle: i%2 == 0})
				after, _ := s.State(slot)
				require.LessOrEqual(t, before.Head, after.Head, "%s, %v: %+v", name, engine, g)
				require.LessOrEqual(t, after.Head, after.Tail, "%s, %v: %+v", name, engine, g)
				require.LessOrEqual(t, g.From, g.To, "%s, %v", name, engine)
				step(t, s, at, Event{Kind: Ready})
			}
		}
	}
	s := scheduler(t, Config{})
	p := prompt(64)
	p.Decided, p.Mode = true, ByLayers
	_, err := s.Step(Event{Kind: Join, New: p})
	require.ErrorIs(t, err, skep.Invalid)
}

func TestADeadlineThatNeedsItGoesFirst(t *testing.T) {
	t.Parallel()
	s := scheduler(t, Config{})
	small := step(t, s, 0, Event{Kind: Join, New: prompt(1024)})
	long := prompt(4096)
	long.Deadline = 50 * time.Millisecond
	d := step(t, s, 0, Event{Kind: Join, New: long})
	require.Equal(t, small.Strand, step(t, s, 0, Event{Kind: Ready}).Strand, "there is time")
	require.Equal(t, d.Strand, step(t, s, 0.0135, Event{Kind: Ready}).Strand, "there is none left to give away")
}

func TestNobodyStarves(t *testing.T) {
	t.Parallel()
	s := scheduler(t, Config{Patience: time.Second})
	long := step(t, s, 0, Event{Kind: Join, New: prompt(100000)})
	for i := range 300 {
		at := float64(i) * 0.01
		step(t, s, at, Event{Kind: Join, New: prompt(2048)})
		l := step(t, s, at, Event{Kind: Ready})
		if at >= 1 {
			require.Equal(t, long.Strand, l.Strand)
			return
		}
		require.NotEqual(t, long.Strand, l.Strand, "at %v s", at)
		step(t, s, at, Event{Kind: Leave, Strand: l.Strand})
	}
}

// A stage after the first loads what enters it before it computes, and counts the bytes.
func TestAStageLoadsItsBoundaryFirst(t *testing.T) {
	t.Parallel()
	s := scheduler(t, Config{Stages: 2})
	n := prompt(4096)
	n.Stage, n.Boundary = 1, 100
	step(t, s, 0, Event{Kind: Join, New: n})
	require.Equal(t, Nothing, step(t, s, 0, Event{Kind: Ask, Want: 512, Idle: true}).What)
	l := step(t, s, 0, Event{Kind: Ready})
	require.True(t, l.Boundary)
	require.Equal(t, []float64{0, 512, 51200}, []float64{float64(l.From), float64(l.To), l.Bytes})
	step(t, s, 0.001, Event{Kind: Landed, From: 0, To: 512, Boundary: true})
	g := step(t, s, 0.001, Event{Kind: Ask, Want: 4096, Idle: true})
	require.Equal(t, []int{0, 512}, []int{g.From, g.To}, "as far as what enters the stage is there")
}

func TestBadEventsChangeNothing(t *testing.T) {
	t.Parallel()
	_, err := New(Config{})
	require.ErrorIs(t, err, skep.Invalid)
	s := scheduler(t, Config{})
	step(t, s, 0, Event{Kind: Join, New: prompt(1024)})
	before, _ := s.State(0)
	for i, e := range []Event{
		{}, {Kind: 99}, {Kind: Leave, Strand: 7}, {Kind: Leave, Strand: -1}, {Kind: Join}, {Kind: Ready, Channel: 3},
		{Kind: Join, New: &Strand{Tokens: -1}}, {Kind: Join, New: &Strand{Tokens: 5, Channel: 2}}, {Kind: Join, New: &Strand{Tokens: 5}},
		{Kind: Landed, From: 0, To: 512}, {Kind: Computed, From: 0, To: 5000}, {Kind: Computed, From: 5, To: 1}, {Kind: Promote}, {Kind: Speed},
	} {
		_, err := s.Step(e)
		require.ErrorIs(t, err, skep.Invalid, "event %d", i)
	}
	after, _ := s.State(0)
	require.Equal(t, before, after)
}

// What is measured replaces what was stated.
func TestSpeedsAreLearned(t *testing.T) {
	t.Parallel()
	s := scheduler(t, Config{})
	step(t, s, 0, Event{Kind: Join, New: prompt(1 << 20)})
	now := 0.0
	for range 100 { // loading at half the speed believed, computing at a third
		l := step(t, s, now, Event{Kind: Ready})
		g := step(t, s, now, Event{Kind: Ask, Want: 512, Idle: true})
		now += l.Bytes / 5e7
		step(t, s, now, Event{Kind: Landed, From: l.From, To: l.To})
		step(t, s, now, Event{Kind: Computed, From: g.From, To: g.To, Took: 3 * linear.Span(g.From, g.To)})
	}
	require.InEpsilon(t, 5e7, s.Rate(0), 0.05)
	require.InEpsilon(t, 3, s.Slow(0), 0.05)
}

// BenchmarkDecision is the cost of one chunk decision with 256 requests under way: one piece
// handed out, landed, and a claim answered now and then, requests coming and going.
func BenchmarkDecision(b *testing.B) {
	for _, e := range []Engine{RoundRobin, FirstCome} {
		b.Run(fmt.Sprint(e), func(b *testing.B) {
			s := scheduler(b, Config{Engine: e, Channels: []Channel{{BytesPerSecond: 1e10, Latency: 1e-4}}})
			cost := Cost{5e-3, 30e-6, 6e-10}
			var slots []int
			join := func(i int) int {
				d, err := s.Step(Event{Kind: Join, New: &Strand{Tokens: 4096 + i%97*512, Cost: cost, BytesPerToken: 147456, After: 0.05}})
				require.NoError(b, err)
				return d.Strand
			}
			for i := range 256 {
				slots = append(slots, join(i))
			}
			at := time.Duration(0)
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; i < b.N; i++ {
				at += 7 * time.Millisecond
				d, _ := s.Step(Event{At: at, Kind: Ready})
				if d.What == Load {
					s.Step(Event{At: at, Kind: Landed, Strand: d.Strand, From: d.From, To: d.To})
				}
				if i%16 == 15 {
					k := i / 16 % len(slots)
					s.Step(Event{At: at, Kind: Leave, Strand: slots[k]})
					slots[k] = join(i)
				}
			}
		})
	}
}
