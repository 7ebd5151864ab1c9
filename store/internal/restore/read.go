package restore

import (
	"container/heap"
	"context"
	"github.com/skepkv/skep/store/internal/locks"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/memory"
)

// read is one read of a chunk, waiting at its drive or under way.
type read struct {
	op       device.Op
	bufs     [1][]byte
	ch       *chunk
	drive    Drive
	bytes    int64
	priority int
	order    uint64

	wrong bool // it brought wrong bytes, and was counted for that
	state readState
	temp  [2]int           // its memory among its chunk's
	kept  []*memory.Buffer // memory it was left with
	older *read            // under way at the drive, by age; under its queue's lock
	newer *read
}

// Queue is what waits for one drive. What is given to the drive cannot be taken
// back or overtaken, so it is kept to what the drive needs to be busy; the rest waits
// here, best first.
type Queue struct {
	mu     locks.Mutex[locks.ReadQueue]
	waits  readHeap
	order  uint64
	ops    int
	bytes  int64
	depth  depth
	launch []*device.Op // reused under mu
	oldest *read        // of those under way
	newest *read
}

// DriveReads is how many reads a drive is given at most at once; how many bytes is depth's.
const DriveReads = 128

type readHeap []*read

func (h readHeap) Len() int { return len(h) }
func (h readHeap) Less(i, j int) bool {
	if h[i].priority != h[j].priority {
		return h[i].priority > h[j].priority
	}
	return h[i].order < h[j].order
}
func (h readHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *readHeap) Push(x any)   { *h = append(*h, x.(*read)) }
func (h *readHeap) Pop() any {
	old := *h
	r := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return r
}

// queue has reads wait for d, and starts what may start.
func queue(d Drive, reads ...*read) {
	q := d.Queue()
	var gone []*read
	q.mu.Lock()
	for _, r := range reads {
		if r.ch.cancelled.Load() { // cancelQueued may have looked already, and would not find it here
			gone = append(gone, r)
			continue
		}
		if r.order == 0 { // else it has waited before, and keeps its place
			q.order++
			r.order = q.order
		}
		heap.Push(&q.waits, r)
	}
	q.startLocked()
	submitLocked(d)
	for _, r := range gone {
		r.end(errCancelled)
	}
}

// startLocked takes of what waits as much as the drive may have. What the drive keeps back
// keeps nobody else back: while one of its reads is stuck, lent ones are not held to depth.
// REQUIRES: q.mu.
func (q *Queue) startLocked() {
	stuck := q.oldest != nil && q.oldest.op.Start != 0 && time.Duration(device.Now()-q.oldest.op.Start) > stuckAfter
	for len(q.waits) > 0 {
		if r := q.waits[0]; !q.depth.fits(q.ops, q.bytes, r.bytes, r.ch.lends() && !stuck) {
			return
		}
		q.takeLocked(heap.Pop(&q.waits).(*read))
	}
}

// stuckAfter is how long a read takes that the drive has trouble with.
const stuckAfter = 100 * time.Millisecond

func (q *Queue) takeLocked(r *read) {
	q.ops++
	q.bytes += r.bytes
	q.launch = append(q.launch, &r.op)
	if r.older = q.newest; r.older != nil {
		r.older.newer = r
	} else {
		q.oldest = r
	}
	q.newest = r
}

// gaveBackLocked takes r off the list of those under way. REQUIRES: q.mu.
func (q *Queue) gaveBackLocked(r *read) {
	q.ops--
	q.bytes -= r.bytes
	if r.older != nil {
		r.older.newer = r.newer
	} else {
		q.oldest = r.newer
	}
	if r.newer != nil {
		r.newer.older = r.older
	} else {
		q.newest = r.older
	}
	r.older, r.newer = nil, nil
}

// submitLocked hands what was taken to the device and unlocks. REQUIRES: q.mu.
func submitLocked(d Drive) {
	q := d.Queue()
	if len(q.launch) == 0 {
		q.mu.Unlock()
		return
	}
	// Submit does not call Done, so holding the lock here keeps the order.
	err := d.Submit(q.launch)
	var failed []*device.Op
	if err != nil {
		failed = append(failed, q.launch...)
	}
	q.launch = q.launch[:0]
	q.mu.Unlock()
	for _, op := range failed {
		op.Err = err
		op.Done(op)
	}
}

// done is a read's completion, on a goroutine of the device.
func (r *read) done(op *device.Op) {
	q := r.drive.Queue()
	q.mu.Lock()
	q.gaveBackLocked(r)
	q.depth.saw(op.Latency(), r.bytes, len(q.waits) > 0)
	q.startLocked()
	submitLocked(r.drive)
	if r.came() {
		r.end(op.Err)
	}
}

