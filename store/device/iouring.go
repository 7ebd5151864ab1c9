//go:build iouring && linux

package device

import (
	"cmp"
	"errors"
	"fmt"
	"github.com/skepkv/skep/store/internal/locks"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/pawelgaczynski/giouring"
	"golang.org/x/sys/unix"
)

// ring is a file or block device behind an io_uring of its own.
//
// Any goroutine submits: it fills submission entries under mu and enters the
// kernel once per batch. One goroutine, the reaper, is woken by an eventfd through
// Go's network poller, drains the completion queue, refills the submission queue
// from what waited, and calls Done. No goroutine is locked to a thread: one that
// is, and parks, costs six times the throughput, and a thread that owns the ring
// gains nothing but a hand-over.
//
// A flush is a system call of a goroutine. Given to the ring, the kernel hands it to a worker thread that
// it makes for the thread that submitted; on a busy machine flushes of all rings of a process were seen to wait for
// such threads for minutes. A read or a write needs such a thread only where it would wait: the drive's queue is full,
// or somebody has the file's lock. Reads, too, were seen to wait for ever. While something is in flight the ring
// therefore looks after it once a second, see look.
//
// Two things were measured and left out, because they gained nothing over the
// noise: gathering what the Dones of one round submit into one system call, and
// reaping inside Submit, which would also run Dones under their caller's locks.
//
// giouring is used for the mapping of the rings and for entering the kernel;
// entries are filled in whole here, because its prepare functions leave flags of
// an earlier entry behind.
type ring struct {
	core
	file  *file
	depth int

	// fixedFile: the descriptor is registered, and named by index 0.
	fixedFile bool

	ring   *giouring.Ring
	event  *os.File // eventfd, signalled by the kernel on completions
	stop   atomic.Bool
	reaped chan struct{} // closed when the reaper is gone

	pinning func()               // for tests: called before the kernel pins, or lets go of, a piece of memory
	submit  func() (uint, error) // hands the entries over; in tests the kernel may have no memory for them

	// mu guards the submission side and the table of ops. The reaper takes it once
	// per batch of completions.
	mu struct {
		locks.Mutex[locks.DeviceRing]
		slots    []slot
		free     []uint32 // indexes into slots
		waiting  opList   // ops without a slot, in order
		flushes  opList   // not begun
		flushing bool     // a goroutine does them
		// staged are the slots whose entries the kernel has not consumed yet, in
		// the order of the entries. len(staged) <= len(slots) <= entries of the
		// submission queue, so that there is always an entry for a slot.
		staged  []uint32
		corked  bool        // the reaper hands over what is staged: tell
		retry   *time.Timer // armed while the kernel refuses entries for now
		broken  error       // the kernel refused entries for good
		regions []region    // by base
		buffers uint32      // places used of the kernel's table of buffers
		spare   []uint32    // those of them that are empty again
		watch   watch
	}

	// The reaper's own.
	batch    []completion
	finished []outcome
	woken    bool // by look, and not by a signal
}

// slot is one op in the kernel's hands, known to it by its index: a pointer as
// user data would be invisible to Go's garbage collector.
type slot struct {
	op *Op
	progress
	iovs   []unix.Iovec // what the entry points to; kept for the next op
	staged uint32       // the look before its entry was written
	recall bool         // the kernel was told to let go of it
	aside  bool         // it did: a goroutine does it
}

type completion struct {
	slot uint32
	res  int32
}

type outcome struct {
	op  *Op
	err error
}

// region is memory registered with the kernel as buffer number index.
type region struct {
	base, end uintptr
	index     uint16
	mem       []byte // keeps Go memory alive
}

const (
	// maxRegions is the room made for registered buffers: all that the kernel gives.
	maxRegions = 1 << 14
	// regionSize is what is registered at a time. The kernel pins it under the lock that it takes for
	// submitting, too: some milliseconds of pages of 4 KiB.
	regionSize = 64 << 20
	// refusedPause is how long entries wait that the kernel had no memory for.
	refusedPause = time.Millisecond
)

