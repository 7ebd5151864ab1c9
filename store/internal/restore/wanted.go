package restore

import (
	"github.com/skepkv/skep/store/internal/locks"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/memory"
)

// wanted is which blocks the restores under way still want, so that what one of them reads from drives is kept for the
// others: who shares a prefix reads it once, though they come to it at different times (at the same time, join.go has
// them share the read).
//
//	begin ──▶ wants ──▶ a chunk was read and checked: others want it? ──▶ the DRAM tier (exposed.go: a copy, where
//	                                                                      others can write what was read)
//	answered, however ──▶ one that wants it less
//
// Nobody waits for anybody: a copy that is not there (no room, evicted, by layers, no DRAM tier) is read again. Only
// chains that are restored by two pointers or are several of a session are entered, and blocks that are
// asked for whole.
type wanted struct {
	mu locks.Mutex[locks.Wanted]
	m  map[memory.ID]int32
}

// want enters the chains of a session that begins. REQUIRES: ses.mu, nothing answered yet.
func (rs *Restorer) want(ses *session) {
	if rs.Cache == nil || ses.ahead != nil {
		return
	}
	rs.wanted.mu.Lock()
	defer rs.wanted.mu.Unlock()
	for _, c := range ses.chains {
		whole := !c.Direction.ByLayer() && c.Layers.Len() == c.Geometry.Layers() && c.Heads.IsAll()
		if !whole || c.Compute == nil && len(ses.chains) < 2 {
			continue
		}
		if rs.wanted.m == nil {
			rs.wanted.m = map[memory.ID]int32{}
		}
		c.wants = make([]memory.ID, c.Blocks.Len())
		for i := range c.wants {
			c.wants[i] = memory.IDOf(c.fingerprint(rs.Names, c.Blocks.From+i), c.Part)
			rs.wanted.m[c.wants[i]]++
		}
	}
}

// answered is told that chunk i of c is not wanted any more.
func (w *wanted) answered(c *chain, i int) {
	if c.wants == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.m[c.wants[i]]--; w.m[c.wants[i]] <= 0 {
		delete(w.m, c.wants[i])
	}
}

// byOthers says whether chains besides that of ch and of those who get it with ch want its block.
func (w *wanted) byOthers(ch *chunk, with []*chunk) bool {
	if !w.any() {
		return false
	}
	id, not := memory.IDOf(ch.at.FP, ch.chain.Part), int32(0)
	for _, o := range with {
		if o.chain.wants != nil {
			not++
		}
	}
	if ch.chain.wants != nil {
		not++
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.m[id] > not
}

func (w *wanted) any() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.m) > 0
}

// keeps says whether the DRAM tier is to have what ch has read and checked: others want it. What
// is lent comes there anyway. with are those who get it with ch.
func (rs *Restorer) keeps(ch *chunk, with []*chunk) bool {
	f := ch.at
	whole := len(ch.spans) == 1 && ch.spans[0] == layout.Span{Off: 0, Len: f.Size}
	if rs.Cache == nil || !whole || ch.lends() || f.Size == 0 || f.Inline != nil || !rs.wanted.byOthers(ch, with) {
		return false
	}
	return !rs.Cache.Has(memory.IDOf(f.FP, ch.chain.Part))
}

// near says that a chunk did not come from drives now: what it took says nothing of their speed.
func near(out *skep.Chunk) bool { return out.Err == nil && out.Tier != skep.TierDevice }
