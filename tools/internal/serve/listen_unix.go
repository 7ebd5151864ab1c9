package serve

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/skepkv/skep"
)

// listenUnix listens on a socket with this mode. A socket that a server left behind is
// replaced; one that answers is not.
func listenUnix(path string, mode os.FileMode) (net.Listener, error) {
	fail := func(err error) (net.Listener, error) {
		return nil, &skep.Error{Op: "settings", Kind: skep.Invalid, Field: "unix", Value: path, Err: err}
	}
	if fi, err := os.Lstat(path); err == nil {
		if fi.Mode()&os.ModeSocket == 0 {
			return fail(errors.New("is there and is no socket"))
		}
		switch c, err := net.DialTimeout("unix", path, time.Second); {
		case err == nil:
			c.Close()
			return nil, &skep.Error{Op: "serve", Kind: skep.Locked, Field: "unix", Value: path, Err: errors.New("a server answers there")}
		case !errors.Is(err, syscall.ECONNREFUSED): // EPROTOTYPE: a server of another kind listens there
			return nil, &skep.Error{Op: "serve", Kind: skep.Locked, Field: "unix", Value: path, Err: err}
		}
		if err := os.Remove(path); err != nil {
			return fail(err)
		}
	}
	l, err := bindUnix(path, mode)
	if err != nil {
		return fail(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		l.Close()
		return fail(err)
	}
	return l, nil
}

// bindUnix listens on a socket that has at most this mode from the moment it is there: between a bind and a chmod the
// umask alone would say who may connect.
func bindUnix(path string, mode os.FileMode) (net.Listener, error) {
	c := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) { narrow(fd, mode) })
	}}
	return c.Listen(context.Background(), "unix", path)
}
