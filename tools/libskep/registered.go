package main

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire"
)

// register has the server map memory of the program's own. fd -1: its file is found.
func (o *opened) register(ctx context.Context, mem []byte, fd int, offset int64) error {
	address := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	o.mu.Lock()
	_, twice := o.registered[address]
	o.mu.Unlock()
	if twice {
		return skep.Invalidf(op, "memory", fmt.Sprintf("%#x", address), "memory that is not registered")
	}
	var a *wire.AttachedMemory
	if c := o.client; c != nil {
		attach := func() (*wire.AttachedMemory, error) { return c.Attach(ctx, mem, fd, offset) }
		if fd < 0 {
			attach = func() (*wire.AttachedMemory, error) { return c.AttachFound(ctx, mem) }
		}
		var err error
		if a, err = attach(); err != nil {
			return err
		}
	}
	o.mu.Lock()
	o.registered[address] = a
	o.mu.Unlock()
	return nil
}

// unregister has it unmapped once no call uses it.
func (o *opened) unregister(ctx context.Context, address uintptr) error {
	o.mu.Lock()
	a, ok := o.registered[address]
	o.mu.Unlock()
	if !ok {
		return skep.Invalidf(op, "memory", fmt.Sprintf("%#x", address), "memory of skep_mem_register")
	}
	if a != nil {
		if err := a.Detach(ctx); err != nil {
			return err
		}
	}
	o.mu.Lock()
	delete(o.registered, address)
	o.mu.Unlock()
	return nil
}
