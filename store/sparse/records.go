package sparse

import (
	"context"
	"encoding/binary"
	"math"
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// transposed is one layer's entries, taken out of the chain's blocks.
type transposed struct {
	at func(entry uint32) []byte
}

func (t transposed) release() {}

// transposed reads one layer of the chain and turns [K,V][head][token][dim] (or the
// shape's order) into an entry each: [K,V][head][dim].
func (k *sparseContext) transposed(ctx context.Context, n int) (_ transposed, err error) {
	sh := k.head.Shape
	mem := make([]byte, int64(k.head.Entries)*k.entry)
	filled := make([]bool, k.head.Entries)
	r := &skep.RestoreRequest{Chains: []skep.Chain{{Scope: k.place.scope, Keys: k.head.Chain, Layers: skep.Only(n, n+1)}}}
	row := int64(sh.HeadDim) * int64(sh.Element.Bits()) / 8
	heads, tensors := 1, 1
	if sh.Kind == skep.Attention {
		heads, tensors = sh.KVHeads, 2
	}
	err = skep.Load(ctx, k.s.st, r, func(c *skep.Chunk) error {
		if c.Err != nil {
			return c.Err
		}
		slab := slices.Concat(c.Data...)
		if int64(len(slab)) < int64(tensors*heads*sh.BlockTokens)*row {
			return &skep.Error{Op: "cluster", Kind: skep.Damaged, Field: "layer in bytes", Value: len(slab)}
		}
		for t := range sh.BlockTokens {
			e := c.Block*sh.BlockTokens + t
			if e >= k.head.Entries {
				break
			}
			filled[e] = true
			out := mem[int64(e)*k.entry:]
			for kv := range tensors {
				for h := range heads {
					at := (kv*heads+h)*sh.BlockTokens + t // [head][token]
					if sh.Order == skep.NHD {
						at = (kv*sh.BlockTokens+t)*heads + h
					}
					copy(out[int64(kv*heads+h)*row:][:row], slab[int64(at)*row:])
				}
			}
		}
		return nil
	})
	if err == nil && slices.Contains(filled, false) {
		err = &skep.Error{Op: "cluster", Kind: skep.Evicted, Field: "block of the chain", Value: slices.Index(filled, false) / sh.BlockTokens}
	}
	return transposed{at: func(e uint32) []byte { return mem[int64(e)*k.entry:][:k.entry] }}, err
}

// keysOf are the keys of entries 0 to n-1 as numbers; nil for element types of which no
// arithmetic is known.
func (k *sparseContext) keysOf(at func(uint32) []byte, n int) []float32 {
	read := map[skep.ElementType]func([]byte) (float32, int){
		skep.F32: func(b []byte) (float32, int) { return math.Float32frombits(binary.LittleEndian.Uint32(b)), 4 },
		skep.BF16: func(b []byte) (float32, int) {
			return math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16), 2
		},
		skep.F16: func(b []byte) (float32, int) { return float16(binary.LittleEndian.Uint16(b)), 2 },
	}[k.head.Shape.Element]
	if read == nil {
		return nil
	}
	w := k.heads.KeyWidth()
	out := make([]float32, 0, n*w)
	for e := range n {
		b := at(uint32(e))
		for range w {
			v, size := read(b)
			if v != v || v > 1e30 || v < -1e30 { // hostile or broken numbers must not spread
				v = 0
			}
			out, b = append(out, v), b[size:]
		}
	}
	return out
}

// float16 is an IEEE 754 binary16 number.
func float16(h uint16) float32 {
	sign, exp, frac := uint32(h>>15)<<31, uint32(h>>10)&31, uint32(h)&1023
	switch exp {
	case 0:
		v := math.Float32bits(float32(frac) / (1 << 24))
		return math.Float32frombits(v | sign)
	case 31:
		return math.Float32frombits(sign | 0xff<<23 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

// aligned is n bytes at an address that is a multiple of a page.
func aligned(n int64) []byte {
	b := make([]byte, n+layout.PageSize)
	skip := (layout.PageSize - addressOf(b)%layout.PageSize) % layout.PageSize
	return b[skip : skip+n : skip+n]
}

// putBatch is how many record blocks one put carries.
const putBatch = 32

// writeRecords stores an arrangement's blocks, row by row over the devices; those for
// which have says so are there already. It returns how many records it wrote.
func (k *sparseContext) writeRecords(ctx context.Context, n int, a *arrangement, at func(uint32) []byte, have func(skep.Key) bool) (written int, err error) {
	var blocks []skep.Block
	flush := func() error {
		if len(blocks) == 0 {
			return nil
		}
		if err := k.ended("write records"); err != nil { // it is being dropped
			return err
		}
		err := k.put(ctx, k.records, blocks)
		blocks = blocks[:0]
		return err
	}
	most := 0
	for _, slots := range a.at {
		most = max(most, blocksOf(slots))
	}
	for b := range most {
		for d, slots := range a.at {
			if b >= blocksOf(slots) {
				continue
			}
			key := k.recordKey(n, a.gen, d, b)
			if have != nil && have(key) {
				continue
			}
			part := slots[b*slotsPerBlock : min(len(slots), (b+1)*slotsPerBlock)]
			blocks = append(blocks, skep.Block{Key: key, Parts: []skep.Part{{Bytes: k.blockOf(part, at)}}})
			written += len(part)
			if len(blocks) == putBatch {
				if err := flush(); err != nil {
					return written, err
				}
			}
		}
	}
	return written, flush()
}

// blockOf is a record block's bytes.
func (k *sparseContext) blockOf(slots []uint32, at func(uint32) []byte) []byte {
	buf := aligned(slotsPerBlock * k.record)
	for i, e := range slots {
		if e != layout.NoEntry {
			copy(buf[int64(i)*k.record:], at(e))
		}
	}
	return buf
}
