package shm

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/skepkv/skep"
)

const op = "shared memory"

// Pages are what sizes are multiples of.
const pageSize = 4096

// Region is a mapped memfd.
type Region struct {
	file *os.File
	mem  []byte
}

// Seals that a region must have: its size is fixed, so that no access to the mapping can
// fail. A third keeps the first two.
const Seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// Create makes a region of size bytes, a multiple of 4096, sealed.
func Create(size int64) (_ *Region, err error) {
	if size < pageSize || size%pageSize != 0 {
		return nil, skep.Invalidf(op, "size in bytes", size, "a multiple of 4096")
	}
	fd, err := unix.MemfdCreate("skep", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("shm: memfd: %w", err)
	}
	f := os.NewFile(uintptr(fd), "memfd")
	if err := f.Truncate(size); err != nil {
		f.Close()
		return nil, fmt.Errorf("shm: size: %w", err)
	}
	enlarge(fd, size)
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, Seals|unix.F_SEAL_SEAL); err != nil {
		f.Close()
		return nil, fmt.Errorf("shm: seal: %w", err)
	}
	return mapped(f, size)
}

// HugePage is the size of the pages a region is made of as far as it is whole ones of them.
const HugePage = 2 << 20

// enlarge has the memory lie in huge pages, where the system can: a drive is told of one piece of
// memory then where it was told of 512, and reads of more than a megabyte go to it whole. Asked
// for at a mapping that begins where huge pages do, they stay when it is gone. What fails
// leaves pages of the usual size.
func enlarge(fd int, size int64) {
	size &^= HugePage - 1
	if size == 0 {
		return
	}
	whole, err := unix.MmapPtr(-1, 0, nil, uintptr(size+HugePage), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return
	}
	defer func() { _ = unix.MunmapPtr(whole, uintptr(size+HugePage)) }()
	at, err := unix.MmapPtr(fd, 0, unsafe.Add(whole, -uintptr(whole)&(HugePage-1)), uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
	if err != nil {
		return
	}
	mem := unsafe.Slice((*byte)(at), size)
	for i := int64(0); i < size; i += HugePage {
		mem[i] = 0 // a page must be there to be made larger
	}
	_ = unix.Madvise(mem, unix.MADV_COLLAPSE)
}

// Open maps a region somebody else made. It refuses what is not a memfd of exactly size
// bytes sealed against shrinking and growing. It closes f when it fails.
func Open(f *os.File, size int64) (*Region, error) {
	if err := check(f, size); err != nil {
		f.Close()
		return nil, err
	}
	return mapped(f, size)
}

func check(f *os.File, size int64) error {
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil {
		return &skep.Error{Op: op, Kind: skep.Invalid, Field: "descriptor", Value: "cannot be sealed", Limit: "a memfd", Err: err}
	}
	if seals&Seals != Seals {
		return skep.Invalidf(op, "seals", fmt.Sprintf("%#x", seals), fmt.Sprintf("shrink and grow (%#x)", Seals))
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return &skep.Error{Op: op, Kind: skep.Invalid, Field: "descriptor", Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != size || size < pageSize || size%pageSize != 0 {
		return skep.Invalidf(op, "size in bytes", st.Size, size)
	}
	// A hole in huge pages can be one for which no page is left: a fault that ends the process.
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return &skep.Error{Op: op, Kind: skep.Invalid, Field: "descriptor", Err: err}
	}
	if uint32(fs.Type) == unix.HUGETLBFS_MAGIC {
		return skep.Invalidf(op, "pages", "huge", "of the usual size")
	}
	return nil
}

func mapped(f *os.File, size int64) (*Region, error) {
	mem, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("shm: map %d bytes: %w", size, err)
	}
	return &Region{f, mem}, nil
}

// Bytes is the memory, until Close.
func (r *Region) Bytes() []byte { return r.mem }

// Fd is the descriptor, to be passed on.
func (r *Region) Fd() int { return int(r.file.Fd()) }

// Close unmaps the memory. Nobody may touch it any more, drives included.
func (r *Region) Close() error {
	err := errors.Join(unix.Munmap(r.mem), r.file.Close())
	r.mem = nil
	return err
}

// Event is an eventfd.
type Event struct{ file *os.File }

// NewEvent makes one.
func NewEvent() (*Event, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("shm: eventfd: %w", err)
	}
	return &Event{os.NewFile(uintptr(fd), "eventfd")}, nil
}

// OpenEvent takes one that somebody else made; it refuses what is not an eventfd. It
// closes f when it fails.
func OpenEvent(f *os.File) (*Event, error) {
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil || !strings.HasPrefix(name, "anon_inode:[eventfd") {
		f.Close()
		return nil, &skep.Error{Op: op, Kind: skep.Invalid, Field: "descriptor", Value: name, Limit: "an eventfd", Err: err}
	}
	return &Event{f}, nil
}

// Fd is the descriptor, to be passed on.
func (e *Event) Fd() int { return int(e.file.Fd()) }

// Signal wakes who waits. It does not wait itself: a counter the other side has filled up
// wakes them all the same.
func (e *Event) Signal() {
	p := []unix.PollFd{{Fd: int32(e.file.Fd()), Events: unix.POLLOUT}}
	if n, err := unix.Poll(p, 0); err == nil && n == 1 && p[0].Revents&unix.POLLOUT != 0 {
		_, _ = unix.Write(int(p[0].Fd), []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

// Wait returns once Signal was called, or with an error once the event is closed.
func (e *Event) Wait() error {
	var b [8]byte
	_, err := e.file.Read(b[:])
	return err
}

// Close ends waits.
func (e *Event) Close() error { return e.file.Close() }
