package main

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/skepkv/skep"
)

// signal is a descriptor that can be read while it is on. REQUIRES: one at a time calls it.
type signal struct{ fd int }

func newSignal() (signal, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return signal{-1}, &skep.Error{Op: op, Kind: skep.NoMemory, Field: "eventfd", Err: err}
	}
	return signal{fd}, nil
}

// on has it readable. What it has is 0 or 1, so that it always fits.
func (s signal) on() {
	_, _ = unix.Write(s.fd, binary.NativeEndian.AppendUint64(nil, 1))
}

// off has it readable no more.
func (s signal) off() {
	var was [8]byte
	_, _ = unix.Read(s.fd, was[:])
}

func (s signal) close() error { return unix.Close(s.fd) }
