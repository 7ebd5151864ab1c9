package store

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/crypt"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/memory"
	"github.com/skepkv/skep/store/segment"
)

// EncryptionKey is a tenant's AES-256 key. However it is printed or logged, what comes out is not
// the key: ID names it.
type EncryptionKey = crypt.Key

// NewEncryptionKey takes a key of 32 random bytes. Errors: Invalid for another length, and
// for zeros.
func NewEncryptionKey(b []byte) (EncryptionKey, error) { return crypt.NewKey(b) }

// ParseEncryptionKeys reads keys from text: 64 hexadecimal digits a line, the newest
// first; blank lines and lines that begin with # are skipped. Errors, of kind Invalid,
// name the line and never what is in it.
func ParseEncryptionKeys(text []byte) ([]EncryptionKey, error) { return crypt.ParseKeys(text) }

// SetEncryptionKeys replaces Options.EncryptionKeys while the store is open: what is put
// from now on is encrypted with each tenant's first key, and what was encrypted before is
// read as long as its key is among them. Blocks of a tenant that had no key stay as they
// are until they are put again.
//
// Errors: Invalid for what Open would refuse, and for a tenant that had keys and has none:
// its blocks would be written as they are put.
func (s *Store) SetEncryptionKeys(keys map[string][]EncryptionKey) error { return s.keys.Replace(keys) }

// sealing takes memory for the ciphertext of an append's blocks and fills it. A block of a tenant
// with a key is encrypted when its append starts, after it was placed and before a byte of it goes
// to a drive or the catalog. The DRAM tier has what was put. memory.ErrScarce: there is no memory now,
// and it is not to be waited for. On an error a keeps what it took.
func (s *Store) sealing(ctx context.Context, ns *namespaces.Namespace, a *appending, patient bool) error {
	var todo []*incoming
	var lens []int
	total := 0
	for _, in := range a.blocks {
		if in.key == nil || in.moved {
			continue
		}
		todo = append(todo, in)
		if in.At.Device == space.InlineDevice {
			continue
		}
		for i := range in.parts {
			n := pagesOf(int64(len(in.parts[i].Bytes))) * layout.PageSize
			lens = append(lens, s.arena.Split(n)...)
			total += n
		}
	}
	if len(todo) == 0 {
		return nil
	}
	mem, err := s.sealMemory(ctx, a, lens, total, patient)
	if err != nil {
		return err
	}
	for _, in := range todo {
		if mem, err = s.sealBlock(ns, in, mem); err != nil {
			return err
		}
	}
	return nil
}

// sealMemory gives memory of these lengths: I/O buffers, which a keeps until its writes
// have ended. A block that would take most of those has memory of its own.
func (s *Store) sealMemory(ctx context.Context, a *appending, lens []int, total int, patient bool) ([][]byte, error) {
	mem := make([][]byte, len(lens))
	switch {
	case total == 0:
		return mem, nil
	case int64(total) > s.options.IOBytes/2:
		for i, n := range lens {
			mem[i] = device.AlignedBuffer(n)
		}
		return mem, nil
	}
	bufs, err := s.arena.TryAllocVec(lens, memory.BudgetIO)
	if err != nil && !patient {
		return nil, memory.ErrScarce
	}
	if err != nil {
		wait, cancel := context.WithTimeout(ctx, s.options.OpTimeout)
		bufs, err = s.arena.AllocVec(wait, lens, memory.BudgetIO)
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
func (s *Store) sealBlock(ns *namespaces.Namespace, in *incoming, mem [][]byte) ([][]byte, error) {
	block, err := in.key.NewBlock()
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
		g, err := s.granules(ns, p.Name, p.Size)
		if err != nil {
			return nil, err
		}
		sums := p.Sums
		if !in.Accepted { // those have them already, and the version they were made with
			sums = make([]uint64, g.N())
			s.sumInto(ns, in, i, sums)
		}
		var inline []byte
		var into [][]byte
		switch {
		case in.At.Device == space.InlineDevice:
			inline = make([]byte, p.Size)
			into = [][]byte{inline}
		default:
			for n := int64(pagesOf(p.Size)) * layout.PageSize; n > 0; mem = mem[1:] {
				into = append(into, mem[0])
				in.cipher = append(in.cipher, skep.Part{Bytes: mem[0]})
				n -= int64(len(mem[0]))
			}
		}
		parts[i] = block.Part(&in.Record, i, g, sums, in.parts[i].Bytes, into)
		parts[i].Inline = inline
	}
	in.Record.Parts, in.Record.Sealed = parts, &block.Seal
	return mem, nil
}

// stored is what of the block goes to its places.
func (in *incoming) stored() []skep.Part {
	if in.cipher != nil {
		return in.cipher
	}
	return in.parts
}

// sealLen is how much longer the block's record gets when it is sealed, in bytes.
func (in *incoming) sealLen() (n int) {
	if in.key == nil || in.moved || in.Record.Sealed != nil {
		return 0
	}
	sealed := segment.Record{Sealed: &segment.Seal{}}
	n = sealed.Len() - new(segment.Record).Len()
	for i := range in.Record.Parts {
		n += segment.SealSize(len(in.Record.Parts[i].Sums))
	}
	return n
}