func newRing(f *file, info Info, size int64, o Options) (Device, error) {
	r := &ring{file: f, depth: o.QueueDepth, ring: giouring.NewRing(), reaped: make(chan struct{})}
	if err := r.ring.QueueInit(uint32(o.QueueDepth), 0); err != nil {
		return nil, unavailable(err)
	}
	err := tryRing(r.ring)
	if err == nil {
		err = r.setup()
	}
	if err != nil {
		r.ring.QueueExit()
		return nil, err
	}
	info.Backend, info.QueueDepth = IOUring, r.depth
	r.core.init(info, size, o.CloseTimeout)
	r.submit = r.ring.Submit
	r.mu.slots = make([]slot, r.depth)
	r.mu.free = make([]uint32, r.depth)
	r.mu.staged = make([]uint32, 0, r.depth)
	for i := range r.mu.free {
		r.mu.free[i] = uint32(r.depth - 1 - i)
	}
	r.mu.watch.pause, r.mu.watch.late = lookPause, lateLooks
	go r.reap()
	return r, nil
}

// unavailable says in words why there is no ring.
func unavailable(err error) error {
	reason := "cannot set up a ring"
	switch {
	case errors.Is(err, unix.ENOSYS):
		reason = "the kernel has no io_uring"
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		reason = "io_uring is forbidden here (seccomp profile or kernel.io_uring_disabled)"
	case errors.Is(err, unix.ENOMEM):
		reason = "no memory for a ring (raise RLIMIT_MEMLOCK)"
	}
	return &UnavailableError{Backend: IOUring, Reason: reason, Err: err}
}

func (r *ring) setup() error {
	efd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return unavailable(err)
	}
	r.event = os.NewFile(uintptr(efd), "eventfd")
	fd := int32(efd)
	if err := r.register(giouring.RegisterEventFD, unsafe.Pointer(&fd), 1); err != nil {
		r.event.Close()
		return unavailable(err)
	}
	// What follows saves CPU and is done without where the kernel is older.
	fds := []int32{int32(r.file.fd)}
	r.fixedFile = r.register(giouring.RegisterFiles, unsafe.Pointer(&fds[0]), 1) == nil
	return nil
}

func (r *ring) register(opcode uint32, arg unsafe.Pointer, n uint32) error {
	if _, errno := r.ring.Register(r.ring.RingFd(), opcode, arg, n); errno != 0 {
		return errno
	}
	return nil
}

func (r *ring) Unwrap() Device { return nil }

func (r *ring) Submit(ops []*Op) error {
	if len(ops) == 0 {
		return nil
	}
	if err := r.begin(ops); err != nil {
		return err
	}
	r.mu.Lock()
	if err := r.mu.broken; err != nil {
		r.mu.Unlock()
		r.abandon(ops)
		return &IOError{Path: r.info.Path, Kind: ops[0].Kind, Offset: ops[0].Offset, Len: ops[0].total, Err: err}
	}
	for _, op := range ops {
		if op.Kind != Flush {
			r.mu.waiting.push(op)
			continue
		}
		if r.mu.flushes.push(op); !r.mu.flushing {
			r.mu.flushing = true
			go r.flush()
		}
	}
	r.fillLocked()
	var failed []outcome
	if !r.mu.corked {
		failed = r.enterLocked()
	}
	r.mu.Unlock()
	if failed != nil {
		// Not here: Done never runs inside Submit. The ops are counted in flight, so
		// Close waits for this goroutine.
		go r.finishAll(failed)
	}
	return nil
}

func (r *ring) finishAll(list []outcome) {
	for _, o := range list {
		r.finish(o.op, o.err)
	}
}

// fillLocked gives waiting ops slots and entries. REQUIRES: r.mu.
func (r *ring) fillLocked() {
	for len(r.mu.free) > 0 {
		op := r.mu.waiting.pop()
		if op == nil {
			return
		}
		n := len(r.mu.free) - 1
		id := r.mu.free[n]
		r.mu.free = r.mu.free[:n]
		s := &r.mu.slots[id]
		s.op, s.progress, s.recall, s.aside = op, progress{}, false, false
		r.stageLocked(id)
	}
}

