package shm

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/skepkv/skep"
)

const op = "shared memory"

// Pages are what sizes are multiples of.
const pageSize = 4096

// Region is a mapped memfd.
type Region struct {
	file *os.File // of who made it
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
	mem, err := mapping(fd, 0, size)
	if err != nil {
		f.Close()
		return nil, err
	}
	return &Region{f, mem}, nil
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
// bytes sealed against shrinking and growing. The descriptor stays the caller's and is not needed
// any more.
func Open(fd int, size int64) (*Region, error) {
	if err := check(fd, size); err != nil {
		return nil, err
	}
	mem, err := mapping(fd, 0, size)
	if err != nil {
		return nil, err
	}
	return &Region{mem: mem}, nil
}

// check asks first for what only a memfd has: of other files the rest may wait for whoever made them.
func check(fd int, size int64) error {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return &skep.Error{Op: op, Kind: skep.Invalid, Field: "descriptor", Value: "cannot be sealed", Limit: "a memfd", Err: err}
	}
	if seals&Seals != Seals {
		return skep.Invalidf(op, "seals", fmt.Sprintf("%#x", seals), fmt.Sprintf("shrink and grow (%#x)", Seals))
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &skep.Error{Op: op, Kind: skep.Invalid, Field: "descriptor", Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != size || size < pageSize || size%pageSize != 0 {
		return skep.Invalidf(op, "size in bytes", st.Size, size)
	}
	// A hole in huge pages can be one for which no page is left: a fault that ends the process.
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return &skep.Error{Op: op, Kind: skep.Invalid, Field: "descriptor", Err: err}
	}
	if uint32(fs.Type) == unix.HUGETLBFS_MAGIC {
		return skep.Invalidf(op, "pages", "huge", "of the usual size")
	}
	return nil
}

func mapping(fd int, offset, size int64) ([]byte, error) {
	mem, err := unix.Mmap(fd, offset, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("shm: map %d bytes: %w", size, err)
	}
	return mem, nil
}

// Bytes is the memory, until Close.
func (r *Region) Bytes() []byte { return r.mem }

// Fd is the descriptor of who made the region, to be passed on.
func (r *Region) Fd() int { return int(r.file.Fd()) }

// Close unmaps the memory. Nobody may touch it any more, drives included.
func (r *Region) Close() error {
	err := unix.Munmap(r.mem)
	if r.file != nil {
		err = errors.Join(err, r.file.Close())
	}
	r.mem = nil
	return err
}
