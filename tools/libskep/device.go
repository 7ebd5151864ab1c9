package main

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/layout/elastic"
)

var errNoDevice = &skep.Error{Op: op, Kind: skep.Unsupported, Field: "device", Value: "none", Limit: "a store opened with a gpu"}

// alloc takes memory of the simulated GPU, under an address that means something here only.
func (o *opened) alloc(n int64) (uint64, error) {
	if o.device == nil {
		return 0, errNoDevice
	}
	m, err := o.device.Alloc(n)
	if err != nil {
		return 0, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.nameLocked(m), nil
}

// nameLocked gives memory an address.
func (o *opened) nameLocked(m gpu.Memory) uint64 {
	at := o.next
	o.next += uint64(m.Size()) + elastic.Granule // a gap, so that what reaches past the end is seen
	o.memory[at] = m
	return at
}

// addressOf is the address of a place in memory of the store's own, which a program may use and not free.
func (o *opened) addressOf(p gpu.Place) uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.own != p.Memory {
		o.own, o.ownAt = p.Memory, o.nameLocked(p.Memory)
	}
	return o.ownAt + uint64(p.Offset)
}

// atOnce queues something on a stream of its own and waits for it.
func (o *opened) atOnce(queue func(gpu.Stream)) error {
	st, err := o.device.NewStream()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	queue(st)
	if err = st.Sync(ctx); err == nil {
		err = st.Close()
	}
	return err
}

func (o *opened) free(address uint64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	m := o.memory[address]
	if m == nil || m == o.own {
		return skep.Invalidf(op, "device address", address, "one that was allocated")
	}
	delete(o.memory, address)
	return m.Free()
}

// place is n bytes of device memory from an address.
func (o *opened) place(address uint64, n int64) (gpu.Place, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for at, m := range o.memory {
		if address >= at && n >= 0 && n <= m.Size() && address-at <= uint64(m.Size()-n) {
			return gpu.Place{Memory: m, Offset: int64(address - at)}, nil
		}
	}
	return gpu.Place{}, skep.Invalidf(op, "device address", address, "one that was allocated, with the bytes after it")
}

func (o *opened) newStream() (uint64, error) {
	if o.device == nil {
		return 0, errNoDevice
	}
	s, err := o.device.NewStream()
	if err != nil {
		return 0, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.next++
	o.streams[o.next] = s
	return o.next, nil
}

func (o *opened) stream(id uint64) (gpu.Stream, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s := o.streams[id]; s != nil {
		return s, nil
	}
	return nil, skep.Invalidf(op, "stream", id, "one of skep_stream_new, on the simulated GPU")
}

func (o *opened) freeStream(id uint64) error {
	s, err := o.stream(id)
	if err != nil {
		return err
	}
	if err := s.Close(); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.streams, id)
	return nil
}
