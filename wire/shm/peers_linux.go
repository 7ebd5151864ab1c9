package shm

import (
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Peers are the processes at the other end of Unix sockets that a client's memory was given to, each by a name. They
// tell which have ended. They are for one goroutine at a time; the zero value watches none.
type Peers struct{ list []*peer }

type peer struct {
	name  [16]byte
	fd    int       // a pidfd, which can be polled when the process has ended
	ended time.Time // when that was first seen; zero: it was not
}

// LastReads is how long after the end of a process a drive may still do what that had begun: as long as the system
// waits for a drive before it resets it.
const LastReads = 30 * time.Second

// mostPeers are watched. One that is forgotten is never said to have ended.
const mostPeers = 16

// Watch watches the process behind a connection. One that this system cannot watch is not.
func (p *Peers) Watch(name [16]byte, c net.Conn) {
	if slices.ContainsFunc(p.list, func(q *peer) bool { return q.name == name }) {
		return
	}
	fd := pidfdOf(c)
	if fd < 0 {
		return
	}
	if over(fd) { // whoever listened has ended, and another process serves the socket
		_ = unix.Close(fd)
		return
	}
	if len(p.list) == mostPeers {
		_ = unix.Close(p.list[0].fd)
		p.list = slices.Delete(p.list, 0, 1)
	}
	p.list = append(p.list, &peer{name: name, fd: fd})
}

// Ended gives the names of processes that have been seen to have ended, now or earlier, for so long at least. Each is
// given once.
func (p *Peers) Ended(since time.Duration) (names [][16]byte) {
	now := time.Now()
	p.list = slices.DeleteFunc(p.list, func(q *peer) bool {
		if q.ended.IsZero() {
			if !over(q.fd) {
				return false
			}
			q.ended = now
		}
		if now.Sub(q.ended) < since {
			return false
		}
		_ = unix.Close(q.fd)
		names = append(names, q.name)
		return true
	})
	return names
}

// Close watches none any more.
func (p *Peers) Close() {
	for _, q := range p.list {
		_ = unix.Close(q.fd)
	}
	p.list = nil
}

// soPeerPidfd asks a Unix socket for a pidfd of who listens at the other end (Linux 6.5).
const soPeerPidfd = 77

// pidfdOf is -1 where there is none.
func pidfdOf(c net.Conn) int {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return -1
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return -1
	}
	out := -1
	_ = raw.Control(func(fd uintptr) {
		if own, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, soPeerPidfd); err == nil {
			out = own
			return
		}
		// Before Linux 6.5 by its number, which is 0 where it is of another PID namespace. It has answered just now.
		who, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil || who.Pid <= 0 || int(who.Pid) == os.Getpid() {
			return
		}
		if own, err := unix.PidfdOpen(int(who.Pid), 0); err == nil {
			out = own
		}
	})
	return out
}

// over says whether the process of a pidfd has ended, with all its threads.
func over(fd int) bool {
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(poll, 0)
	return err == nil && n == 1 && poll[0].Revents&unix.POLLIN != 0
}
