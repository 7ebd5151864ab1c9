//go:build !linux

package shm

import (
	"os"

	"github.com/skepkv/skep"
)

var errUnsupported = &skep.Error{Op: "shared memory", Kind: skep.Unsupported, Field: "system", Value: "without memfd"}

// HugePage is the size of the pages a region is made of where there are such.
const HugePage = 2 << 20

// Region is a mapped memfd, which this system has not.
type Region struct{}

// Create is Unsupported here.
func Create(int64) (*Region, error) { return nil, errUnsupported }

// Open is Unsupported here. It closes f.
func Open(f *os.File, _ int64) (*Region, error) {
	f.Close()
	return nil, errUnsupported
}

func (*Region) Bytes() []byte { return nil }
func (*Region) Fd() int       { return -1 }
func (*Region) Close() error  { return nil }

// Event is an eventfd, which this system has not.
type Event struct{}

// NewEvent is Unsupported here.
func NewEvent() (*Event, error) { return nil, errUnsupported }

// OpenEvent is Unsupported here. It closes f.
func OpenEvent(f *os.File) (*Event, error) {
	f.Close()
	return nil, errUnsupported
}

func (*Event) Fd() int      { return -1 }
func (*Event) Signal()      {}
func (*Event) Wait() error  { return errUnsupported }
func (*Event) Close() error { return nil }
