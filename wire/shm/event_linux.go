package shm

import (
	"bytes"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/skepkv/skep"
)

// Event is an eventfd of one's own, to be waited on.
type Event struct{ file *os.File }

// NewEvent makes one.
func NewEvent() (*Event, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("shm: eventfd: %w", err)
	}
	return &Event{os.NewFile(uintptr(fd), "eventfd")}, nil
}

// Fd is the descriptor, to be passed on.
func (e *Event) Fd() int { return int(e.file.Fd()) }

// Wait returns once it was signalled, or with an error once the event is closed.
func (e *Event) Wait() error {
	var b [8]byte
	_, err := e.file.Read(b[:])
	return err
}

// Close ends waits.
func (e *Event) Close() error { return e.file.Close() }

// Signaller wakes who waits on an eventfd that somebody else made.
//
// It never writes to it: whether a write waits is a flag of the file, which every process that has the file
// may change at any time, and who fills the counter up makes a write that waits one that never ends. It
// asks the kernel instead to signal the eventfd as it signals that a read has ended, which does not wait.
type Signaller struct{ fd int }

// OpenEvent takes over an eventfd somebody else made; what is none it refuses, and leaves to the caller.
func OpenEvent(fd int) (*Signaller, error) {
	// Only an eventfd has a count; a name can be that of another file.
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil || !bytes.Contains(info, []byte("\neventfd-count:")) {
		return nil, &skep.Error{Op: op, Kind: skep.Invalid, Field: "descriptor", Value: "another file", Limit: "an eventfd", Err: err}
	}
	if _, err := kernel(); err != nil {
		return nil, &skep.Error{Op: op, Kind: skep.Unsupported, Field: "system", Value: "without asynchronous reads (io_setup)", Err: err}
	}
	return &Signaller{fd}, nil
}

// Signal wakes who waits, also where the counter is full.
func (e *Signaller) Signal() {
	if k, err := kernel(); err == nil {
		k.signal(e.fd)
	}
}

// Close gives the descriptor back.
func (e *Signaller) Close() error { return unix.Close(e.fd) }

// reads are the kernel's asynchronous ones, of one byte of a file of our own: when one has ended, which is at
// once, an eventfd is signalled.
type reads struct {
	mu   sync.Mutex
	ctx  uintptr
	fd   int // a memfd
	cb   iocb
	done ioEvent
	into [1]byte
}

// iocb and ioEvent are struct iocb and struct io_event of linux/aio_abi.h; what is not named here is zero.
type iocb struct {
	_     [20]byte // data, key, flags, opcode, priority: zero is a read
	fd    uint32
	buf   uint64
	n     uint64
	_     [16]byte // offset and a reserved word
	what  uint32
	event uint32
}

type ioEvent struct{ data, obj, res, res2 uint64 }

const iocbFlagResfd = 1 // IOCB_FLAG_RESFD

// kernel is made when the first event is opened, and stays.
var kernel = sync.OnceValues(func() (*reads, error) {
	k := &reads{}
	fd, err := unix.MemfdCreate("skep-signal", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	if err := unix.Ftruncate(fd, pageSize); err != nil {
		unix.Close(fd)
		return nil, err
	}
	if _, _, no := unix.Syscall(unix.SYS_IO_SETUP, 1, uintptr(unsafe.Pointer(&k.ctx)), 0); no != 0 {
		unix.Close(fd)
		return nil, no
	}
	k.fd = fd
	return k, nil
})

func (k *reads) signal(event int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cb = iocb{fd: uint32(k.fd), buf: uint64(uintptr(unsafe.Pointer(&k.into))), n: 1, what: iocbFlagResfd, event: uint32(event)}
	list := &k.cb
	if n, _, no := unix.Syscall(unix.SYS_IO_SUBMIT, k.ctx, 1, uintptr(unsafe.Pointer(&list))); n != 1 || no != 0 {
		return // no such descriptor
	}
	for {
		n, _, no := unix.Syscall6(unix.SYS_IO_GETEVENTS, k.ctx, 1, 1, uintptr(unsafe.Pointer(&k.done)), 0, 0)
		if n == 1 || no != unix.EINTR {
			return
		}
	}
}