// stageLocked writes the entry for what is left of a slot's op. REQUIRES: r.mu.
func (r *ring) stageLocked(id uint32) {
	s := &r.mu.slots[id]
	op := s.op
	e := giouring.SubmissionQueueEntry{
		Fd:       int32(r.file.fd),
		UserData: uint64(id),
	}
	if r.fixedFile {
		e.Fd, e.Flags = 0, giouring.SqeFixedFile
	}
	s.iovs = appendIovecs(s.iovs[:0], op.Bufs, s.done)
	e.Off = uint64(op.Offset + int64(s.done))
	pick := func(read, write uint8) uint8 {
		if op.Kind == Read {
			return read
		}
		return write
	}
	if len(s.iovs) == 1 {
		base := uintptr(unsafe.Pointer(s.iovs[0].Base))
		e.Addr, e.Len = uint64(base), uint32(s.iovs[0].Len)
		if index, ok := r.regionLocked(base, uintptr(s.iovs[0].Len)); ok {
			e.OpCode, e.BufIG = pick(giouring.OpReadFixed, giouring.OpWriteFixed), index
		} else {
			e.OpCode = pick(giouring.OpRead, giouring.OpWrite)
		}
	} else {
		e.OpCode = pick(giouring.OpReadv, giouring.OpWritev)
		e.Addr, e.Len = uint64(uintptr(unsafe.Pointer(&s.iovs[0]))), uint32(len(s.iovs))
	}
	*r.ring.GetSQE() = e // never nil, see staged
	r.mu.staged = append(r.mu.staged, id)
	s.staged = r.mu.watch.looks
	if !r.mu.watch.on {
		r.mu.watch.on = true
		time.AfterFunc(r.mu.watch.pause, r.look)
	}
}

// appendIovecs describes bufs without their first skip bytes. Buffers that are
// neighbours in memory become one: a run of buddies is one fixed transfer.
func appendIovecs(iovs []unix.Iovec, bufs [][]byte, skip int) []unix.Iovec {
	var end uintptr
	for _, b := range bufs {
		if skip >= len(b) {
			skip -= len(b)
			continue
		}
		b = b[skip:]
		skip = 0
		base := unsafe.SliceData(b)
		if last := len(iovs) - 1; last >= 0 && end == uintptr(unsafe.Pointer(base)) {
			iovs[last].SetLen(int(iovs[last].Len) + len(b))
		} else {
			iovs = append(iovs, unix.Iovec{Base: base})
			iovs[len(iovs)-1].SetLen(len(b))
		}
		end = uintptr(unsafe.Pointer(base)) + uintptr(len(b))
	}
	return iovs
}

// enterLocked hands the staged entries to the kernel. It returns ops that ended
// because the ring is broken; the caller finishes them after unlocking.
// REQUIRES: r.mu.
func (r *ring) enterLocked() []outcome {
	for len(r.mu.staged) > 0 && r.mu.broken == nil {
		n, err := r.submit()
		r.mu.staged = append(r.mu.staged[:0], r.mu.staged[n:]...)
		switch {
		case err == nil && n > 0, errors.Is(err, unix.EINTR):
		case err == nil, errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EBUSY), errors.Is(err, unix.ENOMEM):
			// The kernel takes no more for now. Nothing in flight might wake us.
			if r.mu.retry == nil {
				r.mu.retry = time.AfterFunc(refusedPause, r.retryEnter)
			}
			return nil
		default:
			return r.breakLocked(err)
		}
	}
	return nil
}

func (r *ring) retryEnter() {
	r.mu.Lock()
	r.mu.retry = nil
	failed := r.enterLocked()
	r.mu.Unlock()
	r.finishAll(failed)
}

// breakLocked gives up on submitting: what the kernel has not consumed it never
// will, because it is never entered with entries again. REQUIRES: r.mu.
func (r *ring) breakLocked(err error) []outcome {
	r.mu.broken = fmt.Errorf("io_uring_enter: %w", err)
	var failed []outcome
	for _, id := range r.mu.staged {
		failed = append(failed, outcome{r.mu.slots[id].op, r.mu.broken})
		r.freeLocked(id)
	}
	r.mu.staged = r.mu.staged[:0]
	for op := r.mu.waiting.pop(); op != nil; op = r.mu.waiting.pop() {
		failed = append(failed, outcome{op, r.mu.broken})
	}
	return failed
}

