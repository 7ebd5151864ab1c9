package sparse

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index/coact"
	"github.com/skepkv/skep/layout"
)

// key names a block of this context, in either namespace.
func (k *sparseContext) key(what string, numbers ...uint64) skep.Key {
	b := append([]byte("skep sparse\x00"+what+"\x00"), k.place.last[:]...)
	for _, n := range numbers {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return skep.KeyOf(b)
}

func (k *sparseContext) recordKey(layer int, gen uint64, device, block int) skep.Key {
	return k.key("records", uint64(layer), gen, uint64(device), uint64(block))
}

// putMeta stores one opaque block, in place of what had its key.
func (k *sparseContext) putMeta(ctx context.Context, key skep.Key, data []byte) error {
	return k.put(ctx, k.meta, []skep.Block{{Key: key, Parts: []skep.Part{{Bytes: data}}}})
}

func (k *sparseContext) put(ctx context.Context, sc skep.Scope, blocks []skep.Block) error {
	res, err := k.s.st.Put(ctx, &skep.PutRequest{Scope: sc, Blocks: blocks})
	if err != nil {
		return err
	}
	for _, r := range res {
		if r.Outcome != skep.Committed {
			return &skep.Error{Op: "put context", Kind: r.Reason, Field: "outcome", Value: r.Outcome}
		}
	}
	return nil
}

// readTries is how often a read begins again whose block went while it was read.
const readTries = 3

// getMeta reads an opaque block; nil when there is none. It does not go by a Lookup: one that
// finds nothing does not say whether the block is stored and cannot be read now, and what cannot
// be read is not to be begun anew.
func (k *sparseContext) getMeta(ctx context.Context, key skep.Key) ([]byte, error) {
	return k.s.blockAt(ctx, skep.Chain{Scope: k.meta, Keys: []skep.Key{key}})
}

// blockAt reads the one block a chain asks for; nil only when none is stored.
func (s *Sparse) blockAt(ctx context.Context, c skep.Chain) (data []byte, err error) {
	for range readTries {
		data, err = s.readBlock(ctx, c)
		if !errors.Is(err, skep.Evicted) {
			break
		}
	}
	if errors.Is(err, skep.NotFound) {
		return nil, nil
	}
	return data, err
}

func (s *Sparse) readBlock(ctx context.Context, c skep.Chain) (data []byte, err error) {
	ses, err := s.st.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{c}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, ses.Close(context.WithoutCancel(ctx))) }()
	err = drain(ctx, ses, func(c *skep.Chunk) error {
		if c.Err != nil {
			return c.Err
		}
		data = make([]byte, 0, c.Bytes)
		for _, piece := range c.Data {
			data = append(data, piece...)
		}
		return nil
	})
	return data, err
}

// drain hands every chunk of a session to f, which may not keep it; the first error ends
// it.
func drain(ctx context.Context, ses skep.Session, f func(c *skep.Chunk) error) error {
	chunks := make([]skep.Chunk, 64)
	var first error
	for {
		n, err := ses.Next(ctx, chunks)
		for i := range chunks[:n] {
			if e := f(&chunks[i]); e != nil && first == nil {
				first = e
			}
			chunks[i].Release()
		}
		if errors.Is(err, io.EOF) {
			return first
		}
		if err != nil {
			return err
		}
	}
}

// Written is an arrangement's stored form. Its numbers are uvarints:
//
//	"SKARRN02" generation, entries, radius in thousandths, devices
//	for each device: slots, and for each slot 0 or entry+1
//	clusters, and for each its length and entries
//	medoid key numbers, and those as 4 bytes each, little-endian
//
// "SKARRN01" is the same without the radius.
const (
	arrangementMagic = "SKARRN02"
	arrangementFirst = "SKARRN01"
)

func (a *arrangement) encode() []byte {
	b := []byte(arrangementMagic)
	put := func(v uint64) { b = binary.AppendUvarint(b, v) }
	put(a.gen)
	put(uint64(a.entries))
	put(uint64(math.Round(a.tau * 1000)))
	put(uint64(len(a.at)))
	for _, slots := range a.at {
		put(uint64(len(slots)))
		for _, e := range slots {
			if e == layout.NoEntry {
				put(0)
			} else {
				put(uint64(e) + 1)
			}
		}
	}
	put(uint64(len(a.clusters)))
	for _, c := range a.clusters {
		put(uint64(len(c)))
		for _, e := range c {
			put(uint64(e))
		}
	}
	put(uint64(len(a.keys)))
	for _, v := range a.keys {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

func decodeArrangement(b []byte) (*arrangement, error) {
	bad := &skep.Error{Op: "read arrangement", Kind: skep.Damaged}
	if len(b) < len(arrangementMagic) {
		return nil, bad
	}
	magic := string(b[:len(arrangementMagic)])
	if b = b[len(magic):]; magic != arrangementMagic && magic != arrangementFirst {
		return nil, bad
	}
	short := false
	get := func(limit uint64) uint64 {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > limit {
			short = true
			return 0
		}
		b = b[n:]
		return v
	}
	a := &arrangement{gen: get(math.MaxUint64), entries: int(get(coact.MaxEntries)), tau: firstTau}
	if magic == arrangementMagic {
		a.tau = float64(get(1000)) / 1000
	}
	list := func(least uint64) []uint32 {
		n := get(uint64(len(b)))
		out := make([]uint32, 0, n)
		for ; n > 0 && !short; n-- {
			v := get(uint64(a.entries) - 1 + least)
			if v < least { // an empty slot
				out = append(out, layout.NoEntry)
			} else {
				out = append(out, uint32(v-least))
			}
		}
		return out
	}
	if a.entries < 1 {
		return nil, bad
	}
	for n := get(layout.MaxDevices); n > 0 && !short; n-- {
		a.at = append(a.at, list(1))
	}
	for n := get(uint64(len(b))); n > 0 && !short; n-- {
		a.clusters = append(a.clusters, list(0))
	}
	n := get(uint64(len(b)))
	if short || uint64(len(b)) != 4*n || slices.ContainsFunc(a.clusters, func(c []uint32) bool { return len(c) == 0 }) {
		return nil, bad
	}
	for ; n > 0; n-- {
		a.keys = append(a.keys, math.Float32frombits(binary.LittleEndian.Uint32(b)))
		b = b[4:]
	}
	return a, nil
}
