//go:build !unix

package wire

import (
	"net"
	"os"
)

// fileReader is for Unix sockets that carry descriptors, which this system has not.
type fileReader struct{}

func newFileReader(net.Conn) *fileReader { return nil }

func (*fileReader) read([]byte) (int, error) { return 0, errNotUnix }
func (*fileReader) take() []*os.File         { return nil }
func (*fileReader) drop()                    {}

func sendFiles(net.Conn, []byte, ...int) error { return errNotUnix }