func (r *ring) freeLocked(id uint32) {
	s := &r.mu.slots[id]
	s.op = nil
	clear(s.iovs) // drop the buffers
	r.mu.free = append(r.mu.free, id)
}

// reap is the reaper. It never reads the eventfd: every signal is a new edge for
// the poller, and an edge that comes while the queue is being drained makes the
// next wait return at once. A deadline is look's way to wake it without an edge.
func (r *ring) reap() {
	defer close(r.reaped)
	conn, err := r.event.SyscallConn()
	for err == nil && !r.stop.Load() {
		err = conn.Read(func(uintptr) bool {
			for r.drain() {
			}
			return r.stop.Load()
		})
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = r.event.SetReadDeadline(time.Time{})
			r.woken = true
			for r.drain() {
			}
			r.woken = false
		}
	}
	// The poller gave up on us, which it does only for a closed descriptor.
	// Completions must not be lost all the same.
	for !r.stop.Load() {
		for r.drain() {
		}
		time.Sleep(refusedPause)
	}
}

// drain ends the ops whose completions have arrived and reports whether there
// were any. Only the reaper calls it.
func (r *ring) drain() bool {
	r.batch = r.batch[:0]
	r.ring.ForEachCQE(func(c *giouring.CompletionQueueEvent) {
		r.batch = append(r.batch, completion{uint32(c.UserData), c.Res})
	})
	if len(r.batch) == 0 {
		return false
	}

	r.finished = r.finished[:0]
	r.mu.Lock()
	r.ring.CQAdvance(uint32(len(r.batch)))
	r.mu.watch.rounds++
	if r.woken {
		r.unannounced.Add(uint64(len(r.batch)))
	}
	for _, c := range r.batch {
		s := &r.mu.slots[c.slot]
		if s.recall && c.res == -int32(unix.ECANCELED) {
			s.aside = true
			go r.doAside(c.slot, s.op)
			continue
		}
		again, err := s.settle(c.res)
		if again && r.mu.broken == nil {
			r.stageLocked(c.slot)
			continue
		}
		if again {
			err = r.mu.broken
		}
		r.finished = append(r.finished, outcome{s.op, err})
		r.freeLocked(c.slot)
	}
	r.fillLocked()
	failed := r.enterLocked()
	r.mu.Unlock()

	r.tell(r.finished)
	clear(r.finished)
	r.finishAll(failed)

	return true
}

// tellAtOnce is how many ops that ended bring about others before these are handed over: who
// reads many small pieces submits the next for each that ends, and one entry into the kernel
// for each of them costs more than the rest of it.
const tellAtOnce = 8

// tell ends ops. What is submitted meanwhile is handed to the kernel together. Only the
// reaper calls it.
func (r *ring) tell(list []outcome) {
	for len(list) > 0 {
		n := min(tellAtOnce, len(list))
		r.cork(n > 1)
		r.finishAll(list[:n])
		r.cork(false)
		list = list[n:]
	}
}

func (r *ring) cork(on bool) {
	var failed []outcome
	r.mu.Lock()
	if r.mu.corked = on; !on {
		failed = r.enterLocked()
	}
	r.mu.Unlock()
	r.finishAll(failed)
}

// settle takes the result of an entry and says whether to submit the rest.
func (s *slot) settle(res int32) (again bool, err error) {
	n := int(res)
	if res < 0 {
		n, err = 0, syscall.Errno(-res)
		if errors.Is(err, unix.ECANCELED) {
			// The kernel cancels when the thread that submitted exits. What look has it cancel does not get here.
			err = unix.EAGAIN
		}
	}
	return s.advance(s.op, n, err)
}

