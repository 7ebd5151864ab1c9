package shm

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/skepkv/skep"
)

// Map maps a part of a file in memory (tmpfs, hugetlbfs) that somebody else made and may cut short at any time: it is
// touched by Guarded only. The descriptor stays the caller's and is not needed any more.
func Map(fd int, offset, size int64) (*Region, error) {
	page, err := checkFile(fd, offset, size)
	if err != nil {
		return nil, err
	}
	if offset%page != 0 || size%page != 0 || size == 0 {
		return nil, skep.Invalidf(op, "offset and size in bytes", fmt.Sprintf("%d %d", offset, size),
			fmt.Sprintf("multiples of %d", page))
	}
	mem, err := mapping(fd, offset, size)
	if err != nil {
		return nil, &skep.Error{Op: op, Kind: skep.Invalid, Field: "descriptor", Value: "cannot be mapped",
			Limit: "open for reading and writing", Err: err}
	}
	return &Region{mem: mem}, nil
}

// checkFile says how large the file's pages are. It asks first for seals: who has such is a file in memory, and of
// other files the rest may wait for whoever made them.
func checkFile(fd int, offset, size int64) (page int64, err error) {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil {
		return 0, &skep.Error{Op: op, Kind: skep.Unsupported, Field: "file", Value: "elsewhere",
			Limit: "in memory: of tmpfs or hugetlbfs", Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, &skep.Error{Op: op, Kind: skep.Invalid, Field: "descriptor", Err: err}
	}
	if offset < 0 || size < 0 || offset > st.Size || size > st.Size-offset {
		return 0, skep.Invalidf(op, "range", fmt.Sprintf("%d bytes at %d", size, offset),
			fmt.Sprintf("within the file's %d bytes", st.Size))
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return 0, &skep.Error{Op: op, Kind: skep.Invalid, Field: "descriptor", Err: err}
	}
	return max(fs.Bsize, pageSize), nil
}

// Guarded runs f, which reads or writes mem, of Map. The error, of kind Invalid, says that a page of it was not there:
// the file was cut short, or its file system is full.
func Guarded(mem []byte, f func()) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		at, ok := r.(interface{ Addr() uintptr })
		if first := uintptr(unsafe.Pointer(unsafe.SliceData(mem))); !ok || at.Addr() < first ||
			at.Addr()-first >= uintptr(len(mem)) {
			panic(r)
		}
		err = &skep.Error{Op: op, Kind: skep.Invalid, Field: "attached memory", Value: "a page that is not there any more",
			Limit: "a file that is not cut short", Err: syscall.EFAULT}
	}()
	f()
	return nil
}

// Find gives the file in memory that is mapped, shared and writable, where mem lies, and the offset there. The
// descriptor is the caller's to close.
func Find(mem []byte) (fd int, offset int64, err error) {
	if len(mem) == 0 {
		return -1, 0, skep.Invalidf(op, "memory", "none", "some")
	}
	first := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return -1, 0, &skep.Error{Op: op, Kind: skep.Unsupported, Field: "mappings of this process", Err: err}
	}
	defer maps.Close()
	var at mapped
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		if m, ok := parseMapped(lines.Text()); ok && m.from <= first && first < m.to {
			at = m
			break
		}
	}
	switch {
	case at.to == 0 || at.inode == 0:
		return -1, 0, &skep.Error{Op: op, Kind: skep.Unsupported, Field: "memory", Value: "no file's", Limit: "a mapped file"}
	case at.flags != "rw-s":
		return -1, 0, &skep.Error{Op: op, Kind: skep.Unsupported, Field: "mapping", Value: at.flags,
			Limit: "rw-s: shared, read and written"}
	case uint64(len(mem)) > at.to-first:
		return -1, 0, &skep.Error{Op: op, Kind: skep.Unsupported, Field: "memory", Value: "several mappings", Limit: "one"}
	}
	if fd, err = openMapped(&at); err != nil {
		return -1, 0, err
	}
	return fd, int64(at.offset + first - at.from), nil
}

// mapped is a line of /proc/self/maps.
type mapped struct {
	from, to, offset uint64
	flags, device    string
	inode            uint64
	path             string
}

func parseMapped(line string) (m mapped, ok bool) {
	f := strings.SplitN(line, " ", 6)
	if len(f) < 5 {
		return m, false
	}
	from, to, _ := strings.Cut(f[0], "-")
	var errs [4]error
	m.from, errs[0] = strconv.ParseUint(from, 16, 64)
	m.to, errs[1] = strconv.ParseUint(to, 16, 64)
	m.offset, errs[2] = strconv.ParseUint(f[2], 16, 64)
	m.flags, m.device = f[1], f[3]
	m.inode, errs[3] = strconv.ParseUint(f[4], 10, 64)
	if len(f) == 6 {
		m.path = strings.TrimLeft(f[5], " ")
	}
	return m, errs == [4]error{}
}

// openMapped opens the file of a mapping: by its name, or as this process has it open where the name is gone.
func openMapped(m *mapped) (int, error) {
	same := func(fd int) bool {
		var st unix.Stat_t
		return unix.Fstat(fd, &st) == nil && st.Ino == m.inode && st.Mode&unix.S_IFMT == unix.S_IFREG &&
			fmt.Sprintf("%02x:%02x", unix.Major(st.Dev), unix.Minor(st.Dev)) == m.device
	}
	if fd, err := unix.Open(m.path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err == nil {
		if same(fd) {
			return fd, nil
		}
		unix.Close(fd)
	}
	list, _ := filepath.Glob("/proc/self/fd/*")
	for _, name := range list {
		n, err := strconv.Atoi(filepath.Base(name))
		if err != nil || !same(n) {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(n), unix.F_GETFL, 0); err != nil || flags&unix.O_ACCMODE != unix.O_RDWR {
			continue
		}
		fd, err := unix.FcntlInt(uintptr(n), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			continue
		}
		if same(fd) { // it may be another file's number by now
			return fd, nil
		}
		unix.Close(fd)
	}
	return -1, &skep.Error{Op: op, Kind: skep.Unsupported, Field: "file of the mapping", Value: m.path,
		Limit: "one that this process can open or has open"}
}

// SameUser says whether the process that made the connection, over a Unix socket, was of this one's user.
func SameUser(c net.Conn) bool {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return false
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return false
	}
	same := false
	_ = raw.Control(func(fd uintptr) {
		who, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		same = err == nil && who.Uid == uint32(os.Geteuid())
	})
	return same
}
