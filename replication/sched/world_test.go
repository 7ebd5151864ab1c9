package sched_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/sched"
)

const (
	tokens = 16 // of a block
	mib    = 1 << 20
)

// world is nodes that bring what they are asked for, one thing after the other, a session that asks them, and engines
// that compute. Its time is that of the bubble it runs in: nothing takes any but what is said to.
type world struct {
	t     *testing.T
	s     *sched.Scheduler
	nodes []*server

	mu     sync.Mutex
	chains []*played
}

// server is a node.
type server struct {
	rate    float64 // bytes a second
	latency time.Duration
	free    time.Time // when it has brought all it was asked for
	active  int       // loads
	most    int       // of them at once, ever
}

// played is a chain that is restored beside its engine.
type played struct {
	*sched.Chain
	w      *world
	bytes  int64         // of a chunk
	gone   []bool        // by chunk: no node brings it
	state  []string      // by chunk: "", "begun", "loaded", "missed", "claimed"
	took   []int         // loads begun, by node
	word   *skep.Claimer // nil: claims go by calls
	end    time.Time     // when the engine had all
	given  []skep.Range
	layers int // 0: by blocks
}

// play runs f in a bubble with nodes of these rates, in bytes a second.
func play(t *testing.T, rates []float64, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		done := make(chan struct{})
		w := &world{t: t, s: sched.New(sched.Options{Done: done, Start: func(f func()) bool { go f(); return true }})}
		for _, r := range rates {
			w.nodes = append(w.nodes, &server{rate: r, latency: 100 * time.Microsecond})
		}
		f(w)
		<-time.After(time.Minute) // all that was begun has come
		close(done)
		synctest.Wait()
	})
}

// join has a chain of blocks planned, whose computing costs so much a token.
func (w *world) join(x sched.Spec, blockBytes int64, perToken time.Duration) *played {
	p := &played{w: w, bytes: blockBytes, took: make([]int, len(w.nodes))}
	x.Blocks = skep.Range{From: x.Spans[0].From, To: x.Spans[len(x.Spans)-1].To}
	x.BlockTokens, x.BlockBytes, x.Nodes, x.Owner = tokens, float64(blockBytes), len(w.nodes), w
	if x.Compute == nil {
		x.Compute = &skep.Compute{}
	}
	x.Compute.Cost = skep.RecomputeCost{PerToken: perToken}
	n := x.Blocks.Len()
	if x.ByLayer {
		p.layers = x.Layers.Len()
		n *= p.layers
		p.bytes /= int64(p.layers)
	}
	p.state, p.gone = make([]string, n), make([]bool, n)
	c, err := w.s.Join(x)
	require.NoError(w.t, err)
	p.Chain = c
	w.mu.Lock()
	w.chains = append(w.chains, p)
	w.mu.Unlock()
	return p
}

// Look begins what may be begun, as a session does.
func (w *world) Look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.chains {
		p.granted(p.Told())
		for _, r := range p.Begin(len(w.nodes), 0, 0, 0) { // that nobody has
			for b := r.From; b < r.To; b++ {
				if p.state[p.Number(b, r.Layer)] == "" { // else one above it is not there either
					p.answer(b, r.Layer, errNowhere)
				}
			}
		}
		for i, n := range w.nodes {
			for n.active < 2 {
				runs := p.Begin(i, 8*mib, 128, 64)
				if len(runs) == 0 {
					break
				}
				p.load(i, runs)
			}
		}
	}
}

var errNowhere = errors.New("no node brings it")

// load asks a node for runs. w.mu is held.
func (p *played) load(i int, runs []sched.Run) {
	var list []sched.Run // one a chunk
	for _, r := range runs {
		for b := r.From; b < r.To; b++ {
			if k := p.Number(b, r.Layer); p.state[k] == "" {
				p.state[k] = "begun"
				list = append(list, sched.Run{From: b, To: b + 1, Layer: r.Layer})
			}
		}
	}
	if len(list) == 0 {
		return
	}
	n := p.w.nodes[i]
	n.active++
	n.most = max(n.most, n.active)
	p.took[i]++
	p.Begun(i, len(list))
	at := time.Now().Add(n.latency)
	if n.free.After(at) {
		at = n.free
	}
	each := time.Duration(float64(p.bytes) / n.rate * 1e9)
	n.free = at.Add(each * time.Duration(len(list)))
	go func() {
		for k, r := range list {
			<-time.After(time.Until(at.Add(each * time.Duration(k+1))))
			p.w.mu.Lock()
			var why error
			if p.gone[p.Number(r.From, r.Layer)] {
				why = errNowhere
			}
			p.Came(i, why == nil)
			p.answer(r.From, r.Layer, why)
			p.w.mu.Unlock()
		}
		p.w.mu.Lock()
		n.active--
		p.w.mu.Unlock()
		p.Ended(i)
		p.w.Look()
	}()
}

