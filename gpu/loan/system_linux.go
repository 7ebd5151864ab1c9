package loan

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// supported is nil where processes can lend to each other.
var supported error

// now is the moment in the clock that both processes have.
func now() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // always there
	return time.Duration(ts.Nano())
}

func write(c *net.UnixConn, b []byte, file *os.File) error {
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	_, _, err := c.WriteMsgUnix(b, rights, nil)
	return err
}

// read takes one packet and the first descriptor that came with it.
func read(c *net.UnixConn) ([]byte, *os.File, error) {
	b, oob := make([]byte, maxFrame), make([]byte, unix.CmsgSpace(4*4))
	n, oobn, flags, _, err := c.ReadMsgUnix(b, oob)
	if err != nil {
		return nil, nil, err
	}
	file, err := fileOf(oob[:oobn])
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = fmt.Errorf("%w: longer than %d bytes", errProtocol, maxFrame)
	}
	if err != nil && file != nil {
		file.Close()
	}
	return b[:n], file, err
}

func fileOf(oob []byte) (file *os.File, err error) {
	list, err := unix.ParseSocketControlMessage(oob)
	for i := range list {
		fds, err := unix.ParseUnixRights(&list[i])
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			if file == nil {
				file = os.NewFile(uintptr(fd), "shared GPU memory")
			} else {
				unix.Close(fd)
			}
		}
		if err != nil {
			return file, err
		}
	}
	return file, err
}

// process is another process, by a descriptor that never means a later one of its number.
type process struct {
	pid  int
	file *os.File
}

// peerOf is the process at the other end.
func peerOf(c *net.UnixConn) (*process, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	fd := -1
	if e := raw.Control(func(s uintptr) {
		if cred, err = unix.GetsockoptUcred(int(s), unix.SOL_SOCKET, unix.SO_PEERCRED); err != nil {
			return
		}
		// Kernels before 6.5 do not know it.
		if n, e := unix.GetsockoptInt(int(s), unix.SOL_SOCKET, unix.SO_PEERPIDFD); e == nil {
			fd = n
		}
	}); e != nil {
		return nil, e
	}
	switch {
	case err != nil:
	case int(cred.Uid) != os.Getuid():
		err = fmt.Errorf("user %d, and the lender is user %d", cred.Uid, os.Getuid())
	case cred.Pid == 0:
		err = errors.New("a process of another PID namespace cannot be ended")
	case int(cred.Pid) == os.Getpid():
		err = errors.New("the lender's own process cannot be ended")
	case fd < 0:
		fd, err = unix.PidfdOpen(int(cred.Pid), 0)
	}
	if err == nil {
		unix.CloseOnExec(fd)
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return nil, err
	}
	return &process{int(cred.Pid), os.NewFile(uintptr(fd), "pidfd")}, nil
}

// wait returns true when the process has ended, and with it all its memory is unmapped;
// false when the descriptor was closed.
func (p *process) wait() bool {
	raw, err := p.file.SyscallConn()
	if err != nil {
		return false
	}
	return raw.Read(func(fd uintptr) bool {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, 0)
		return err == nil && n == 1
	}) == nil
}

func (p *process) kill() error {
	raw, err := p.file.SyscallConn()
	if err != nil {
		return err
	}
	if e := raw.Control(func(fd uintptr) { err = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) }); e != nil {
		return e
	}
	return err
}

func (p *process) close() error { return p.file.Close() }
