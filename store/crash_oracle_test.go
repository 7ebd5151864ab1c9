package store

import (
	"context"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep"
)

// oracle knows what must, may and must not be stored.
type oracle struct {
	mu     sync.Mutex
	acked  uint64 // acknowledgements so far
	states []crashState
}

// crashState is one key's: the version that was acknowledged last (0: none is stored),
// and in doubt what was begun since. Of Cache blocks a crash may bring back what was
// acknowledged since the catalog was last synced.
type crashState struct {
	cur   int
	maybe []int
	older []past
	limbo []int // begun before a crash, and not there after it: the devices may hold it still, for a rebuild
	ever  []int // acknowledged since the last removal: what the devices alone may bring back of a Cache block
	drops int   // accepted blocks that will drop this one when their commit comes
	last  int   // highest version ever used
}

// past is a version that is no more, since an acknowledgement.
type past struct {
	version int
	ack     uint64
}

func newOracle(spaces []*crashSpace) *oracle {
	n := 0
	for _, sp := range spaces {
		n += len(sp.slots)
	}
	return &oracle{states: make([]crashState, n)}
}

func (o *oracle) cloneLocked() *oracle {
	c := &oracle{acked: o.acked, states: slices.Clone(o.states)}
	for i := range c.states {
		c.states[i].maybe = slices.Clone(c.states[i].maybe)
		c.states[i].older = slices.Clone(c.states[i].older)
		c.states[i].limbo = slices.Clone(c.states[i].limbo)
		c.states[i].ever = slices.Clone(c.states[i].ever)
	}
	return c
}

// digest tells oracles that demand different things apart.
func (o *oracle) digest() uint64 {
	var b []byte
	put := func(v int) { b = binary.LittleEndian.AppendUint32(b, uint32(v)) }
	for i := range o.states {
		st := &o.states[i]
		put(st.cur)
		put(st.drops)
		put(len(st.maybe))
		for _, v := range st.maybe {
			put(v)
		}
		for _, p := range st.older {
			put(p.version)
		}
		put(-1)
	}
	return xxh3.Hash(b)
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

// begin notes what may happen from now on. It gives what was acknowledged before.
func (o *oracle) begin(list []*crashSlot, versions []int) uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, x := range list {
		st := &o.states[x.index]
		st.maybe = append(st.maybe, versions[i])
	}
	return o.acked
}

// syncedLocked notes that everything acknowledged before a call that synced the catalog
// is there for good. begun is what the call's begin gave.
func (o *oracle) syncedLocked(begun uint64) {
	for i := range o.states {
		st := &o.states[i]
		st.older = slices.DeleteFunc(st.older, func(p past) bool { return p.ack <= begun })
	}
}

// ackLocked notes that v is there, or 0 that nothing is.
func (o *oracle) ackLocked(x *crashSlot, v int) {
	o.acked++
	st := &o.states[x.index]
	for _, was := range append([]int{st.cur}, st.maybe...) {
		st.older = append(st.older, past{was, o.acked})
	}
	st.ever = append(st.ever, append([]int{v}, st.maybe...)...)
	if x.durable() {
		st.limbo = nil
	}
	st.cur = v
	st.maybe = nil
}

// removed notes an acknowledged delete, which is synced.
// Of a block that was accepted only, the record reaches the drives with the commit and the
// tombstone some time after it: until then a rebuild may bring the block back.
func (st *crashState) removed() {
	accepted := slices.DeleteFunc(st.maybe, func(v int) bool { return v == 0 })
	*st = crashState{drops: st.drops, last: st.last, limbo: accepted}
}

// seen is the state after a crash, when what is there is one of versions. A Cache block
// that is not there may have been evicted since the store was opened: the next crash may
// undo that, until the catalog is synced.
func (o *oracle) seen(x *crashSlot, versions ...int) {
	st := &o.states[x.index]
	next := crashState{cur: versions[0], maybe: slices.Clone(versions[1:]), last: st.last, limbo: st.limbo, ever: append(st.ever, versions...)}
	for _, v := range append([]int{st.cur}, st.maybe...) {
		if v != 0 && !slices.Contains(versions, v) {
			next.limbo = append(next.limbo, v)
		}
	}
	if !x.durable() && versions[0] == 0 {
		for _, v := range st.allowed(false, true, false) {
			next.older = append(next.older, past{v, o.acked})
		}
	}
	*st = next
}

