package appender

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/memory"
	"github.com/skepkv/skep/store/segment"
)

// sealing takes memory for the ciphertext of an append's blocks and fills it. A block of a tenant
// with a key is encrypted when its append starts, after it was placed and before a byte of it goes
// to a drive or the catalog. The DRAM tier has what was put. memory.ErrScarce: there is no memory now,
// and it is not to be waited for. On an error a keeps what it took.
func (w *Appender) sealing(ctx context.Context, a *Append, patient bool) error {
	var todo []*Block
	var lens []int
	total := 0
	for _, in := range a.blocks {
		if in.Key == nil || in.Moved {
			continue
		}
		todo = append(todo, in)
		if in.At.Device == space.InlineDevice {
			continue
		}
		for i := range in.Parts {
			n := layout.PagesOf(int64(len(in.Parts[i].Bytes))) * layout.PageSize
			lens = append(lens, w.Arena.Split(n)...)
			total += n
		}
	}
	if len(todo) == 0 {
		return nil
	}
	mem, err := w.sealMemory(ctx, a, lens, total, patient)
	if err != nil {
		return err
	}
	for _, in := range todo {
		if mem, err = w.sealBlock(a.ns, in, mem); err != nil {
			return err
		}
	}
	return nil
}

// sealMemory gives memory of these lengths: I/O buffers, which a keeps until its writes
// have ended. A block that would take most of those has memory of its own.
func (w *Appender) sealMemory(ctx context.Context, a *Append, lens []int, total int, patient bool) ([][]byte, error) {
	mem := make([][]byte, len(lens))
	switch {
	case total == 0:
		return mem, nil
	case w.takesMost(a, lens...):
		for i, n := range lens {
			mem[i] = device.AlignedBuffer(n)
		}
		return mem, nil
	}
	bufs, err := w.Arena.TryAllocVec(lens, memory.BudgetIO)
	if err != nil && !patient {
		return nil, memory.ErrScarce
	}
	if err != nil {
		wait, cancel := context.WithTimeout(ctx, w.OpTimeout)
		bufs, err = w.Arena.AllocVec(wait, lens, memory.BudgetIO)
		cancel()
	}
	if err != nil {
		return nil, noMemory("encrypt", err)
	}
	a.bufs = append(a.bufs, bufs...)
	for i := range bufs {
		mem[i] = bufs[i].Bytes()[:lens[i]]
	}
	return mem, nil
}

// sealBlock encrypts one block into the first of mem, and completes its record. It gives
// what is left of mem.
func (w *Appender) sealBlock(ns *namespaces.Namespace, in *Block, mem [][]byte) ([][]byte, error) {
	block, err := in.Key.NewBlock()
	if err != nil {
		return nil, err
	}
	if in.clear == nil {
		in.clear = in.Record.Parts
	}
	// Others may be reading the parts of an accepted block's record: it gets new ones.
	parts := make([]segment.RecordPart, len(in.clear))
	in.cipher = in.cipher[:0]
	for i := range parts {
		p := &in.clear[i]
		g, err := layout.GranulesOf(ns.Info.Shape, p.Name, p.Size)
		if err != nil {
			return nil, err
		}
		sums := p.Sums
		if !in.Accepted { // those have them already, and the version they were made with
			sums = make([]uint64, g.N())
			in.sumInto(ns, i, sums)
		}
		var inline []byte
		var into [][]byte
		switch {
		case in.At.Device == space.InlineDevice:
			inline = make([]byte, p.Size)
			into = [][]byte{inline}
		default:
			for n := int64(layout.PagesOf(p.Size)) * layout.PageSize; n > 0; mem = mem[1:] {
				into = append(into, mem[0])
				in.cipher = append(in.cipher, skep.Part{Bytes: mem[0]})
				n -= int64(len(mem[0]))
			}
		}
		parts[i] = block.Part(&in.Record, i, g, sums, in.Parts[i].Bytes, into)
		parts[i].Inline = inline
	}
	in.Record.Parts, in.Record.Sealed = parts, &block.Seal
	return mem, nil
}

// stored is what of the block goes to its places.
func (in *Block) stored() []skep.Part {
	if in.cipher != nil {
		return in.cipher
	}
	return in.Parts
}

// sealLen is how much longer the block's record gets when it is sealed, in bytes.
func (in *Block) sealLen() (n int) {
	if in.Key == nil || in.Moved || in.Record.Sealed != nil {
		return 0
	}
	sealed := segment.Record{Sealed: &segment.Seal{}}
	n = sealed.Len() - new(segment.Record).Len()
	for i := range in.Record.Parts {
		n += segment.SealSize(len(in.Record.Parts[i].Sums))
	}
	return n
}
