package sched

import (
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout/twopointer"
)

// Options of New.
type Options struct {
	Start func(f func()) bool // runs f beside the caller; false where nothing is begun any more
	Done  <-chan struct{}     // closed when what was started is to end
	// Run is how many bytes a node is asked for at a time at least; 0: 1 MiB.
	Run int64
	// Rate is how many bytes a second a node is reckoned to give until something came; 0: 1e9.
	Rate float64
}

// Scheduler decides for all chains with a cost of one Store. It is safe for concurrent use.
type Scheduler struct {
	o     Options
	began time.Time
	kick  chan struct{} // one token: look what can be handed out

	mu     sync.Mutex
	two    *twopointer.Scheduler // nil: no chain had a cost yet
	chains map[int]*Chain        // by slot
	nodes  []node
	ways   map[string]int // the channel of a set of nodes
	boards []*Chain
	runs   bool
	count  skep.TwoPointerStats
}

// New makes a Scheduler. It starts nothing before there is a chain.
func New(o Options) *Scheduler {
	if o.Run == 0 {
		o.Run = fewestBytes
	}
	if o.Rate == 0 {
		o.Rate = firstRate
	}
	return &Scheduler{o: o, began: time.Now(), kick: make(chan struct{}, 1),
		chains: map[int]*Chain{}, ways: map[string]int{}}
}

const (
	onItsWay    = 512 // tokens of the Scheduler's chunk, as of a store
	pieceTokens = 64  // and of its piece
	// lookahead is how far below the tail a node with nothing to do is looked for, in tokens for each node of the chain.
	lookahead = 1024
	// mostWays is how many sets of nodes have a channel of their own; the others share that of all.
	mostWays = 256
	// firstLatency is from asking a node to its first byte.
	firstLatency = 500e-6
)

// Span is blocks [From, To) of a chain and the nodes that have them: the one to ask, and another one. Without nodes
// nobody has them.
type Span struct {
	From, To int
	Nodes    []int
}

// Spec is a chain with a cost.
type Spec struct {
	Compute     *skep.Compute
	Blocks      skep.Range
	BlockTokens int
	Layers      skep.Range // which of the shape's
	ByLayer     bool
	BlockBytes  float64   // of the chain's layers
	Deadline    time.Time // by skep.Steady; zero: none
	Nodes       int       // there are nodes 0 to Nodes-1
	Spans       []Span    // all of Blocks, in order
	Owner       Owner
}

// Owner is a session.
type Owner interface {
	// Look begins what may be begun (Chain.Begin), and answers what was claimed (Chain.Told). No lock of this
	// package's is held.
	Look()
}

func (s *Scheduler) now() time.Duration { return time.Since(s.began) }

// step takes an event. mu is held.
func (s *Scheduler) step(e twopointer.Event) (twopointer.Decision, error) {
	e.At = s.now()
	return s.two.Step(e)
}

// ready makes what decides when the first chain needs it. mu is held.
func (s *Scheduler) ready(nodes int) (err error) {
	for len(s.nodes) < nodes {
		s.nodes = append(s.nodes, node{rate: s.o.Rate})
	}
	if s.two != nil {
		return nil
	}
	s.two, err = twopointer.New(twopointer.Config{Chunk: onItsWay, Piece: pieceTokens,
		Channels: []twopointer.Channel{{BytesPerSecond: s.o.Rate * float64(max(nodes, 1)), Latency: firstLatency}}})
	return err
}

// way is the channel of the nodes that are asked for a chain. mu is held.
func (s *Scheduler) way(x *Spec) int {
	on := map[int]bool{}
	for _, p := range x.Spans {
		if len(p.Nodes) > 0 {
			on[p.Nodes[0]] = true
		}
	}
	var name []byte
	rate := 0.0
	for i := range s.nodes {
		if on[i] {
			name = strconv.AppendInt(append(name, ' '), int64(i), 10)
			rate += s.nodes[i].rate
		}
	}
	if w, ok := s.ways[string(name)]; ok || len(on) == 0 || len(s.ways) == mostWays {
		return w
	}
	w := s.two.AddChannel(twopointer.Channel{BytesPerSecond: rate, Latency: firstLatency})
	s.ways[string(name)] = w
	return w
}

// ByLayers says whether a chain that could go either way goes by layers, beside so many others of its session.
func (s *Scheduler) ByLayers(x *Spec, beside int) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.ready(x.Nodes); err != nil {
		return false, err
	}
	st := x.strand(s.now())
	st.Decided, st.Layers = false, x.Layers.Len()
	if s.two.ModeOf(st, beside) == twopointer.ByLayers {
		s.count.ByLayers++
		return true, nil
	}
	s.count.ByTokens++
	return false, nil
}

