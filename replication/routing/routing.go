package routing

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	"github.com/skepkv/skep"
)

// Limits of a question, and what a Router holds.
const (
	MaxEngines = 64      // of a question
	MaxName    = 128     // bytes of an engine's name
	MaxKnown   = 256     // engines that a Router remembers
	MaxBlocks  = 1 << 20 // of all of them together, likewise
)

// What a question does not say.
const (
	DefaultRate   = 5000 // tokens a second
	DefaultBlocks = 4096
	DefaultGoal   = 2 * time.Second
)

// Engine is one that may take the request.
type Engine struct {
	Name   string
	Wait   time.Duration // until it begins with a request that comes now
	Rate   float64       // tokens a second that it computes of a prompt; 0: DefaultRate
	Blocks int           // blocks that its own cache has room for; 0: DefaultBlocks
}

// Question is a request that waits for an engine.
type Question struct {
	Owner       string     // whose engines and prompts they are: others' are told apart, whatever their names
	Keys        []skep.Key // its chain, first block first
	BlockTokens int
	Tokens      int           // of the prompt; 0: those of Keys
	Stored      int           // leading blocks that a store has
	Load        time.Duration // to restore all of those
	Goal        time.Duration // to the first token; 0: DefaultGoal
	Engines     []Engine
}

// Answer is where it should go.
type Answer struct {
	Engine  int           // of the question's
	Held    int           // leading blocks that it should have itself
	Expect  time.Duration // to the first token
	Choices [2]int        // the two engines of the anchor; the same one twice where there is one
	Way     Way
}

// Way is why an engine was taken.
type Way uint8

// The ways.
const (
	Affinity Way = iota // it holds more, and is in time
	Load                // the other one of the two would be late
	Relief              // both of the two would be late
)

// String implements fmt.Stringer.
func (w Way) String() string {
	switch w {
	case Affinity:
		return "affinity"
	case Load:
		return "load"
	case Relief:
		return "relief"
	}
	return fmt.Sprintf("way %d", uint8(w))
}

// Validate says what of the question cannot be.
//
// Errors: Invalid.
func (q *Question) Validate() error {
	const op = "route"
	switch {
	case len(q.Keys) == 0 || len(q.Keys) > skep.MaxChainKeys:
		return skep.Invalidf(op, "keys", len(q.Keys), fmt.Sprintf("1 to %d", skep.MaxChainKeys))
	case q.BlockTokens < 1:
		return skep.Invalidf(op, "block tokens", q.BlockTokens, "at least 1")
	case q.Tokens < 0:
		return skep.Invalidf(op, "tokens", q.Tokens, "at least 0")
	case q.Stored < 0 || q.Stored > len(q.Keys):
		return skep.Invalidf(op, "stored blocks", q.Stored, fmt.Sprintf("0 to %d", len(q.Keys)))
	case q.Load < 0:
		return skep.Invalidf(op, "load", q.Load, "at least 0")
	case q.Goal < 0:
		return skep.Invalidf(op, "goal", q.Goal, "at least 0")
	case len(q.Engines) == 0 || len(q.Engines) > MaxEngines:
		return skep.Invalidf(op, "engines", len(q.Engines), fmt.Sprintf("1 to %d", MaxEngines))
	}
	names := make(map[string]bool, len(q.Engines))
	for _, e := range q.Engines {
		switch {
		case e.Name == "" || len(e.Name) > MaxName:
			return skep.Invalidf(op, "engine's name, bytes", len(e.Name), fmt.Sprintf("1 to %d", MaxName))
		case names[e.Name]:
			return skep.Invalidf(op, "engine", e.Name, "named once")
		case e.Wait < 0:
			return skep.Invalidf(op, "wait", e.Wait, "at least 0")
		case !(e.Rate >= 0): // nor no number
			return skep.Invalidf(op, "tokens a second", e.Rate, "at least 0")
		case e.Blocks < 0:
			return skep.Invalidf(op, "blocks of an engine", e.Blocks, "at least 0")
		}
		names[e.Name] = true
	}
	return nil
}

// Router answers questions of one set of engines, and remembers what it answered. It is safe for concurrent use.
type Router struct {
	mu   sync.Mutex
	hot  hot
	held holders
}

// New is a Router that knows nothing yet.
func New() *Router { return &Router{hot: newHot(), held: holders{of: map[string]*holding{}}} }

