package link

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// rawOf is the socket under c; nil: it has none.
func rawOf(c net.Conn) syscall.RawConn {
	for {
		under, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		c = under.NetConn()
	}
	s, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// queued is how much of what was written the other side, or its system, has not taken yet, in bytes.
func queued(c net.Conn) (n int64) {
	raw := rawOf(c)
	if raw == nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if k, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ); err == nil {
			n = int64(k)
		}
	})
	return n
}