// refuse notes that v was not stored.
func (st *crashState) refuse(v int) {
	st.maybe = slices.DeleteFunc(st.maybe, func(m int) bool { return m == v })
}

// dropped notes that what was to drop this one has been committed, or has not.
func (st *crashState) dropped() {
	if st.drops > 0 {
		st.drops = 0
		st.maybe = append(st.maybe, 0)
	}
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

func (st *crashState) allowed(durable, crashed, rebuilt bool) []int {
	out := append([]int{st.cur}, st.maybe...)
	if !durable || st.drops > 0 {
		out = append(out, 0)
	}
	if !durable && crashed {
		for _, p := range st.older {
			out = append(out, p.version)
		}
	}
	if rebuilt {
		out = append(out, st.limbo...)
		if !durable {
			out = append(out, st.ever...)
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
				chains = append(chains, skep.Chain{Scope: x.scope(), Keys: keys, Blocks: skep.Only(len(keys)-1, len(keys)), Part: p})
			}
		}
	}
	out, err := fetchAll(ctx, s, chains)
	if w.failed(err, "restore") {
		return
	}
	at := 0
	for _, x := range list {
		kv := out[at][len(out[at])-1]
		at++
		var extra *got
		if x.state {
			extra = &out[at][len(out[at])-1]
			at++
		}
		if what := w.judge(ctx, s, or, x, kv, extra, crashed); what != "" {
			w.fatal("%v %s", x, what)
		}
	}
}

// judge says what is wrong with what came of one block.
func (w *crashWorld) judge(ctx context.Context, s *Store, or *oracle, x *crashSlot, kv got, extra *got, crashed bool) string {
	there := false
	if kv.err != nil {
		k := skep.KindOf(kv.err)
		if w.faulty && (k == skep.DeviceFailed || k == skep.Failed || w.injected && (k != skep.NotFound && k != skep.Evicted || s.rows.Failed() != nil)) {
			return ""
		}
		if k != skep.NotFound && k != skep.Evicted {
			return sprintf("missed with %v", kv.err)
		}
		if x.space.spec.Chained {
			known := false // in which version nobody can see, when it is there and hidden
			if there, known = w.stored(ctx, s, x); !known {
				return ""
			}
		}
	}
	or.mu.Lock()
	defer or.mu.Unlock()
	st := &or.states[x.index]
	allowed := st.allowed(x.durable(), crashed, w.rebuilt)
	if kv.err != nil {
		if !there && !slices.Contains(allowed, 0) {
			return sprintf("is lost, it must be one of versions %v", allowed)
		}
		some := slices.DeleteFunc(slices.Clone(allowed), func(v int) bool { return v == 0 })
		if there && len(some) == 0 {
			return "is there, although hidden, and must not be"
		}
		if crashed && there && len(some) > 0 {
			or.seen(x, some...)
		} else if crashed {
			or.seen(x, 0)
		}
		return ""
	}
	v := x.versionOf(kv.data, st.last)
	if !slices.Contains(allowed, v) {
		return sprintf("has version %d (%d bytes), must be one of %v", v, len(kv.data), allowed)
	}
	if extra != nil {
		if k := skep.KindOf(extra.err); extra.err != nil && k != skep.NotFound && k != skep.Evicted && !w.faulty {
			return sprintf("part state: %v", extra.err)
		}
		if extra.err == nil && string(extra.data) != string(x.content("state", v)) {
			return sprintf("part state is not of version %d", v)
		}
	}
	if crashed {
		or.seen(x, v)
	}
	return ""
}

// versionOf is the version whose bytes data are, -1 for none.
func (c *crashSlot) versionOf(data []byte, last int) int {
	if len(data) < 4 {
		return -1
	}
	v := int(binary.LittleEndian.Uint32(data))
	if v < 1 || v > last || string(data) != string(c.content(skep.PartKV, v)) {
		return -1
	}
	return v
}
