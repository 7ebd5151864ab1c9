package sim

import (
	"github.com/skepkv/skep/layout/twopointer"
)

// Request is a prompt: Prefix tokens of it are stored, Suffix tokens are not.
type Request struct {
	At     float64 // seconds; ignored in a closed loop
	Prefix int
	Suffix int
	Weight float64
}

// Item is one request's share of an engine's step on one stage.
type Item struct {
	Req      int
	From, To int     // tokens; the whole prompt's when by layers
	Layers   float64 // share of the stage's layers: 1, or less when by layers
	// LFrom and LTo are the layers computed, when by layers.
	LFrom, LTo int
	Suffix     bool
}

// Engine is one stage's engine. It forms steps: which requests compute how much next. It knows what is restored; what
// it may compute of a prefix it asks for.
type Engine struct {
	Kind   twopointer.Engine
	Stage  int
	Chunk  int  // RoundRobin: least tokens a request advances by
	Budget int  // tokens of a step
	Deep   bool // a pipeline: a request's next step may start before the last one is through
	// Ask claims up to want tokens (or layers) for request req on a stage.
	Ask func(req, stage, want int, idle bool) twopointer.Decision

	active []*job
}

// job is a request in the engine.
type job struct {
	id             int
	prefix, suffix int
	asked, done    int // suffix tokens launched, and computed
	restored       bool
	away           int // steps it is in
}

// Add puts a request into the engine, behind those there are.
func (e *Engine) Add(id, prefix, suffix int) {
	e.active = append(e.active, &job{id: id, prefix: prefix, suffix: suffix, restored: prefix == 0})
}

// Restored tells the engine that the request's prefix is there.
func (e *Engine) Restored(id int) {
	if j := e.job(id); j != nil {
		j.restored = true
	}
}

func (e *Engine) job(id int) *job {
	for _, j := range e.active {
		if j.id == id {
			return j
		}
	}
	return nil
}

// Active is how many requests are in the engine.
func (e *Engine) Active() int { return len(e.active) }

// Form is the next step; empty when there is nothing to do.
func (e *Engine) Form() []Item {
	if items := e.form(false); len(items) > 0 {
		return items
	}
	return e.form(true)
}

func (e *Engine) form(idle bool) []Item {
	var items []Item
	left, quantum := e.Budget, e.Budget
	if e.Kind == twopointer.RoundRobin && len(e.active) > 0 {
		quantum = max(e.Chunk, e.Budget/len(e.active))
	}
	for _, j := range e.active {
		if left <= 0 && e.Kind == twopointer.FirstCome {
			break
		}
		if j.away > 0 && !e.Deep {
			continue
		}
		want := quantum
		if e.Kind == twopointer.FirstCome {
			want = left
		}
		if j.restored {
			if n := min(want, j.suffix-j.asked); n > 0 {
				from := j.prefix + j.asked
				j.asked += n
				items = append(items, Item{Req: j.id, From: from, To: from + n, Layers: 1, Suffix: true})
				j.away++
				left -= n
			}
			continue
		}
		d := e.Ask(j.id, e.Stage, want, idle && len(items) == 0)
		if d.What != twopointer.Grant {
			continue
		}
		it := Item{Req: j.id, From: d.From, To: d.To, Layers: 1}
		if d.Mode == twopointer.ByLayers {
			it.LFrom, it.LTo, it.From, it.To = d.From, d.To, 0, j.prefix
		}
		items = append(items, it)
		j.away++
		left -= it.To - it.From
	}
	return items
}

// Done takes a step's items back and says which requests have their first token now.
func (e *Engine) Done(items []Item) (first []int) {
	for _, it := range items {
		j := e.job(it.Req)
		if j == nil {
			continue
		}
		j.away--
		if it.Suffix {
			j.done += it.To - it.From
		}
	}
	keep := e.active[:0]
	for _, j := range e.active {
		if j.restored && j.done >= j.suffix && j.away == 0 {
			first = append(first, j.id)
		} else {
			keep = append(keep, j)
		}
	}
	e.active = keep
	return first
}

// Drop takes a request out of the engine: it was cancelled.
func (e *Engine) Drop(id int) {
	for i, j := range e.active {
		if j.id == id {
			e.active = append(e.active[:i:i], e.active[i+1:]...)
			return
		}
	}
}
