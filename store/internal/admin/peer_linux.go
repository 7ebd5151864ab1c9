package admin

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// peerMay says whether who connected to a Unix socket is root or this process's user. The
// socket's mode says the same, but only from a moment after it was made.
func peerMay(c net.Conn) bool {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return false
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return false
	}
	var cred *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) { cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil || failed != nil {
		return false
	}
	return userMay(cred.Uid, uint32(os.Geteuid()))
}
