//go:build unix

package wire

import (
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// fileReader reads from a Unix socket and keeps the descriptors that come with bytes.
type fileReader struct {
	c     *net.UnixConn
	oob   [128]byte
	files []*os.File
}

// maxFiles is how many descriptors wait for the frame they belong to; more are closed.
const maxFiles = 2

func newFileReader(c net.Conn) *fileReader {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil
	}
	return &fileReader{c: u}
}

func (r *fileReader) read(p []byte) (int, error) {
	n, oobn, _, _, err := r.c.ReadMsgUnix(p, r.oob[:])
	if oobn > 0 {
		r.keep(r.oob[:oobn])
	}
	return n, err
}

func (r *fileReader) keep(oob []byte) {
	list, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return
	}
	for i := range list {
		fds, err := unix.ParseUnixRights(&list[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			if len(r.files) >= maxFiles {
				unix.Close(fd)
				continue
			}
			unix.SetNonblock(fd, true)
			r.files = append(r.files, os.NewFile(uintptr(fd), "received"))
		}
	}
}

// take gives the descriptors received, which are the caller's to close.
func (r *fileReader) take() []*os.File {
	if r == nil {
		return nil
	}
	f := r.files
	r.files = nil
	return f
}

// drop closes what nobody took.
func (r *fileReader) drop() {
	for _, f := range r.take() {
		f.Close()
	}
}

// sendFiles writes b with descriptors.
func sendFiles(c net.Conn, b []byte, fds ...int) error {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return errNotUnix
	}
	_, _, err := u.WriteMsgUnix(b, unix.UnixRights(fds...), nil)
	return err
}

// writeNow writes to a socket what it takes without waiting. It is for one goroutine at a time.
// Nil takes nothing.
type writeNow struct {
	raw syscall.RawConn
	b   []byte
	n   int
	try func(fd uintptr) bool
}

// newWriteNow is nil where c is no socket itself, as under TLS.
func newWriteNow(c net.Conn) *writeNow {
	switch c.(type) {
	case *net.UnixConn, *net.TCPConn:
	default:
		return nil
	}
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return nil
	}
	w := &writeNow{raw: raw}
	w.try = func(fd uintptr) bool {
		w.n, _ = unix.Write(int(fd), w.b)
		return true
	}
	return w
}

// write is how many bytes were taken. What went wrong shows when the rest is written.
func (w *writeNow) write(b []byte) int {
	if w == nil {
		return 0
	}
	w.b, w.n = b, 0
	_ = w.raw.Write(w.try) // a deadline that has passed: nothing was tried
	w.b = nil
	return max(w.n, 0)
}
