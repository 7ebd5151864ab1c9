//go:build unix

package link

import (
	"io"
	"net"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// FileReader reads from a Unix socket and keeps the descriptors that come with bytes.
//
// They are numbers and nothing more until somebody knows what they are: a descriptor is a file that its sender
// still has and rules over. Whether calls on it wait is for the sender to say and to change, and even to ask for its
// size, to poll it or to close it can wait for a file system that the sender runs.
type FileReader struct {
	c     *net.UnixConn
	oob   []byte
	files []int
}

// MostSent is how many descriptors one message can carry (SCM_MAX_FD).
const MostSent = 253

// NewFileReader is nil for what is no Unix socket.
func NewFileReader(c net.Conn) *FileReader {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil
	}
	return &FileReader{c: u, oob: make([]byte, unix.CmsgSpace(4*MostSent))}
}

func (r *FileReader) read(p []byte) (int, error) {
	n, oobn, _, _, err := r.c.ReadMsgUnix(p, r.oob)
	if oobn > 0 {
		r.keep(r.oob[:oobn])
	}
	if n == 0 && err == nil && len(p) > 0 {
		err = io.EOF
	}
	return n, err
}

func (r *FileReader) keep(oob []byte) {
	list, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return
	}
	for i := range list {
		fds, err := unix.ParseUnixRights(&list[i])
		if err != nil {
			continue
		}
		n := min(len(fds), MaxFiles-len(r.files))
		r.files = append(r.files, fds[:n]...)
		CloseReceived(fds[n:])
	}
}

// Take gives the descriptors received, which are the caller's to close.
func (r *FileReader) Take() []int {
	if r == nil {
		return nil
	}
	f := r.files
	r.files = nil
	return f
}

// Drop closes what nobody took.
func (r *FileReader) Drop() { CloseReceived(r.Take()) }

// closing are the goroutines that close descriptors clients sent. There are so few that they
// are no use for exhausting threads; where all wait, the connection's own reader does.
var closing = make(chan struct{}, 64)

// CloseReceived closes descriptors of unknown files.
func CloseReceived(fds []int) {
	for _, fd := range fds {
		select {
		case closing <- struct{}{}:
			go func() {
				unix.Close(fd)
				<-closing
			}()
		default:
			unix.Close(fd)
		}
	}
}

// soPassRights is SO_PASSRIGHTS of Linux 6.16.
const soPassRights = 83

// PassRights lets a Unix socket's peer send descriptors or not, where the system can keep it from it: what nobody
// receives is closed by the kernel, at the cost of the thread that reads.
func PassRights(c any, may bool) {
	u, ok := c.(syscall.Conn)
	if !ok || runtime.GOOS != "linux" {
		return
	}
	switch c.(type) {
	case *net.UnixConn, *net.UnixListener:
	default:
		return
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return
	}
	v := 0
	if may {
		v = 1
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, soPassRights, v) })
}

// SendFiles writes b with descriptors.
func SendFiles(c net.Conn, b []byte, fds ...int) error {
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

// DupFile is a descriptor of one's own of the same file.
func DupFile(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) }
