package store

import (
	"errors"
	"sync"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/gate"
)

// Register implements skep.Store: foreign memory, such as what a client on this
// machine shares, becomes as quick to read into as the store's own.
func (s *Store) Register(mem []byte) (unregister func(), err error) {
	const op = "register memory"
	if !device.IsAligned(mem) {
		return nil, skep.Invalidf(op, "memory", len(mem), "address and length multiples of 4096")
	}
	if !s.gate.Pass() {
		return nil, gate.ErrClosed
	}
	defer s.gate.Leave()
	var with []device.Device
	for _, d := range s.members.All() {
		if d.Removed.Load() {
			continue
		}
		switch err := device.RegisterArena(d.Dev, mem); {
		case err == nil:
			with = append(with, d.Dev)
		case !errors.Is(err, errors.ErrUnsupported):
			device.UnregisterArena(d.Dev, mem) // what it took before it failed
			s.log.Warn("memory not registered with the device; reads cost more CPU", "device", d.Path, "error", err)
		}
	}
	if len(with) == 0 {
		return nil, &skep.Error{Op: op, Kind: skep.Unsupported, Field: "backend", Value: "of the devices"}
	}
	var once sync.Once
	return func() {
		once.Do(func() {
			for _, d := range with {
				device.UnregisterArena(d, mem)
			}
		})
	}, nil
}
