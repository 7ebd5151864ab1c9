package gpu

import (
	"context"
	"time"
)

// Device is one GPU as a driver shows it to one process. Its methods may be called from any
// goroutine. After an error that the driver calls sticky (an illegal address, an
// uncorrectable memory error, the device gone) everything but Close returns that error.
type Device interface {
	// Name says what it is, for people.
	Name() string
	// Simulated says that no figure got from it is a measurement.
	Simulated() bool
	// Alloc takes n bytes of device memory, rounded up to whole granules of 2 MiB. NoMemory
	// when there are none. The content is undefined.
	Alloc(n int64) (Memory, error)
	// NewStream makes a queue of work. Close it when it is idle.
	NewStream() (Stream, error)
	// NewCounter makes a counter at 0.
	NewCounter() (Counter, error)
	// EnablePeer lets this device's streams reach memory of the other.
	EnablePeer(other Device) error
	// Close gives everything back. NotReleased while a stream has work queued.
	Close() error
}

// Memory is a range of device memory.
type Memory interface {
	Size() int64
	// Free gives it back. Nothing queued may use it any more: a driver does not check.
	Free() error
}

// Place is n bytes from Offset in device memory.
type Place struct {
	Memory Memory
	Offset int64
}

// Stream is a queue of work that is done in order. Queueing returns at once; what is queued
// wrongly shows as the device's sticky error, as it does on a GPU. Memory named in queued
// work must stay as it is until the work is done.
type Stream interface {
	// CopyIn copies host memory to the device, which may read it late.
	CopyIn(to Place, from []byte)
	// CopyOut copies to host memory.
	CopyOut(to []byte, from Place)
	// Copy copies between places, of one device or of two with peer access enabled.
	Copy(to, from Place, n int64)
	// Wait holds the stream back until c is at least v.
	Wait(c Counter, v uint64)
	// Signal sets c to v, which is larger than it was, when everything before it is done.
	Signal(c Counter, v uint64)
	// Compute is a kernel that takes about d. touch is what it does to memory, at any moment
	// while it runs; only simulated devices call it.
	Compute(d time.Duration, touch func())
	// Sync returns when everything queued so far is done, or with Deadline when ctx ends.
	Sync(ctx context.Context) error
	Close() error
}

// Counter is a 64-bit number that only grows.
type Counter interface {
	// Value is what it is now, as the host sees it.
	Value() uint64
	// Await returns when it is at least v, or with Deadline when ctx ends.
	Await(ctx context.Context, v uint64) error
	Close() error
}
