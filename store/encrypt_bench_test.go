package store

import (
	"testing"

	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/segment"
)

// BenchmarkSealAndOpen is what encryption costs of a block of 2 MiB, apart from drives.
func BenchmarkSealAndOpen(b *testing.B) {
	const size = 2 << 20
	s := &Store{}
	k := &sealKey{key(1).id(), key(1)}
	g, err := layout.GranulesOf(anySize, "kv", size)
	if err != nil {
		b.Fatal(err)
	}
	rec := segment.Record{Parts: []segment.RecordPart{{Name: "kv", Size: size, Sums: make([]uint64, g.N())}}}
	p := &rec.Parts[0]
	data, into := make([]byte, size), [][]byte{make([]byte, size)}
	aead, err := s.blockCipher(k, [16]byte{})
	if err != nil {
		b.Fatal(err)
	}
	c := newPartCipher(aead, &rec, 0)
	b.Run("seal", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			p.Seal = p.Seal[:0]
			c.seal(p, g, 0, data, into)
		}
	})
	o := &opener{partCipher: c, tags: p.Seal}
	sealed := make([]byte, size)
	copy(sealed, into[0])
	b.Run("open", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			copy(into[0], sealed)
			if !o.all(g, into[0]) {
				b.Fatal("it does not open")
			}
		}
	})
}
