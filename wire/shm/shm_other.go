//go:build !linux

package shm

import (
	"net"
	"time"

	"github.com/skepkv/skep"
)

var errUnsupported = &skep.Error{Op: "shared memory", Kind: skep.Unsupported, Field: "system", Value: "without memfd"}

// HugePage is the size of the pages a region is made of where there are such.
const HugePage = 2 << 20

// Region is a mapped memfd, which this system has not.
type Region struct{}

// Create is Unsupported here.
func Create(int64) (*Region, error) { return nil, errUnsupported }

// Open is Unsupported here.
func Open(int, int64) (*Region, error) { return nil, errUnsupported }

// Map is Unsupported here.
func Map(int, int64, int64) (*Region, error) { return nil, errUnsupported }

// Find is Unsupported here.
func Find([]byte) (int, int64, error) { return -1, 0, errUnsupported }

// Guarded is Unsupported here.
func Guarded([]byte, func()) error { return errUnsupported }

// SameUser is false here.
func SameUser(net.Conn) bool { return false }

// LastReads is not needed here.
const LastReads = 30 * time.Second

// Peers watch no processes here.
type Peers struct{}

func (*Peers) Watch([16]byte, net.Conn)           {}
func (*Peers) Ended(time.Duration) (_ [][16]byte) { return nil }
func (*Peers) Close()                             {}

func (*Region) Bytes() []byte { return nil }
func (*Region) Fd() int       { return -1 }
func (*Region) Close() error  { return nil }

// Event is an eventfd, which this system has not.
type Event struct{}

// NewEvent is Unsupported here.
func NewEvent() (*Event, error) { return nil, errUnsupported }

func (*Event) Fd() int      { return -1 }
func (*Event) Wait() error  { return errUnsupported }
func (*Event) Close() error { return nil }

// Signaller wakes who waits on an eventfd, which this system has not.
type Signaller struct{}

// OpenEvent is Unsupported here.
func OpenEvent(int) (*Signaller, error) { return nil, errUnsupported }

func (*Signaller) Signal()      {}
func (*Signaller) Close() error { return nil }
