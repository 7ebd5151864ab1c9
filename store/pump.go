package store

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/crypt"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/memory"
	"github.com/skepkv/skep/store/segment"
)

// found is where a block of a chain lies, and what its part's bytes must hash to.
type found struct {
	fp       index.Fingerprint
	block    int   // index into the chain's keys
	err      error // why it is a miss
	group    *group
	loc      layout.Location
	copies   []layout.Location
	stored   int64 // bytes of a copy on its devices
	partOff  int64 // of the part in the stored form
	size     int64
	sums     segio.Sums    // its own: of what lies on the devices
	opener   *crypt.Opener // of a sealed block; nil: it is not
	inline   []byte
	packed   bool           // it shares a page
	memory   *memory.Handle // the part is in the DRAM tier
	left     int            // chunks that still need it
	recalled sync.Once      // sums of what is in memory were looked for
}

// chunk is one chunk away: queued, being read, being checked.
type chunk struct {
	ses       *session
	chain     *chain
	item      int
	at        *found
	out       skep.Chunk
	spans     []layout.Span // of the part, asked for
	pieces    []piece       // what is read, by offset
	reads     []*read
	left      atomic.Int32 // reads not done
	failed    atomic.Pointer[error]
	cancelled atomic.Bool
	abandoned bool      // it could not be prepared
	private   bool      // it is read into the store's own memory, whatever its destination
	patient   bool      // it may wait for memory while it holds some
	trouble   *troubles // what went wrong so far
	bytes     int64
	issued    time.Time
	lent      int64 // bytes of store memory given out with the chunk
	temp      []*memory.Buffer
	leads     bool // others may join it: join.go
	joined    bool // another chunk's reads brought it
	wanted    bool // another chunk took its bytes

	before, after *chunk // session's list, by issue
}

// piece is bytes of the part, where they land.
type piece struct {
	off     int64
	mem     []byte
	inPlace bool   // the destination itself
	page    []byte // of a packed block: what it was read into, mem being a part of it
	copy    uint8
	read    *read
}

// pieces are pieces of one part, by offset.
type pieces []piece

func (p pieces) Len() int                            { return len(p) }
func (p pieces) Piece(i int) (off int64, mem []byte) { return p[i].off, p[i].mem }

// pump issues chunks until none waits.
func (ses *session) pump() {
	defer func() {
		ses.mu.Lock()
		ses.pumping = false
		for _, c := range ses.chains {
			for _, f := range c.found {
				ses.s.letGo(f)
			}
			c.found = nil
		}
		ses.backLocked()
		ses.mu.Unlock()
		ses.signal()
	}()
	var batch []*chunk
	for {
		batch = batch[:0]
		ses.mu.Lock()
		for ses.left > 0 && !ses.ending && (ses.bytes >= ses.window || !ses.waitingLocked()) {
			ses.wake.Wait()
		}
		if ses.left == 0 || ses.ending {
			for ses.away > 0 { // what they hold must outlive them
				ses.wake.Wait()
			}
			ses.mu.Unlock()
			return
		}
		var c *chain
		for len(batch) < pumpBatch && ses.bytes < ses.window {
			if c = ses.bestLocked(); c == nil {
				break
			}
			p, i := c.next, c.InOrder(c.next)
			c.next++
			if c.items[i] != itemWaiting {
				continue
			}
			if !ses.ensureLocked(c, p, i) {
				break // the lock was let go: look again at what is best
			}
			if ch := ses.chunkLocked(c, i); ch != nil {
				batch = append(batch, ch)
			}
		}
		ses.traced.issue()
		ses.mu.Unlock()
		ses.s.issue(batch)
	}
}

// pumpBatch is how many chunks are prepared before their reads are queued together.
const pumpBatch = 32

// waitingLocked says whether any chunk waits to be issued. REQUIRES: ses.mu.
func (ses *session) waitingLocked() bool {
	for _, c := range ses.chains {
		if c.left > 0 && c.next < c.limit() {
			return true
		}
	}
	return false
}

// bestLocked is the chain whose turn it is: highest priority, then earliest deadline,
// then the one that has had least of its chunks issued. REQUIRES: ses.mu.
func (ses *session) bestLocked() *chain {
	var best *chain
	for _, c := range ses.chains {
		if c.left == 0 || c.next >= c.limit() {
			continue
		}
		if best == nil || c.before(best) {
			best = c
		}
	}
	return best
}

func (c *chain) before(o *chain) bool {
	if c.priority != o.priority {
		return c.priority > o.priority
	}
	if !c.deadline.Equal(o.deadline) {
		return !c.deadline.IsZero() && (o.deadline.IsZero() || c.deadline.Before(o.deadline))
	}
	return c.next < o.next
}

// lookahead is how many blocks are located at a time in the block directions.
const lookahead = 128

