//go:build iouring && linux

package device

import (
	"syscall"
	"time"
	"unsafe"

	"github.com/pawelgaczynski/giouring"
)

const (
	// lookPause is how often a ring looks after what it has in flight.
	lookPause = time.Second
	// lateLooks is after how many looks the kernel is told to let go of an op.
	lateLooks = 3
	// maxRecalls is how many ops the kernel is told to let go of in one look. Each may take recallPatience.
	maxRecalls     = 16
	recallPatience = time.Millisecond
)

// watch is what a ring knows of the ops that it waits for. It is guarded by the ring's mu.
type watch struct {
	pause  time.Duration
	late   uint32 // looks
	on     bool   // the next look is due: something was in flight at the last one, or was submitted since
	over   bool   // the ring is given back
	looks  uint32
	rounds uint64 // batches of completions that were taken
	seen   uint64 // rounds at the last look
	ready  bool   // at the last look there were completions that nobody had taken since the one before
}

// look looks after what is in flight, once in a pause. Nothing should be left for it to do: completions come with a
// signal of the eventfd. It is here because ops were seen to stand still for ever, and the kernel says nothing of why.
//
//   - Completions that lie there from one look to the next, and nobody takes, are the reaper's: it is woken.
//   - What the kernel holds back is flushed out of it.
//   - An op that takes long may wait for one of the kernel's worker threads, which never comes. The kernel is told to
//     let go of it; if it does, a goroutine does the op by a system call. An op that a drive has stays where it is:
//     the drive may still write to its memory.
func (r *ring) look() {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := &r.mu.watch
	if w.over || len(r.mu.free) == len(r.mu.slots) {
		w.on, w.ready = false, false
		return
	}
	w.looks++
	stood := w.rounds == w.seen
	w.seen = w.rounds
	if stood {
		_, _ = r.ring.GetEvents() // a ring that is broken says so to who submits
	}
	ready := stood && r.ring.CQReady() > 0
	if ready && w.ready {
		_ = r.event.SetReadDeadline(time.Unix(1, 0)) // long past; the reaper takes it back
	}
	w.ready = ready
	r.recallLocked()
	time.AfterFunc(w.pause, r.look)
}

// recallLocked has the kernel let go of ops that take long. REQUIRES: r.mu.
func (r *ring) recallLocked() {
	recalls := 0
	for id := range r.mu.slots {
		s := &r.mu.slots[id]
		if s.op == nil || s.aside || r.mu.watch.looks-s.staged < r.mu.watch.late {
			continue
		}
		s.staged = r.mu.watch.looks // again after as long
		s.recall = true
		r.cancel(uint32(id))
		if recalls++; recalls == maxRecalls {
			return
		}
	}
}

// cancel has the kernel cancel the op of a slot, if it has not begun it. The op's completion says so. What a drive has
// the kernel does not find, and before Linux 6.0 it cancels nothing this way: then the op goes on as it was.
func (r *ring) cancel(slot uint32) {
	c := giouring.SyncCancelReg{Addr: uint64(slot), Fd: -1, Timeout: syscall.NsecToTimespec(int64(recallPatience))}
	_ = r.register(giouring.RegisterSyncCancel, unsafe.Pointer(&c), 1)
}

// doAside does an op that the kernel let go of, by a system call. Its slot is its own until then.
func (r *ring) doAside(id uint32, op *Op) {
	err := fileEngine{r.file}.do(op)
	r.reissued.Add(1)
	r.mu.Lock()
	r.freeLocked(id)
	r.fillLocked()
	failed := r.enterLocked()
	r.mu.Unlock()
	r.finish(op, err)
	r.finishAll(failed)
}