// answer delivers a chunk, or says that it will not come. w.mu is held.
func (p *played) answer(block, layer int, why error) {
	k := p.Number(block, layer)
	switch p.state[k] {
	case "claimed", "computed":
		return
	case "loaded", "missed":
		p.w.t.Errorf("block %d, layer %d is answered twice", block, layer)
	}
	if p.state[k] = "loaded"; why != nil {
		p.state[k] = "missed"
	}
	if !p.Answered(block, layer, why) {
		return
	}
	for l := p.Layers.From; l < layer; l++ { // what is below is the engine's
		for b := p.Blocks.From; b < p.Blocks.To; b++ {
			if p.state[p.Number(b, l)] == "" {
				p.answer(b, l, errNowhere)
			}
		}
	}
}

// granted notes what the engine has claimed, in tokens or layers. w.mu is held.
func (p *played) granted(r skep.Range) {
	for u := r.From; u < r.To; u++ {
		if p.layers == 0 {
			switch at := &p.state[u/tokens-p.Blocks.From]; *at {
			case "begun", "loaded":
				p.w.t.Errorf("block %d is the engine's, and is %s", u/tokens, *at)
			case "computed": // a claim by the word is told of later
			default:
				*at = "claimed"
			}
			continue
		}
		for b := range p.Blocks.Len() {
			k := (u-p.Layers.From)*p.Blocks.Len() + b
			if p.state[k] != "loaded" && p.state[k] != "computed" { // of a layer that did not come some of it may have
				p.state[k] = "claimed"
			}
		}
	}
}

// first is the first position, a token or a layer, that is neither loaded nor computed.
func (p *played) first() (at int, ok bool) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if p.layers == 0 {
		i := slices.IndexFunc(p.state, func(s string) bool { return s != "loaded" && s != "computed" })
		return (p.Blocks.From + i) * tokens, i >= 0
	}
	n := p.Blocks.Len()
	for l := range p.layers {
		here := p.state[l*n : (l+1)*n]
		if slices.ContainsFunc(here, func(s string) bool { return s != "loaded" && s != "computed" }) {
			return l + p.Layers.From, true
		}
	}
	return 0, false
}

// compute is the chain's engine: it claims from the head what is neither there nor on its way, until all is there.
func (p *played) compute(step int) {
	unit, last := tokens, p.Blocks.To*tokens
	if p.layers > 0 {
		unit, last = 1, p.Layers.To
	}
	rounds, was, next := 0, -1, last
	for idle := false; ; {
		at, more := p.first()
		if !more {
			break
		}
		if rounds++; at != was {
			rounds, was = 0, at
		}
		if rounds > 100_000 { // 100 s

			p.w.t.Errorf("claims get nowhere: at %d of %d, layers %v", at, last, p.Layers)
			return
		}
		if p.layers > 0 && next < at { // computing a layer that did not come goes through those below it
			at = next
		}
		c := p.claim(skep.Range{From: at, To: min(at+step*unit, last)}, idle)
		got := c.Granted
		if next = c.Next; next >= last {
			next = at
		}
		if idle = got.Len() == 0; idle {
			<-time.After(time.Millisecond)
			continue
		}
		p.given = append(p.given, got)
		took := time.Duration(got.Len()) * p.Compute.Cost.PerToken
		if p.layers > 0 {
			took = time.Duration(got.Len()*p.Blocks.Len()*tokens) * p.Compute.Cost.PerToken / time.Duration(p.layers)
		}
		<-time.After(took)
		if err := p.Computed(got, took, 0); err != nil {
			p.w.t.Error(err)
		}
		p.w.mu.Lock()
		for u := got.From; u < got.To; u += unit {
			if p.layers == 0 {
				p.state[u/tokens-p.Blocks.From] = "computed"
				continue
			}
			for b := range p.Blocks.Len() {
				p.state[(u-p.Layers.From)*p.Blocks.Len()+b] = "computed"
			}
		}
		p.w.mu.Unlock()
	}
	p.end = time.Now()
}

// claim asks for positions: by the word, where there is one and it says, else by a call.
func (p *played) claim(want skep.Range, idle bool) skep.Claim {
	load := skep.Busy
	if idle {
		load = skep.Idle
	}
	var c skep.Claim
	var err error
	if p.word != nil {
		c, err = p.word.Claim(p.w.t.Context(), want, load)
	} else {
		c, err = asSession{p: p}.Claim(p.w.t.Context(), 0, want.Subset(), load)
	}
	if err != nil {
		p.w.t.Error(err)
	}
	return c
}

// share has the chain's claims go by a word, too.
func (p *played) share() {
	word := new(atomic.Uint64)
	require.NoError(p.w.t, p.Share(word))
	unit, end := tokens, p.Blocks.To*tokens
	if p.layers > 0 {
		unit, end = 1, p.Layers.To
	}
	p.word = skep.NewClaimer(asSession{p: p}, 0, word, unit, end)
}

// asSession claims by a call.
type asSession struct {
	skep.Session
	p *played
}

func (s asSession) Claim(_ context.Context, _ int, want skep.Subset, load skep.EngineLoad) (skep.Claim, error) {
	p := s.p
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	r, _ := want.Bounds()
	c, err := p.Chain.Claim(r, load == skep.Idle, slices.Contains(p.state, "begun"))
	p.granted(c.Granted)
	return c, err
}