// ensureLocked makes sure that the block of item i is located. It gives up the lock
// while it reads the catalog and then returns false, with the item to be taken
// again. REQUIRES: ses.mu.
func (ses *session) ensureLocked(c *chain, p, i int) bool {
	block, _ := c.Chunk(i)
	if c.found[block-c.Blocks.From] != nil {
		return true
	}
	var want []int
	if c.Direction.ByLayer() {
		for b := range c.found {
			want = append(want, b)
		}
	} else {
		for q := p; q < len(c.items) && len(want) < lookahead; q++ {
			j := c.InOrder(q)
			if c.items[j] == itemWaiting && c.found[j] == nil {
				want = append(want, j)
			}
		}
	}
	c.next = p
	ses.mu.Unlock()
	list := ses.s.locate(c, want)
	ses.mu.Lock()
	for k, b := range want {
		if c.Direction.ByLayer() {
			list[k].left = c.Layers.Len()
		} else {
			list[k].left = 1
		}
		c.found[b] = list[k]
	}
	return false
}

// chunkLocked takes item i of c: answers it at once when its block is not there,
// else gives the chunk to be issued. REQUIRES: ses.mu.
func (ses *session) chunkLocked(c *chain, i int) *chunk {
	block, layers := c.Chunk(i)
	b := block - c.Blocks.From
	f := c.found[b]
	if f.err != nil {
		ses.answerLocked(c, i, skep.Chunk{Err: f.err}, itemMissed)
		ses.doneWithLocked(c, b)
		return nil
	}
	ch := &chunk{ses: ses, chain: c, item: i, at: f, issued: time.Now()}
	ch.out.Layers = layers
	spans, err := c.Spans(ch.spans, layers, f.size)
	if err != nil {
		ses.answerLocked(c, i, skep.Chunk{Err: err}, itemMissed)
		ses.doneWithLocked(c, b)
		return nil
	}
	ch.spans = spans
	for _, s := range spans {
		ch.out.Bytes += s.Len
	}
	ch.bytes = ch.out.Bytes
	c.items[i] = itemAway
	c.away++
	ses.away++
	ses.bytes += ch.bytes
	if ch.before = ses.newest; ch.before != nil {
		ch.before.after = ch
	} else {
		ses.oldest = ch
	}
	ses.newest = ch
	return ch
}

// doneWithLocked lets go of a block once no chunk needs it. REQUIRES: ses.mu.
func (ses *session) doneWithLocked(c *chain, b int) {
	f := c.found[b]
	if f.left--; f.left > 0 {
		return
	}
	ses.s.letGo(f)
	if !c.Direction.ByLayer() {
		f.sums.Sums, f.inline, f.opener = nil, nil, nil
	}
}

// letGo unpins what f holds. Safe to call twice.
func (s *Store) letGo(f *found) {
	if f == nil {
		return
	}
	if f.group != nil {
		s.unpin(f.group)
		f.group = nil
	}
	if f.memory != nil {
		f.memory.Release()
		f.memory = nil
	}
}

// finish takes a chunk back: it is checked, or has failed, and nobody writes to its
// destination any more.
func (ch *chunk) finish(err error) {
	ses, c := ch.ses, ch.chain
	for _, b := range ch.temp {
		if b != nil {
			b.Release()
		}
	}
	ch.temp = nil
	ses.mu.Lock()
	defer ses.mu.Unlock()
	ses.traced.land(ch.out.Bytes, err)
	if c.items[ch.item] == itemAway {
		if err != nil {
			ses.answerLocked(c, ch.item, skep.Chunk{Err: err}, itemMissed)
		} else {
			ses.answerLocked(c, ch.item, ch.out, itemDone)
			if ses.ahead != nil {
				ses.s.prefetched(ch, ses.ahead)
			} else if ch.out.Tier == skep.TierDevice && !ch.joined {
				ses.fromDevices += ch.out.Bytes
				ses.lastLanding = time.Now()
			}
		}
	} else if ch.out.Free != nil { // answered before it came: nobody wants the bytes
		go ch.out.Free()
	}
	if ch.before != nil {
		ch.before.after = ch.after
	} else {
		ses.oldest = ch.after
	}
	if ch.after != nil {
		ch.after.before = ch.before
	} else {
		ses.newest = ch.before
	}
	c.away--
	ses.away--
	ses.bytes -= ch.bytes - ch.lent
	if !ses.ending || c.found != nil {
		ses.doneWithLocked(c, c.blockOf(ch.item))
	}
	ses.backLocked()
	if ses.bytes < ses.window*3/4 || ses.away == 0 || ses.left == 0 {
		ses.wake.Broadcast()
	}
	if ses.left == 0 && ses.away == 0 {
		select {
		case ses.landed <- struct{}{}:
		default:
		}
	}
}

func (c *chain) blockOf(item int) int {
	block, _ := c.Chunk(item)
	return block - c.Blocks.From
}

// backLocked tells who waits that chunks have come back. REQUIRES: ses.mu.
func (ses *session) backLocked() {
	for _, w := range ses.idle {
		select {
		case w <- nil:
		default:
		}
	}
	ses.idle = ses.idle[:0]
}

