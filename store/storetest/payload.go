package storetest

import (
	"crypto/sha256"
	"math/rand/v2"

	"github.com/skepkv/skep"
)

// Payload is size bytes that only this key and part name have: a pseudorandom stream
// seeded with both, so a prefix of a longer payload is a shorter one.
func Payload(key skep.Key, part string, size int) []byte {
	h := sha256.New()
	h.Write(key[:])
	h.Write([]byte(part))
	p := make([]byte, size)
	rand.NewChaCha8([32]byte(h.Sum(nil))).Read(p)
	return p
}

// at is where the bytes of one token of one head begin in a block of an attention or
// latent shape, and how many they are: the layout of package skep, spelled out.
func at(s skep.Shape, layer, plane, head, token int) (off, size int) {
	planes, heads := planesOf(s), headsOf(s)
	size = s.HeadDim * s.Element.Bits() / 8
	index := ((layer*planes+plane)*heads+head)*s.BlockTokens + token
	if s.Order == skep.NHD {
		index = ((layer*planes+plane)*s.BlockTokens+token)*heads + head
	}
	return index * size, size
}

func planesOf(s skep.Shape) int {
	if s.Kind == skep.Attention {
		return 2
	}
	return 1
}

func headsOf(s skep.Shape) int { return max(s.KVHeads, 1) }

// sizeOf is the size of a block's kv part; free is the size used where the shape does
// not say.
func sizeOf(s skep.Shape, free int) int {
	switch {
	case s.Kind != skep.Opaque:
		_, row := at(s, 0, 0, 0, 0)
		return s.Layers * planesOf(s) * headsOf(s) * s.BlockTokens * row
	case s.Bytes > 0:
		return int(s.Bytes)
	}
	return free
}

// asked marks the bytes of a kv part that layers and heads select.
func asked(s skep.Shape, layers skep.Range, heads skep.Subset) []bool {
	m := make([]bool, sizeOf(s, 0))
	some, _ := heads.In(headsOf(s))
	for l := layers.From; l < layers.To; l++ {
		for p := 0; p < planesOf(s); p++ {
			for h := some.From; h < some.To; h++ {
				for t := 0; t < s.BlockTokens; t++ {
					off, size := at(s, l, p, h, t)
					for i := range size {
						m[off+i] = true
					}
				}
			}
		}
	}
	return m
}

// pick is the bytes of block that mask marks; others, which may still be on their way,
// are not looked at.
func pick(block []byte, mask []bool) []byte {
	var out []byte
	for i, marked := range mask[:len(block)] {
		if marked {
			out = append(out, block[i])
		}
	}
	return out
}

// fillPage writes what a page of order must hold after heads of one layer and plane
// of block were restored into it.
func fillPage(page, block []byte, s skep.Shape, layer, plane int, order skep.AxisOrder, heads skep.Subset) {
	some, _ := heads.In(headsOf(s))
	in := s
	in.Order = order
	for h := some.From; h < some.To; h++ {
		for t := 0; t < s.BlockTokens; t++ {
			from, size := at(s, layer, plane, h, t)
			to, _ := at(in, 0, 0, h, t)
			copy(page[to:to+size], block[from:])
		}
	}
}

func pageBytes(s skep.Shape) int {
	_, row := at(s, 0, 0, 0, 0)
	return headsOf(s) * s.BlockTokens * row
}
