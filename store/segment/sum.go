package segment

import (
	"github.com/skepkv/skep"
	"github.com/zeebo/xxh3"
)

// Seed is the identity of one part of one block, mixed into 64 bits: computed once
// for a part, used for each of its granules.
type Seed uint64

// NewSeed mixes the identity that granule checksums of a part are bound to. Part
// names are at most skep.MaxPartNameSize bytes.
func NewSeed(instance uint32, tag SaltTag, key skep.Key, part string, version uint32) Seed {
	// All fields before the name have fixed sizes, so different identities give
	// different bytes.
	const fixed = 4 + 4 + len(tag) + len(key)
	var buf [fixed + skep.MaxPartNameSize]byte
	b := AppendIdentity(buf[:0], instance, tag, key, version)
	b = append(b, part...)
	return Seed(xxh3.Hash(b))
}

// AppendIdentity appends the granule identity of a write of a block: all but the part.
func AppendIdentity(dst []byte, instance uint32, tag SaltTag, key skep.Key, version uint32) []byte {
	dst = le.AppendUint32(dst, instance)
	dst = le.AppendUint32(dst, version)
	dst = append(dst, tag[:]...)
	return append(dst, key[:]...)
}

// of gives granule index its own seed. Each step is a bijection (splitmix64's
// finaliser), so two granules of a part never share one.
func (s Seed) of(index int) uint64 {
	z := uint64(s) + uint64(index)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Sum is the checksum of granule index whose bytes are data: its payload without
// the padding to 4 KiB.
func (s Seed) Sum(index int, data []byte) uint64 { return xxh3.HashSeed(data, s.of(index)) }

// GranuleSum is the checksum of one granule: xxh3-64 of data, seeded with what the
// granule is of. index is the granule's number in its part, version the record's
// write version. For many granules of a part use NewSeed once and Seed.Sum.
func GranuleSum(instance uint32, tag SaltTag, key skep.Key, part string, index int, version uint32, data []byte) uint64 {
	return NewSeed(instance, tag, key, part, version).Sum(index, data)
}

// Hasher computes the same checksum of a granule whose bytes lie in several
// buffers. The zero Hasher needs a Reset; reusing one saves its allocation. It is
// not for concurrent use.
type Hasher struct{ h xxh3.Hasher }

// Reset begins granule index of s.
func (h *Hasher) Reset(s Seed, index int) { h.h.ResetSeed(s.of(index)) }

// Write adds the granule's next bytes; it reads p only during the call and never
// fails.
func (h *Hasher) Write(p []byte) (int, error) { return h.h.Write(p) }

// Sum is the checksum of what was written since Reset.
func (h *Hasher) Sum() uint64 { return h.h.Sum64() }
