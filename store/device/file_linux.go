package device

import (
	"errors"
	"fmt"
	"github.com/skepkv/skep/store/internal/locks"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const dirSyncOptional = false

// file is an open file or block device and what is known about it.
type file struct {
	f      *os.File
	fd     int
	path   string
	serial string
	reason string
	raw    bool
	direct bool

	growMu locks.Mutex[locks.DeviceGrow]
}

// An io_uring that was closed, or whose process was killed, lets go of its file a
// moment later, when the kernel gets round to it. Within lockPatience a lock that
// is taken is therefore tried again.
const (
	lockPatience = 500 * time.Millisecond
	lockPause    = 2 * time.Millisecond
)

// openFile opens path, or makes it (and fails if it is there).
func openFile(path string, o Options, create bool) (*file, error) {
	for deadline := time.Now().Add(lockPatience); ; time.Sleep(lockPause) {
		f, err := openOnce(path, o, create)
		if !errors.Is(err, ErrLocked) || time.Now().After(deadline) {
			return f, err
		}
	}
}

func openOnce(path string, o Options, create bool) (*file, error) {
	flags := os.O_RDWR
	if o.ReadOnly {
		flags = os.O_RDONLY
	}
	if create {
		flags |= os.O_CREATE | os.O_EXCL
	} else if st, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("device: %w", err)
	} else if isBlock := st.Mode()&os.ModeDevice != 0 && st.Mode()&os.ModeCharDevice == 0; isBlock {
		if !o.ReadOnly && !o.NoLock {
			flags |= os.O_EXCL // on a block device: refuse one that is mounted
		}
	} else if !st.Mode().IsRegular() {
		return nil, &ArgError{Op: -1, Field: "path", Value: path, Limit: "a regular file or a block device"}
	}

	h := &file{path: path}
	var err error
	if o.Buffered {
		h.reason = "buffered as configured"
	} else {
		h.f, err = os.OpenFile(path, flags|unix.O_DIRECT, 0o600)
		switch {
		case err == nil:
			h.direct = true
			if why := directLimits(int(h.f.Fd())); why != "" {
				h.f.Close()
				h.f, h.direct, h.reason = nil, false, why
			}
		case errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP):
			h.reason = "O_DIRECT refused by the file system"
		case errors.Is(err, unix.EBUSY):
			return nil, fmt.Errorf("%w: %w", ErrLocked, err)
		default:
			return nil, fmt.Errorf("device: %w", err)
		}
		if !h.direct {
			h.reason += ": buffered"
			if create {
				// A refused O_DIRECT may or may not have left the new file behind.
				os.Remove(path)
			}
		}
	}
	if h.f == nil {
		h.f, err = os.OpenFile(path, flags, 0o600)
		if errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("%w: %w", ErrLocked, err)
		}
		if err != nil {
			return nil, fmt.Errorf("device: %w", err)
		}
	}
	h.fd = int(h.f.Fd())
	if err := h.identify(o); err != nil {
		h.close()
		if create {
			os.Remove(path)
		}
		return nil, err
	}
	return h, nil
}

// directLimits says why O_DIRECT with our alignment will not work, if the kernel
// knows.
func directLimits(fd int) string {
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &st); err != nil || st.Mask&unix.STATX_DIOALIGN == 0 {
		return "" // an older kernel: try
	}
	switch {
	case st.Dio_offset_align == 0 || st.Dio_mem_align == 0:
		return "O_DIRECT not supported by the file system"
	case st.Dio_offset_align > Align || st.Dio_mem_align > Align:
		return fmt.Sprintf("O_DIRECT needs an alignment of %d bytes", max(st.Dio_offset_align, st.Dio_mem_align))
	}
	return ""
}

func (h *file) identify(o Options) error {
	var st unix.Stat_t
	if err := unix.Fstat(h.fd, &st); err != nil {
		return fmt.Errorf("device: stat %s: %w", h.path, err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFBLK:
		h.raw = true
		// The kernel opens a block device for writing that may not be written to, and refuses each write.
		if ro, err := unix.IoctlGetInt(h.fd, unix.BLKROGET); err == nil && ro != 0 && !o.ReadOnly {
			return fmt.Errorf("device: %w", &os.PathError{Op: "open", Path: h.path, Err: unix.EROFS})
		}
		h.serial = blockSerial("/sys", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	default:
		return &ArgError{Op: -1, Field: "path", Value: h.path, Limit: "a regular file or a block device"}
	}
	if o.NoLock {
		return nil
	}
	how := unix.LOCK_EX
	if o.ReadOnly {
		how = unix.LOCK_SH
	}
	err := unix.Flock(h.fd, how|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("%w: %s", ErrLocked, h.path)
	}
	if err != nil {
		return fmt.Errorf("device: lock %s: %w", h.path, err)
	}
	return nil
}

// blockSerial finds what the kernel knows of a block device's identity. A
// partition answers its drive's, with its own number behind.
func blockSerial(sys string, major, minor uint32) string {
	dir, err := filepath.EvalSymlinks(fmt.Sprintf("%s/dev/block/%d:%d", sys, major, minor))
	if err != nil {
		return ""
	}
	part := readTrimmed(filepath.Join(dir, "partition"))
	if part != "" {
		dir = filepath.Dir(dir)
		part = "-part" + part
	}
	for _, name := range []string{"serial", "device/serial", "wwid", "device/wwid", "dm/uuid"} {
		if s := readTrimmed(filepath.Join(dir, name)); s != "" {
			return s + part
		}
	}
	return ""
}

func readTrimmed(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func (h *file) size() (int64, error) {
	if h.raw {
		return blockSize(h.fd)
	}
	st, err := h.f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

// allocate reserves the blocks of [from, to) and makes the file that long. On
// error the file keeps its length. errors.ErrUnsupported where the file system
// cannot.
func (h *file) allocate(from, to int64) error {
	var err error
	for range 16 { // a signal restarts a long allocation
		err = unix.Fallocate(h.fd, 0, from, to-from)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		// Some file systems keep what they got before they ran full.
		return errors.Join(err, h.f.Truncate(from))
	}
	return nil
}

// readv and writev move up to all of bufs at off and say how much they did.
func (h *file) readv(bufs [][]byte, off int64) (int, error) {
	if len(bufs) == 1 {
		return unix.Pread(h.fd, bufs[0], off)
	}
	return unix.Preadv(h.fd, bufs, off)
}

func (h *file) writev(bufs [][]byte, off int64) (int, error) {
	if len(bufs) == 1 {
		return unix.Pwrite(h.fd, bufs[0], off)
	}
	return unix.Pwritev(h.fd, bufs, off)
}

func (h *file) datasync() error { return unix.Fdatasync(h.fd) }

// close gives the lock up by hand: the last reference to the file may be a ring's,
// and go later than the descriptor.
func (h *file) close() error {
	_ = unix.Flock(h.fd, unix.LOCK_UN) // an error is a lock we do not have
	return h.f.Close()
}

// retriable reports whether a transfer that failed with err should be tried again
// as it is.
func retriable(err error) bool {
	return errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN)
}
