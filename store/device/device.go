package device

import (
	"fmt"
	"sync/atomic"
	"time"
)

const (
	// Align is the granularity, in bytes, of every offset, buffer address and
	// buffer length: what O_DIRECT asks for on every drive we know.
	Align = 4096

	// MaxIO is the most bytes one Op may move.
	MaxIO = 8 << 20

	// MaxBufs is the most buffers one Op may name (IOV_MAX).
	MaxBufs = 1024
)

// Kind says what an Op does.
type Kind uint8

const (
	Read  Kind = iota // fill Bufs from the device
	Write             // store Bufs on the device; not durable before a Flush
	Flush             // make every write that was done before the submit durable
	numKinds
)

func (k Kind) String() string {
	switch k {
	case Read:
		return "read"
	case Write:
		return "write"
	case Flush:
		return "flush"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Op is one positioned transfer. The zero Op with Kind, Bufs and Done set is
// ready to submit; after Done it may be submitted again, from within Done too.
//
// From Submit until Done the Op and the memory behind Bufs are the device's: the
// caller neither reads, writes nor frees them.
type Op struct {
	Kind   Kind
	Offset int64 // bytes, a multiple of Align

	// Bufs are transferred in order, back to back on the device. Each has an
	// address and a non-zero length that are multiples of Align; at most MaxBufs
	// buffers and MaxIO bytes. A Flush has none.
	Bufs [][]byte

	// Done is called exactly once, on a goroutine of the device and never inside
	// Submit. It must not block: it stands in the way of other completions.
	Done func(*Op)

	// Err is valid from the call of Done: nil when every byte was transferred, an
	// *IOError otherwise, or an error that Is ErrClosed for an op that was still
	// waiting in the device when it was closed.
	Err error

	// Start and End are when the op was submitted and done, in nanoseconds of a
	// monotonic clock whose zero is the start of the process.
	Start, End int64

	busy  atomic.Bool // submitted and not done
	total int         // bytes in Bufs
	next  *Op         // in a device's waiting list
}

// Len returns the number of bytes the op moves.
func (o *Op) Len() int {
	n := 0
	for _, b := range o.Bufs {
		n += len(b)
	}
	return n
}

// Latency is the time from submit to done. Valid in and after Done.
func (o *Op) Latency() time.Duration { return time.Duration(o.End - o.Start) }

// Info describes an open device.
type Info struct {
	Path    string
	Serial  string // as the kernel reports it for a block device; empty for a file
	Backend string // "memory", "pool", "iouring"; wrappers put their name in front
	// Reason says why a backend or mode is not the best one there is (no io_uring,
	// no O_DIRECT). Empty when nothing was given up.
	Reason     string
	Size       int64 // bytes usable: a multiple of Align
	Simulated  bool  // speeds are a model's, not the drive's
	Raw        bool  // a block device
	Direct     bool  // O_DIRECT: transfers bypass the page cache
	ReadOnly   bool
	QueueDepth int // ops given to the drive at once
}

// Device is one drive. All methods may be called concurrently.
type Device interface {
	// Info describes the device as it is now.
	Info() Info

	// Submit hands the ops to the device. It returns an error and submits none
	// when one of them is invalid (an *ArgError naming it) or the device is closed
	// (ErrClosed). It does not keep the slice.
	Submit(ops []*Op) error

	// Size is the number of usable bytes, a multiple of Align.
	Size() int64

	// Grow enlarges a file, allocating its blocks, to size bytes (a multiple of
	// Align; at least the present size). A block device answers
	// errors.ErrUnsupported, a full disk an error that Is syscall.ENOSPC; on error
	// the size is unchanged. It waits for the file system. The next Flush makes the
	// new size durable: Grow makes none, which could take the error of what was written.
	Grow(size int64) error

	// Stats is a snapshot of the counters. Each counter is exact; together they
	// are not one moment.
	Stats() Stats

	// Close refuses new ops and waits for those in flight, at most the close
	// timeout. Past it, ops that never reached the drive are done with ErrClosed
	// and Close returns a *BusyError that counts the others; see the package
	// comment for what stays alive then. A second Close returns the same.
	Close() error

	// Unwrap returns the device underneath, nil at the bottom.
	Unwrap() Device
}

// ArenaRegistrar is a device that moves bytes faster to and from memory it was
// told about beforehand.
type ArenaRegistrar interface {
	// RegisterArena pins mem, whose address is a multiple of Align, for the life
	// of the device. Ops into memory that was not registered still work. mem must
	// stay mapped until Close has returned nil.
	RegisterArena(mem []byte) error
}

// RegisterArena registers mem with the first device under d that can use it.
// errors.ErrUnsupported when none can, which costs speed and nothing else.
func RegisterArena(d Device, mem []byte) error {
	for ; d != nil; d = d.Unwrap() {
		if r, ok := d.(ArenaRegistrar); ok {
			return r.RegisterArena(mem)
		}
	}
	return errUnsupported("register arena")
}

var epoch = time.Now()

// Now is the present on the clock of Op.Start and Op.End, in nanoseconds.
func Now() int64 { return now() }

// now is the monotonic clock of Op.Start and Op.End.
func now() int64 { return int64(time.Since(epoch)) }
