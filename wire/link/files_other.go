//go:build !unix

package link

import "net"

// FileReader is for Unix sockets that carry descriptors, which this system has not.
type FileReader struct{}

func NewFileReader(net.Conn) *FileReader { return nil }

func (*FileReader) read([]byte) (int, error) { return 0, errNotUnix }
func (*FileReader) Take() []int              { return nil }
func (*FileReader) Drop()                    {}

func CloseReceived([]int) {}

func PassRights(any, bool) {}

func SendFiles(net.Conn, []byte, ...int) error { return errNotUnix }

// writeNow writes what a socket takes without waiting: nothing here.
type writeNow struct{}

func newWriteNow(net.Conn) *writeNow { return nil }

func (*writeNow) write([]byte) int { return 0 }

func DupFile(int) (int, error) { return -1, errNotUnix }
