//go:build !linux

package device

import (
	"errors"
	"fmt"
	"github.com/skepkv/skep/store/internal/locks"
	"os"
	"syscall"
)

// dirSyncOptional: Windows cannot sync a directory.
const dirSyncOptional = true

// file is an open regular file. Without Linux there is no O_DIRECT, no lock and
// no block device.
type file struct {
	f      *os.File
	path   string
	serial string
	reason string
	raw    bool
	direct bool

	growMu locks.Mutex[locks.DeviceGrow]
}

func openFile(path string, o Options, create bool) (*file, error) {
	flags := os.O_RDWR
	if o.ReadOnly {
		flags = os.O_RDONLY
	}
	if create {
		flags |= os.O_CREATE | os.O_EXCL
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("device: %w", err)
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("device: %w", err)
	}
	if !st.Mode().IsRegular() {
		f.Close()
		return nil, &ArgError{Op: -1, Field: "path", Value: path, Limit: "a regular file"}
	}
	return &file{f: f, path: path, reason: "no O_DIRECT on this system: buffered"}, nil
}

func (h *file) size() (int64, error) {
	st, err := h.f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

// allocate has no portable form: Create writes the file in full instead, and Grow
// is refused.
func (h *file) allocate(from, to int64) error { return errUnsupported("allocate") }

func (h *file) readv(bufs [][]byte, off int64) (int, error) {
	return eachBuf(bufs, off, h.f.ReadAt)
}

func (h *file) writev(bufs [][]byte, off int64) (int, error) {
	return eachBuf(bufs, off, h.f.WriteAt)
}

func eachBuf(bufs [][]byte, off int64, move func([]byte, int64) (int, error)) (int, error) {
	total := 0
	for _, b := range bufs {
		n, err := move(b, off+int64(total))
		total += n
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

func (h *file) datasync() error { return h.f.Sync() }
func (h *file) close() error    { return h.f.Close() }

func retriable(err error) bool { return errors.Is(err, syscall.EINTR) }