// strand describes a chain to the Scheduler.
func (x *Spec) strand(now time.Duration) *twopointer.Strand {
	k, b := x.Compute, x.BlockTokens
	st := &twopointer.Strand{Start: x.Blocks.From * b, Tokens: x.Blocks.To * b, Unit: b, Decided: true,
		Cost: twopointer.CostOf(k.Cost), BytesPerToken: max(x.BlockBytes, 1) / float64(b),
		Weight: k.Weight, Background: k.Background, LoadOnly: k.LoadOnly}
	if x.ByLayer {
		st.Mode, st.Layers, st.Start, st.Tokens = twopointer.ByLayers, x.Layers.Len(), 0, x.Blocks.Len()*b
	}
	st.After = st.Cost.Span(x.Blocks.To*b, x.Blocks.To*b+k.Suffix)
	st.Deadline = until(now, x.Deadline)
	return st
}

func until(now time.Duration, deadline time.Time) time.Duration {
	if deadline.IsZero() {
		return 0
	}
	return max(now+min(deadline.Sub(skep.Steady()), math.MaxInt64/2), 1) // one that is far away would come round
}

// Join takes a chain in. One whose load does not pay is declined: Chain.Declined says why.
//
// Errors: Invalid (what is said of computing), Closed.
func (s *Scheduler) Join(x Spec) (*Chain, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.ready(x.Nodes); err != nil {
		return nil, err
	}
	c := &Chain{Spec: x, s: s, unit: x.BlockTokens, queued: make([][]Run, x.Nodes+1)}
	if x.ByLayer {
		c.unit, c.off = 1, x.Layers.From
		c.missing, c.bad = make([]int, x.Layers.Len()), make([]bool, x.Layers.Len())
		for i := range c.missing {
			c.missing[i] = x.Blocks.Len()
		}
	}
	if !s.runs {
		if !s.o.Start(s.dispatch) {
			return nil, &skep.Error{Op: "restore", Kind: skep.Closed}
		}
		s.runs = true
	}
	st := x.strand(s.now())
	st.Channel = s.way(&x)
	d, err := s.step(twopointer.Event{Kind: twopointer.Join, New: st})
	if err != nil {
		s.wake()
		return nil, err
	}
	if c.bytes = st.BytesPerToken * float64(x.BlockTokens); x.ByLayer {
		c.bytes /= float64(max(x.Layers.Len(), 1))
	}
	if d.What == twopointer.Declined {
		s.count.Declined++
		c.over = true
		c.declined = &skep.Error{Op: "restore", Kind: skep.Claimed, Field: "load",
			Value: seconds(d.Expected), Limit: seconds(d.Compute)}
		c.refused = &refused{load: d.Expected, left: st.Tokens - st.Start}
		s.wake()
		return c, nil
	}
	c.slot, c.channel = d.Strand, st.Channel
	s.chains[c.slot] = c
	s.wake()
	return c, nil
}

func seconds(s float64) time.Duration { return time.Duration(s * 1e9) }

// refused is a chain whose load was declined, until it is computed to its end: then it is known what that took.
type refused struct {
	load float64 // what loading was expected to take
	left int     // tokens not computed yet
	took float64
}

// Stats is what restores beside computing did.
func (s *Scheduler) Stats() skep.TwoPointerStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.count
	if s.two != nil {
		turn, n := s.two.Crossover()
		st.Crossover, st.Reckoned = int64(turn), int64(n)
	}
	return st
}

// wake has somebody look what can be handed out.
func (s *Scheduler) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// dispatch hands out pieces as long as there are chains.
func (s *Scheduler) dispatch() {
	look := time.NewTicker(boardEvery)
	defer look.Stop()
	for {
		owners, boarded, more := s.handOut()
		for _, o := range owners {
			o.Look()
		}
		if !more {
			return
		}
		var looked <-chan time.Time
		if boarded {
			looked = look.C
		}
		select {
		case <-s.kick:
		case <-looked:
		case <-s.o.Done:
			return
		}
	}
}

// handOut asks for pieces while a node has nothing to do, and says which sessions have something to do then.
func (s *Scheduler) handOut() (owners []Owner, boarded, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.chains) == 0 {
		s.runs = false
		return nil, false, false
	}
	for _, c := range s.boards {
		c.read()
	}
	for w := range s.channels() {
		for s.wanted(w) {
			d, err := s.step(twopointer.Event{Kind: twopointer.Ready, Channel: w})
			if err != nil || d.What != twopointer.Load {
				break
			}
			c := s.chains[d.Strand]
			c.publish() // what the engine claimed meanwhile is off the piece
			if at, _ := s.two.State(c.slot); at.Tail < d.To {
				c.place(max(d.From, at.Tail), d.To)
			}
		}
	}
	for _, c := range s.chains {
		c.balance()
		c.publish()
		if (c.begins() || c.untold()) && !slices.Contains(owners, c.Owner) {
			owners = append(owners, c.Owner)
		}
	}
	return owners, len(s.boards) > 0, true
}

// channels are those with chains. mu is held.
func (s *Scheduler) channels() map[int]bool {
	on := map[int]bool{}
	for _, c := range s.chains {
		on[c.channel] = true
	}
	return on
}

// wanted says whether a node that has some of what comes next of a channel's chains has nothing to do. mu is held.
func (s *Scheduler) wanted(channel int) bool {
	for _, c := range s.chains {
		if c.channel == channel && c.wanted() {
			return true
		}
	}
	return false
}