// Route says where a request should go, and takes it to be sent there.
//
// Errors: Invalid.
func (r *Router) Route(q *Question) (Answer, error) {
	if err := q.Validate(); err != nil {
		return Answer{}, err
	}
	chain, owner := make([]uint64, len(q.Keys)), draw(0, q.Owner)
	for i := range q.Keys {
		chain[i] = owner ^ binary.LittleEndian.Uint64(q.Keys[i][:])
	}
	named := func(engine int) string { return nameOf(q.Owner, q.Engines[engine].Name) }
	r.mu.Lock()
	defer r.mu.Unlock()
	anchor := r.hot.anchor(chain, len(q.Engines))
	a := decide(q, Draws(chain[anchor], q.Engines), anchor, func(engine int) int {
		return r.held.leading(named(engine), chain)
	})
	r.held.note(named(a.Engine), cmp.Or(q.Engines[a.Engine].Blocks, DefaultBlocks), chain)
	return a, nil
}

// Draws are the two engines of an anchor, the better draw first.
func Draws(anchor uint64, engines []Engine) (two [2]int) {
	var best [2]uint64
	for i := range engines {
		d := draw(anchor, engines[i].Name)
		switch {
		case i == 0:
			best[0], two = d, [2]int{}
		case d > best[0]:
			best[1], two[1] = best[0], two[0]
			best[0], two[0] = d, i
		case two[0] == two[1] || d > best[1]:
			best[1], two[1] = d, i
		}
	}
	return two
}

// draw is an engine's for an anchor: as good as random, and the same every time.
func draw(anchor uint64, engine string) uint64 {
	h := fnv.New64a()
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], anchor)
	h.Write(b[:])
	h.Write([]byte(engine))
	x := h.Sum64() // FNV's upper bits are poor where only the end differs
	x ^= x >> 32
	x *= 0xd6e8feb86659fd93
	x ^= x >> 32
	x *= 0xd6e8feb86659fd93
	return x ^ x>>32
}

// decide takes one of the two engines, or of all. The first blocks, so many, are hot: an engine that lacks them will
// have them soon, so they are no reason to go to one that has.
func decide(q *Question, two [2]int, hot int, held func(engine int) int) Answer {
	goal := cmp.Or(q.Goal, DefaultGoal)
	first, second := two[0], two[1]
	h := [2]int{held(first), held(second)}
	x := [2]time.Duration{q.expect(first, h[0]), q.expect(second, h[1])}
	near, quick := 0, 0 // of the two: who holds more, who is there first
	if m := [2]int{max(h[0], hot), max(h[1], hot)}; m[1] > m[0] || m[1] == m[0] && x[1] < x[0] {
		near = 1
	}
	if x[1] < x[0] {
		quick = 1
	}
	a := Answer{Choices: two, Engine: two[near], Held: h[near], Expect: x[near]}
	switch {
	case x[near] <= goal:
		return a
	case x[quick] <= goal:
		a.Engine, a.Held, a.Expect, a.Way = two[quick], h[quick], x[quick], Load
		return a
	}
	for i := range q.Engines {
		n := held(i)
		if t := q.expect(i, n); t < a.Expect {
			a.Engine, a.Held, a.Expect, a.Way = i, n, t, Relief
		}
	}
	if a.Engine == first || a.Engine == second {
		a.Way = Load
	}
	return a
}

// expect is how long an engine that holds so many leading blocks needs until the first token.
func (q *Question) expect(engine, held int) time.Duration {
	e := &q.Engines[engine]
	rate := e.Rate
	if rate == 0 {
		rate = DefaultRate
	}
	compute := func(tokens int) time.Duration {
		s := float64(max(tokens, 0)) / rate
		return time.Duration(min(s, maxSeconds) * float64(time.Second))
	}
	tokens := max(q.Tokens, 0)
	if tokens == 0 {
		tokens = len(q.Keys) * q.BlockTokens
	}
	rest := compute(tokens - held*q.BlockTokens)
	if q.Stored > held {
		load := time.Duration(float64(q.Load) * float64(q.Stored-held) / float64(q.Stored))
		rest = min(rest, load+compute(tokens-q.Stored*q.BlockTokens))
	}
	return e.Wait + rest
}

// maxSeconds is more than anybody waits.
const maxSeconds = 1e6
