package restore

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/memory"
)

// chunk is one chunk away: queued, being read, being checked.
type chunk struct {
	ses       *session
	chain     *chain
	item      int
	priority  int // of its reads: the chain's when it was issued
	at        *Located
	out       skep.Chunk
	spans     []layout.Span // of the part, asked for
	pieces    []piece       // what is read, by offset
	reads     []*read
	left      atomic.Int32 // reads not done
	failed    atomic.Pointer[error]
	cancelled atomic.Bool
	abandoned bool            // it could not be prepared
	private   bool            // it is read into the store's own memory, whatever its destination
	patience  context.Context // it may wait so long for memory while it holds some; nil: it may not
	trouble   *troubles       // what went wrong so far
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
				f.LetGo(ses.rs.Source)
			}
			if c.untold == 0 || ses.ending { // else below looks there
				c.found = nil
			}
		}
		ses.overLocked()
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
		for bytes := int64(0); len(batch) < pumpBatch && bytes < pumpBytes && ses.bytes < ses.window; {
			if c = ses.bestLocked(); c == nil {
				break
			}
			i := c.InOrder(c.next)
			waits := c.items[i] == itemWaiting
			if waits && !ses.ensureLocked(c) {
				break // the lock was let go: look again at what is best
			}
			if ses.passedLocked(); !waits {
				continue
			}
			if ch := ses.chunkLocked(c, i); ch != nil {
				batch, bytes = append(batch, ch), bytes+ch.bytes
			}
		}
		ses.traced.Issue()
		ses.mu.Unlock()
		ses.rs.issue(batch)
	}
}

// pumpBatch and pumpBytes are how many chunks, and of how many bytes, are prepared before their reads are queued
// together. The kernel makes one read of neighbours that are queued together, and one large read keeps a drive less
// busy than several that it may serve side by side; it also comes back as a whole, so that nothing of it is checked
// meanwhile.
const (
	pumpBatch = 32
	pumpBytes = 1 << 20
)

// chunkLocked takes item i of c: answers it at once when its block is not there,
// else gives the chunk to be issued. REQUIRES: ses.mu.
func (ses *session) chunkLocked(c *chain, i int) *chunk {
	block, layers := c.Chunk(i)
	b := block - c.Blocks.From
	f := c.found[b]
	if f.Err != nil {
		state := itemMissed
		if c.Direction.ByLayer() { // there are many of a block
			state = itemBelow
		}
		ses.answerLocked(c, i, skep.Chunk{Err: f.Err}, state)
		return nil
	}
	ch := &chunk{ses: ses, chain: c, item: i, at: f, issued: time.Now(), priority: c.priority}
	ch.out.Layers = layers
	spans, err := c.Spans(ch.spans, layers, f.Size)
	if err != nil {
		ses.answerLocked(c, i, skep.Chunk{Err: err}, itemMissed)
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
	f.LetGo(ses.rs.Source)
	if !c.Direction.ByLayer() {
		f.Sums.Sums, f.Inline, f.Opener = nil, nil, nil
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
	ses.traced.Land(ch.out.Bytes, err)
	if c.items[ch.item] == itemAway {
		if err != nil {
			ses.answerLocked(c, ch.item, skep.Chunk{Err: err}, itemMissed)
		} else {
			ses.answerLocked(c, ch.item, ch.out, itemDone)
			if ses.ahead != nil {
				ses.rs.prefetched(ch, ses.ahead)
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