// RegisterArena pins mem with the kernel, so that ops into it skip the mapping of
// pages: a quarter of the CPU for large transfers. It does so piece by piece, and ops go on between
// them. After an error UnregisterArena takes back what was done.
func (r *ring) RegisterArena(mem []byte) error {
	if !IsAligned(mem) {
		return &ArgError{Op: -1, Field: "mem", Value: fmt.Sprintf("%d bytes at %p", len(mem), unsafe.SliceData(mem)), Limit: fmt.Sprintf("address and length multiples of %d", Align)}
	}
	if err := r.enter(1); err != nil {
		return err
	}
	defer r.exit(1)
	// Memory that nobody has touched is made here, and not under the kernel's lock.
	_ = unix.Madvise(mem, unix.MADV_POPULATE_WRITE)
	places, err := r.places((len(mem) + regionSize - 1) / regionSize)
	for err == nil && len(mem) > 0 {
		n := min(len(mem), regionSize)
		if err = r.registerPiece(mem[:n:n], places[0]); err == nil {
			mem, places = mem[n:], places[1:]
		}
	}
	r.mu.Lock()
	r.mu.spare = append(r.mu.spare, places...)
	r.mu.Unlock()
	return err
}

// places takes n places of the kernel's table.
func (r *ring) places(n int) (list []uint32, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if free := len(r.mu.spare) + maxRegions - int(r.mu.buffers); n > free {
		return nil, &ArgError{Op: -1, Field: "registered regions", Value: maxRegions - free + n, Limit: fmt.Sprintf("at most %d of %d bytes", maxRegions, regionSize)}
	}
	if r.mu.buffers == 0 {
		// A table of empty places; fails before Linux 5.19.
		table := giouring.RsrcRegister{Nr: maxRegions, Flags: giouring.RsrcRegisterSparse}
		err := r.register(giouring.RegisterBuffers2, unsafe.Pointer(&table), uint32(unsafe.Sizeof(table)))
		if err != nil && !errors.Is(err, unix.EBUSY) { // EBUSY: made by an earlier call
			return nil, fmt.Errorf("device: register buffer table: %w (%w)", err, errors.ErrUnsupported)
		}
	}
	for range n {
		if k := len(r.mu.spare); k > 0 {
			list = append(list, r.mu.spare[k-1])
			r.mu.spare = r.mu.spare[:k-1]
			continue
		}
		list = append(list, r.mu.buffers)
		r.mu.buffers++
	}
	return list, nil
}

// registerPiece pins one piece in its place. r.mu is not held meanwhile: reads go on.
func (r *ring) registerPiece(part []byte, place uint32) error {
	if err := r.putPlace(place, part); errors.Is(err, unix.ENOMEM) {
		return fmt.Errorf("device: register %d bytes: %w (raise RLIMIT_MEMLOCK)", len(part), err)
	} else if err != nil {
		return fmt.Errorf("device: register %d bytes: %w", len(part), err)
	}
	base := uintptr(unsafe.Pointer(unsafe.SliceData(part)))
	r.mu.Lock()
	defer r.mu.Unlock()
	i, _ := slices.BinarySearchFunc(r.mu.regions, base, func(g region, base uintptr) int { return cmp.Compare(g.base, base) })
	r.mu.regions = slices.Insert(r.mu.regions, i, region{base, base + uintptr(len(part)), uint16(place), part})
	return nil
}

// putPlace has the kernel pin part, or nothing, in a place of its table. REQUIRES: not r.mu.
func (r *ring) putPlace(place uint32, part []byte) error {
	if r.pinning != nil {
		r.pinning()
	}
	iov := &unix.Iovec{}
	if len(part) > 0 {
		iov.Base = unsafe.SliceData(part)
		iov.SetLen(len(part))
	}
	up := giouring.RsrcUpdate2{Offset: place, Nr: 1, Data: uint64(uintptr(unsafe.Pointer(iov)))}
	err := r.register(giouring.RegisterBuffersUpdate, unsafe.Pointer(&up), uint32(unsafe.Sizeof(up)))
	runtime.KeepAlive(iov)
	return err
}

// regionLocked finds the registered buffer that holds all n bytes at base.
// REQUIRES: r.mu.
func (r *ring) regionLocked(base, n uintptr) (uint16, bool) {
	i, found := slices.BinarySearchFunc(r.mu.regions, base, func(g region, base uintptr) int { return cmp.Compare(g.base, base) })
	if !found {
		i--
	}
	if i < 0 || base+n > r.mu.regions[i].end {
		return 0, false
	}
	return r.mu.regions[i].index, true
}

func (r *ring) Grow(size int64) error {
	r.file.growMu.Lock()
	defer r.file.growMu.Unlock()
	return growFile(&r.core, r.file, size)
}
