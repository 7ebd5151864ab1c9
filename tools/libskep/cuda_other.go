//go:build !(cgo && linux)

package main

import (
	"context"
	"unsafe"

	"github.com/skepkv/skep"
)

// landings are for engines on GPUs: on Linux only.
type landings struct{}

type landing struct{ bytes []byte }

const landingBytes = 32 << 20

func contextOf(uint64) (unsafe.Pointer, error) {
	return nil, &skep.Error{Op: op, Kind: skep.Unsupported, Field: "where", Value: "CUDA", Limit: "Linux"}
}

func (k *landings) take(context.Context, unsafe.Pointer, int64) (*landing, error) { return nil, nil }
func (k *landings) queued(*landing, uint64) error                                 { return nil }
func (k *landings) back(*landing)                                                 {}
func (k *landings) lose(*landing)                                                 {}
func (k *landings) hung(*landing)                                                 {}
func (k *landings) close() error                                                  { return nil }
func (l *landing) copyIn(uint64, uint64, []byte) error                            { return nil }