// returned is called when a reader gives lent data back.
func (ses *session) returned(bytes int64) {
	ses.mu.Lock()
	ses.bytes -= bytes
	ses.wake.Broadcast()
	ses.mu.Unlock()
}

// locate finds blocks of a chain and pins the groups they lie in.
func (s *Store) locate(c *chain, blocks []int) []*found {
	out := make([]*found, len(blocks))
	list := make([]found, len(blocks))
	todo := make([]int, len(blocks))
	for k, b := range blocks {
		f := &list[k]
		out[k] = f
		f.block = c.Blocks.From + b
		f.fp = c.fingerprintOf(s, f.block)
		todo[k] = k
	}
	locs := make([]layout.Location, 0, len(blocks))
	at := make([]int, 0, len(blocks))
	for range 8 {
		locs, at = locs[:0], at[:0]
		for _, k := range todo {
			if loc, ok := s.pinBlock(c, &list[k]); ok {
				locs = append(locs, loc)
				at = append(at, k)
			}
		}
		err := s.records(locs, func(i int, rec *segment.Record) error {
			f := &list[at[i]]
			f.err = s.describeFound(c, f, rec)
			return nil
		})
		if skep.KindOf(err) == skep.Failed {
			err = s.recordsFromLogs(c, list, at)
		}
		todo = todo[:0]
		for _, k := range at {
			f := &list[k]
			if f.err == errUnread {
				// The cleaner moves a block's row before it moves the index: look again.
				f.err = errGone
				if err != nil {
					f.err = err
				} else {
					todo = append(todo, k)
				}
			}
			if f.err != nil {
				s.letGo(f)
			}
		}
		if len(todo) == 0 {
			break
		}
		s.awaitChanges()
	}
	return out
}

var (
	errGone      = &skep.Error{Op: "restore", Kind: skep.Evicted}
	errNotStored = &skep.Error{Op: "restore", Kind: skep.NotFound}
	errUnread    = &skep.Error{Op: "restore", Kind: skep.Damaged, Field: "record"}
)

// pinBlock finds where f's block is. True: it is on devices, its group is pinned and
// its record is to be read; else f is complete: in memory, or a miss.
func (s *Store) pinBlock(c *chain, f *found) (layout.Location, bool) {
	f.err = nil
	for range 8 {
		e, ok := s.index.Resolve(f.fp)
		if !ok || !e.Rooted {
			f.err = errNotStored
			return layout.Location{}, false
		}
		if h := s.cachedPart(f.fp, c.Part); h != nil {
			if s.describeCached(c, f, h) {
				return layout.Location{}, false
			}
			h.Release()
		}
		if e.Location == 0 {
			continue // accepted: its commit has just moved it
		}
		loc := layout.Unpack(e.Location)
		if g := s.space.pin(loc.Group); g != nil {
			// It may have moved between the two: then the group may be anything by now.
			if again, ok := s.index.Resolve(f.fp); ok && again.Location == e.Location {
				f.group, f.loc, f.err = g, loc, errUnread
				return loc, true
			}
			s.unpin(g)
		}
	}
	f.err = errGone
	return layout.Location{}, false
}

// describeFound takes from a block's record what reading its part needs.
func (s *Store) describeFound(c *chain, f *found, rec *segment.Record) error {
	if rec.Key != c.Keys[f.block] || rec.Instance != c.ns.Instance || namespaces.Tag(rec.SaltTag) != c.tag {
		return &skep.Error{Op: "restore", Kind: skep.Damaged, Field: "record", Value: "of another block"}
	}
	if !fits(rec) {
		return &skep.Error{Op: "restore", Kind: skep.Damaged, Field: "record", Value: "with places past a page"}
	}
	for i := range rec.Parts {
		p := &rec.Parts[i]
		if p.Name != c.Part {
			if p.Inline == nil {
				f.partOff += int64(pagesOf(p.Size)) * layout.PageSize
			}
			continue
		}
		var err error
		if f.sums, err = segio.SumsOf("restore", c.ns.Info.Shape, rec, i); err != nil {
			return err
		}
		f.sums.Sums = slices.Clone(f.sums.Sums)
		f.size = p.Size
		f.inline = append([]byte(nil), p.Inline...)
		f.copies = append([]layout.Location(nil), rec.Copies...)
		f.stored = int64(rec.Pages) * layout.PageSize
		if f.packed = packed(int(rec.Pages), rec.Bytes()); f.packed {
			f.stored = rec.Bytes()
		}
		o, err := s.keys.Opener(c.ns.Info.Tenant, rec, i)
		switch {
		case err != nil:
			return err
		case o != nil && p.Inline != nil: // at once, since several chunks may share it
			if err := o.OpenAll(f.sums.Granules, f.inline); err != nil {
				return err
			}
			f.sums.Sums = o.Sums()
		default:
			f.opener = o
		}
		return c.Fits(f.size)
	}
	return skep.NoPart("restore", c.Part, partNames(rec))
}
