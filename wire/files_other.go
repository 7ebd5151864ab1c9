//go:build !unix

package wire

import "net"

// fileReader is for Unix sockets that carry descriptors, which this system has not.
type fileReader struct{}

func newFileReader(net.Conn) *fileReader { return nil }

func (*fileReader) read([]byte) (int, error) { return 0, errNotUnix }
func (*fileReader) take() []int              { return nil }
func (*fileReader) drop()                    {}

func closeReceived([]int) {}

func passRights(any, bool) {}

func sendFiles(net.Conn, []byte, ...int) error { return errNotUnix }

// writeNow writes what a socket takes without waiting: nothing here.
type writeNow struct{}

func newWriteNow(net.Conn) *writeNow { return nil }

func (*writeNow) write([]byte) int { return 0 }

func dupFile(int) (int, error) { return -1, errNotUnix }
