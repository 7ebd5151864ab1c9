//go:build !linux

package main

import "github.com/skepkv/skep"

// signal is a descriptor that can be read while it is on: there is none on this system.
type signal struct{ fd int }

func newSignal() (signal, error) {
	return signal{-1}, &skep.Error{Op: op, Kind: skep.Unsupported, Field: "queue", Value: "of this system", Limit: "Linux"}
}

func (signal) on()          {}
func (signal) off()         {}
func (signal) close() error { return nil }