func (r *read) end(err error) {
	if err != nil {
		r.ch.failed.CompareAndSwap(nil, &err)
	}
	if r.ch.left.Add(-1) == 0 {
		r.ch.ses.rs.workers.add(r.ch)
	}
}

// take takes a read out of the queue. False: it is not in it any more.
func (q *Queue) take(r *read) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, w := range q.waits {
		if w == r {
			heap.Remove(&q.waits, i)
			return true
		}
	}
	return false
}

// cancelQueued takes the reads of cancelled chunks out of the drives' queues, and takes back the chunks that wait for
// others' reads: no drive has their memory. The caller holds no lock.
func (rs *Restorer) cancelQueued() {
	for d := range rs.Source.Drives() {
		q := d.Queue()
		q.mu.Lock()
		var out []*read
		keep := q.waits[:0]
		for _, r := range q.waits {
			if r.ch.cancelled.Load() {
				out = append(out, r)
			} else {
				keep = append(keep, r)
			}
		}
		clear(q.waits[len(keep):])
		q.waits = keep
		heap.Init(&q.waits)
		q.mu.Unlock()
		for _, r := range out {
			r.end(errCancelled)
		}
	}
	for _, ch := range rs.joins.cancelled() {
		ch.finish(errCancelled)
	}
}

var errCancelled = &skep.Error{Op: "restore", Kind: skep.Stopped}

// issue sends chunks on their way: those in memory to a worker, the others' reads to
// the drives, each drive's together.
func (rs *Restorer) issue(batch []*chunk) {
	if len(batch) == 0 {
		return
	}
	var queues [][]*read // by drive
	flush := func() {
		for i, q := range queues {
			if len(q) > 0 {
				queue(q[0].drive, q...)
				queues[i] = nil
			}
		}
	}
	for len(batch) > 0 {
		ch := batch[0]
		batch = batch[1:]
		if ch.at.Memory != nil || ch.at.Inline != nil || ch.at.Size == 0 {
			rs.workers.add(ch)
			continue
		}
		if rs.nowInMemory(ch) {
			rs.workers.add(ch)
			continue
		}
		if rs.joins.join(ch) {
			continue
		}
		err := ch.prepare()
		if err == memory.ErrScarce { // what is prepared must not hold memory while this one waits
			flush()
			batch, err = ch.await(batch)
		}
		if err != nil {
			ch.abandon(err)
			continue
		}
		rs.joins.lead(ch)
		for _, r := range ch.reads {
			n := r.drive.Number()
			for len(queues) <= n {
				queues = append(queues, nil)
			}
			queues[n] = append(queues[n], r)
		}
	}
	flush()
}

// await prepares ch once there is memory, unless its chain is given up first. The chunks behind it wait as long: those
// whose chains are given up meanwhile are taken back at once, and the others are left.
func (ch *chunk) await(behind []*chunk) (left []*chunk, err error) {
	keep := make([]func() bool, len(behind))
	for i, b := range behind {
		keep[i] = context.AfterFunc(b.chain.ctx, func() { b.abandon(errCancelled) })
	}
	err = ch.prepareLater()
	for i, b := range behind {
		if keep[i]() {
			left = append(left, b)
		}
	}
	return left, err
}

// prepareLater prepares ch when it is its turn to wait for memory. Its chain may be given up first, and expire answers
// it in time: then nobody waits for it, and it is not to keep those behind it waiting.
func (ch *chunk) prepareLater() error {
	rs := ch.ses.rs
	ctx, cancel := context.WithDeadline(ch.chain.ctx, ch.issued.Add(rs.OpTimeout))
	defer cancel()
	return rs.Scarce.Wait(ctx, rs.OpTimeout, func() error {
		ch.patience = ctx
		defer func() { ch.patience = nil }()
		return ch.prepare()
	})
}

// abandon ends a chunk that could not be prepared, on a worker.
func (ch *chunk) abandon(err error) {
	ch.failed.Store(&err)
	ch.abandoned = true
	ch.ses.rs.workers.add(ch)
}

// mergePages is the largest read made of neighbours.
const mergePages = 256

