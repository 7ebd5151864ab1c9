package restore

import (
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/memory"
)

// What is done when a read failed or brought wrong bytes: the chunk is read again, from other copies.

// again has another attempt after err under way, or about to be. False: there is none, and the chunk ends with err.
func (ch *chunk) again(err error) bool {
	kind := skep.KindOf(err)
	if len(ch.at.Copies) == 0 {
		return false
	}
	if ch.trouble == nil {
		ch.trouble = &troubles{}
	}
	before := len(ch.trouble.shun) + len(ch.trouble.bad)
	switch kind {
	case skep.Damaged:
		known := len(ch.trouble.bad)
		ch.noteWrong()
		ch.gaveWrong(known, len(ch.trouble.bad))
	case skep.DeviceFailed:
		for _, r := range ch.reads {
			// One that was left behind is its drive's still, error and all.
			if r.state.is() == readDone && r.op.Err != nil && !slices.Contains(ch.trouble.shun, r.drive) {
				ch.trouble.shun = append(ch.trouble.shun, r.drive)
			}
		}
	}
	if len(ch.trouble.shun)+len(ch.trouble.bad) == before { // nothing learnt: no second try would differ
		return ch.anew(err, err)
	}
	ch.unread()
	next := ch.prepare()
	if next == memory.ErrScarce {
		go ch.againLater(err) // not on this worker: chunks that hold memory may wait for it
		return true
	}
	return ch.anew(err, next)
}

// againLater waits for the memory that another attempt after err needs.
func (ch *chunk) againLater(err error) {
	if !ch.anew(err, ch.prepareLater()) {
		ch.abandon(err)
	}
}

// anew tells of the attempt that ended with err, and has the next one, that was prepared with error next, begin. False:
// there is none.
func (ch *chunk) anew(err, next error) bool {
	ch.ses.rs.Source.Failed(&ch.chain.Asked, ch.at, err, next == segio.ErrNoCopy)
	if next != nil {
		return false
	}
	for _, r := range ch.reads { // the list as it is now: the first to be added may bring about more
		queue(r.drive, r)
	}
	return true
}

// unread forgets an attempt that failed.
func (ch *chunk) unread() {
	for _, b := range ch.temp {
		if b != nil {
			b.Release()
		}
	}
	ch.temp = nil
	ch.failed.Store(nil)
}

// noteWrong finds every granule that is wrong, and the copies its bytes came from.
func (ch *chunk) noteWrong() {
	for _, span := range ch.at.Sums.Wrong(ch.spans, pieces(ch.pieces)) {
		for i := range ch.pieces {
			p := &ch.pieces[i]
			from, to := max(span.Off, p.off), min(span.End(), p.off+int64(len(p.mem)))
			if from < to {
				ch.trouble.bad = append(ch.trouble.bad, bad{int(p.copy), layout.Span{Off: from, Len: to - from}})
			}
		}
	}
}

// lookAgain issues a chunk from where its block lies now, after err: the memory that it was in was taken back before its
// turn came, as under a restore whose reader is slow. A lease keeps the block, and not its place in memory. Chunks of a
// block that comes by layers are of one version: of one that may have been put anew, or was moved, they end with err.
func (ch *chunk) lookAgain(err error) {
	ses, c, was := ch.ses, ch.chain, ch.at
	b := c.blockOf(ch.item)
	ses.mu.Lock()
	f := c.found[b] // the pump lets go of it only when this chunk is back
	ses.mu.Unlock()
	if f == was { // else another chunk of the block has looked
		f = ses.rs.Source.Locate([]Ask{{&c.Asked, []int{b}}})[0]
		if f.Err == nil && (f.Size != was.Size || c.Direction.ByLayer() && (f.Where == 0 || f.Where != was.Where)) {
			f.LetGo(ses.rs.Source)
			ch.finish(err)
			return
		}
		ses.mu.Lock()
		if now := c.found[b]; now != was {
			f.LetGo(ses.rs.Source)
			f = now
		} else {
			f.left, f.before, c.found[b] = was.left, was, f
		}
		ses.mu.Unlock()
	}
	if f.Err != nil {
		ch.finish(f.Err)
		return
	}
	ses.mu.Lock()
	ch.at = f // expire looks at it
	ses.mu.Unlock()
	ses.rs.issue([]*chunk{ch})
}
