package store

import (
	"context"
	"slices"
	"sync"

	"github.com/skepkv/skep"
)

// oracle knows what must, may and must not be stored.
type oracle struct {
	mu     sync.Mutex
	states []crashState
}

// crashState is one key's: the version that was acknowledged last (0: none is stored),
// and in doubt what was begun since. Of Cache blocks a crash may bring back what was
// acknowledged since the catalog was last synced.
type crashState struct {
	cur   int
	maybe []int
	older []int
	last  int // highest version ever used
}

func newOracle(spaces []*crashSpace) *oracle {
	n := 0
	for _, sp := range spaces {
		n += len(sp.slots)
	}
	return &oracle{states: make([]crashState, n)}
}

func (o *oracle) cloneLocked() *oracle {
	c := &oracle{states: slices.Clone(o.states)}
	for i := range c.states {
		c.states[i].maybe = slices.Clone(c.states[i].maybe)
		c.states[i].older = slices.Clone(c.states[i].older)
	}
	return c
}

// version draws the next version of a block: content that never was, so that what comes
// back is known for what it is.
func (o *oracle) version(x *crashSlot) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	st := &o.states[x.index]
	st.last++
	return st.last
}

func (o *oracle) begin(list []*crashSlot, versions []int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, x := range list {
		st := &o.states[x.index]
		st.maybe = append(st.maybe, versions[i])
	}
}

// syncedLocked notes that everything acknowledged so far is in the catalog for good.
func (o *oracle) syncedLocked() {
	for i := range o.states {
		o.states[i].older = nil
	}
}

func (st *crashState) ack(v int) {
	st.older = append(append(st.older, st.cur), st.maybe...)
	st.cur = v
	st.maybe = nil
}

// removed notes an acknowledged delete, which is synced.
func (st *crashState) removed() { st.cur, st.maybe, st.older = 0, nil, nil }

// refuse notes that v was not stored.
func (st *crashState) refuse(v int) {
	st.maybe = slices.DeleteFunc(st.maybe, func(m int) bool { return m == v })
}

// certain are the versions it may have now that are not absence.
func (st *crashState) certain() (out []int) {
	for _, v := range append([]int{st.cur}, st.maybe...) {
		if v != 0 && !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}

func (st *crashState) mustBeAbsent(except int) bool {
	return st.cur == 0 && !slices.ContainsFunc(st.maybe, func(v int) bool { return v != 0 && v != except })
}

func (st *crashState) allowed(durable, crashed bool) []int {
	out := append([]int{st.cur}, st.maybe...)
	if !durable {
		out = append(out, 0)
		if crashed {
			out = append(out, st.older...)
		}
	}
	return out
}

// compare requires of each block what the oracle says. After a crash what is seen is
// what there is from then on.
func (w *crashWorld) compare(ctx context.Context, s *Store, or *oracle, list []*crashSlot, crashed bool) {
	parts := []string{skep.PartKV, "state"}
	var chains []skep.Chain
	for _, x := range list {
		keys := []skep.Key{x.key}
		if x.space.spec.Chained {
			keys = x.path()
		}
		for _, p := range parts {
			if p == skep.PartKV || x.state {
				chains = append(chains, skep.Chain{Scope: x.scope(), Keys: keys, Blocks: skep.Range{From: len(keys) - 1, To: len(keys)}, Part: p})
			}
		}
	}
	out, err := fetchAll(ctx, s, chains)
	w.must(err, "restore")
	at := 0
	for _, x := range list {
		kv := out[at][len(out[at])-1]
		at++
		var extra *got
		if x.state {
			extra = &out[at][len(out[at])-1]
			at++
		}
		or.mu.Lock()
		st := &or.states[x.index]
		allowed := st.allowed(x.durable(), crashed)
		if kv.err != nil {
			switch k := skep.KindOf(kv.err); k {
			case skep.NotFound, skep.Evicted:
			default:
				or.mu.Unlock()
				w.fatal("%v missed with %v", x, kv.err)
			}
			or.mu.Unlock()
			there := x.space.spec.Chained && w.stored(ctx, s, x)
			or.mu.Lock()
			if !there && !slices.Contains(allowed, 0) {
				or.mu.Unlock()
				w.fatal("%v is lost, it must be one of versions %v", x, allowed)
			}
			// What a Cache block replaced goes in the same unsynced batch: a crash may bring
			// both back to where they were.
			if there && x.durable() && !slices.ContainsFunc(allowed, func(v int) bool { return v != 0 }) {
				or.mu.Unlock()
				w.fatal("%v is there, although hidden, and must not be", x)
			}
			if crashed && there { // and hidden: nobody can see in which version
				some := slices.DeleteFunc(allowed, func(v int) bool { return v == 0 })
				*st = crashState{cur: some[0], maybe: slices.Clone(some[1:]), last: st.last}
			} else if crashed {
				*st = crashState{last: st.last}
			}
			or.mu.Unlock()
			continue
		}
		v := x.versionOf(kv.data, st.last)
		if !slices.Contains(allowed, v) {
			or.mu.Unlock()
			w.fatal("%v has version %d (%d bytes), must be one of %v", x, v, len(kv.data), allowed)
		}
		if extra != nil {
			if extra.err != nil && skep.KindOf(extra.err) != skep.NotFound && skep.KindOf(extra.err) != skep.Evicted {
				or.mu.Unlock()
				w.fatal("%v: part state: %v", x, extra.err)
			}
			if extra.err == nil && string(extra.data) != string(x.content("state", v)) {
				or.mu.Unlock()
				w.fatal("%v: part state is not of version %d", x, v)
			}
		}
		if crashed {
			*st = crashState{cur: v, last: st.last}
		}
		or.mu.Unlock()
	}
}

// versionOf is the version whose bytes data are, -1 for none.
func (c *crashSlot) versionOf(data []byte, last int) int {
	for v := last; v > 0; v-- {
		if string(data) == string(c.content(skep.PartKV, v)) {
			return v
		}
	}
	return -1
}