// prepare makes the reads of the chunk from the copy whose turn it is. memory.ErrScarce: there
// is no memory now, and the chunk is not patient; it holds none.
func (ch *chunk) prepare() (err error) {
	defer func() {
		if err == memory.ErrScarce {
			memory.ReleaseAll(ch.temp)
			ch.temp = nil
		}
	}()
	f := ch.at
	reads, err := ch.chooseReads()
	if err != nil {
		return err
	}
	layout.Merge(nil, reads, 1) // sorted by device and page
	ch.reads, ch.pieces = ch.reads[:0], ch.pieces[:0]
	for i := 0; i < len(reads); {
		g := reads[i]
		r := &read{ch: ch, drive: f.Stripe.Drive(g.Device), priority: ch.priority}
		pages := 0
		bufs := r.bufs[:0]
		r.temp[0] = len(ch.temp)
		for i < len(reads) && reads[i].Device == g.Device && int(reads[i].Page) == int(g.Page)+pages &&
			(pages == 0 || pages+reads[i].Pages <= mergePages) {
			n := &reads[i]
			first := len(ch.pieces)
			off, skip := f.landing(n)
			var err error
			if bufs, err = ch.buffers(off, int64(n.Pages)*layout.PageSize, skip, bufs); err != nil {
				return err
			}
			for k := range ch.pieces[first:] {
				p := &ch.pieces[first+k]
				p.copy, p.read = uint8(n.Tag), r
			}
			pages += n.Pages
			i++
		}
		if pages == 0 { // overlaps the read before it
			return &skep.Error{Op: "restore", Kind: skep.Unsupported, Field: "packed value"}
		}
		r.temp[1] = len(ch.temp)
		r.bytes = int64(pages) * layout.PageSize
		r.op = device.Op{Kind: device.Read, Bufs: bufs, Done: r.done,
			Offset: pageOffset(f.Stripe, g.Device, g.Page)}
		ch.reads = append(ch.reads, r)
	}
	ch.left.Store(int32(len(ch.reads)))
	return nil
}

// buffers gives memory for n bytes, of which the part from off comes after skip: the
// destination itself where what is read is exactly what is wanted there, it is aligned and it
// was not found wrong there, else memory of our own that is copied from once it is checked. A page that others share
// never goes to the destination.
func (ch *chunk) buffers(off, n int64, skip int, bufs [][]byte) ([][]byte, error) {
	c, f := ch.chain, ch.at
	if !ch.private && (len(f.Copies) < 2 || ch.ses.rs.ReadInPlace) && f.Opener == nil && !f.Packed && ch.wants(off, n) {
		switch d := &c.Dest; {
		case d.Memory != nil:
			at := int64(f.Block-c.Blocks.From)*d.Stride + off
			if (off+n <= f.Size || c.Gaps) && off+n <= d.Stride && at+n <= int64(len(d.Memory)) && device.AlignedAddress(d.Memory[at:]) {
				mem := d.Memory[at : at+n : at+n]
				ch.pieces = append(ch.pieces, piece{off: off, mem: mem[:min(n, f.Size-off)], inPlace: true})
				return append(bufs, mem), nil
			}
		case d.Paged != nil:
			if b, ok := ch.pageBuffers(off, n, bufs); ok {
				return b, nil
			}
		}
	}
	b, err := ch.ses.rs.Arena.TryAlloc(int(n), memory.BudgetIO)
	if err != nil && ch.patience == nil {
		return nil, memory.ErrScarce
	}
	if err != nil { // all in use: what holds it comes back, or this chunk is a miss
		b, err = ch.ses.rs.Arena.Alloc(ch.patience, int(n), memory.BudgetIO)
	}
	if err != nil {
		return nil, &skep.Error{Op: "restore", Kind: skep.NoMemory, Err: err}
	}
	ch.temp = append(ch.temp, b)
	mem := b.Bytes()[:n]
	ch.pieces = append(ch.pieces, f.pieceIn(mem, off, skip))
	return append(bufs, mem), nil
}

// pageOffset is where on its drive a page of segment i begins, in bytes.
func pageOffset(g Stripe, i int, page uint32) int64 {
	_, off := g.Segment(i)
	return off + int64(page)*layout.PageSize
}

// wants says whether all of [off, off+n) is asked for, the padding after the part's
// end aside.
func (ch *chunk) wants(off, n int64) bool {
	for _, s := range ch.spans {
		if s.Off <= off && off < s.End() {
			return off+n <= s.End() || s.End() == ch.at.Size
		}
	}
	return false
}

// pageBuffers maps [off, off+n) of the part to an engine's pages, where they have the
// part's own order and every piece is aligned.
func (ch *chunk) pageBuffers(off, n int64, bufs [][]byte) ([][]byte, bool) {
	c, from := ch.chain, len(bufs)
	if off+n > ch.at.Size || c.Transposed() {
		return nil, false
	}
	bufs = c.Place(bufs, ch.at.Block, off, n)
	if len(bufs) > device.MaxBufs {
		return nil, false
	}
	for _, mem := range bufs[from:] {
		if !device.AlignedAddress(mem) || len(mem)%layout.PageSize != 0 {
			return nil, false
		}
	}
	for _, mem := range bufs[from:] {
		ch.pieces = append(ch.pieces, piece{off: off, mem: mem, inPlace: true})
		off += int64(len(mem))
	}
	return bufs, true
}

// lends says whether the chunk's bytes are lent to its reader, not put where it wants them.
func (ch *chunk) lends() bool { return ch.chain.Dest.Memory == nil && ch.chain.Dest.Paged == nil }
