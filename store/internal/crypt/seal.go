package crypt

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"sync"

	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/segment"
)

// Secret is a tenant's key in one store.
type Secret struct {
	id    segment.KeyID
	key   Key
	store segment.StoreID
}

// ID names the key.
func (s *Secret) ID() segment.KeyID { return s.id }

// cipher is AES-256-GCM under a key that is derived for one purpose and one nonce.
func (s *Secret) cipher(purpose string, nonce []byte) (cipher.AEAD, error) {
	b, err := aes.NewCipher(s.key.derive(nonce, purpose+string(s.store[:]), keySize))
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(b)
}

// What keys are derived for. They are part of the format and should not be changed.
const (
	forBlocks = "skep block 1"
	forRows   = "skep side 1"
)

// Block encrypts one write of one block.
type Block struct {
	Seal segment.Seal // of its record
	aead cipher.AEAD
}

// NewBlock draws the nonce of a write.
func (s *Secret) NewBlock() (*Block, error) {
	b := &Block{Seal: segment.Seal{Key: s.id}}
	rand.Read(b.Seal.Nonce[:])
	var err error
	b.aead, err = s.cipher(forBlocks, b.Seal.Nonce[:])
	return b, err
}

// Part encrypts data, which is part i of rec's block with granules g, into the buffers of into,
// and clears what they have beyond it. sums are the checksums of data. The part it gives has the
// checksums of the ciphertext and the part's seal, and no inline bytes.
func (b *Block) Part(rec *segment.Record, i int, g layout.Granules, sums []uint64, data []byte, into [][]byte) segment.RecordPart {
	p := segment.RecordPart{Name: rec.Parts[i].Name, Size: rec.Parts[i].Size}
	p.Sums = make([]uint64, g.N())
	p.Seal = make([]byte, 0, segment.SealSize(g.N()))
	c := newPartCipher(b.aead, rec, i)
	c.seal(&p, g, rec.Seed(i), data, into)
	raw := make([]byte, 0, 8*len(sums)+segment.TagSize)
	for _, sum := range sums {
		raw = binary.LittleEndian.AppendUint64(raw, sum)
	}
	p.Seal = append(p.Seal, c.aead.Seal(raw[:0], c.at(sealedSums), raw, c.bound)...)
	return p
}

// partCipher encrypts and decrypts the granules of one part.
type partCipher struct {
	aead  cipher.AEAD
	nonce [12]byte
	bound []byte // what the ciphertext is of
}

func newPartCipher(aead cipher.AEAD, rec *segment.Record, part int) *partCipher {
	c := &partCipher{aead: aead}
	binary.LittleEndian.PutUint32(c.nonce[:], uint32(part))
	p := &rec.Parts[part]
	c.bound = segment.AppendIdentity(nil, rec.Instance, rec.SaltTag, rec.Key, rec.Version)
	c.bound = binary.LittleEndian.AppendUint64(c.bound, uint64(p.Size))
	c.bound = append(c.bound, p.Name...)
	return c
}

// sealedSums is the granule that a part's checksums are encrypted as.
const sealedSums = ^uint64(0)

func (c *partCipher) at(granule uint64) []byte {
	n := c.nonce
	binary.LittleEndian.PutUint64(n[4:], granule)
	return n[:]
}

// seal encrypts data into the pieces of into, and adds checksums and tags to p.
func (c *partCipher) seal(p *segment.RecordPart, g layout.Granules, seed segment.Seed, data []byte, into [][]byte) {
	scratch := getScratch()
	defer putScratch(scratch)
	for j := range p.Sums {
		sp := g.Span(j)
		out := c.aead.Seal((*scratch)[:0], c.at(uint64(j)), data[sp.Off:sp.End()], c.bound)
		*scratch = out
		p.Sums[j] = seed.Sum(j, out[:sp.Len])
		p.Seal = append(p.Seal, out[sp.Len:]...)
		copyTo(into, sp.Off, out[:sp.Len])
	}
	rest := p.Size // the padding
	for _, m := range into {
		clear(m[min(rest, int64(len(m))):])
		rest = max(0, rest-int64(len(m)))
	}
}

// copyTo copies src to where off is in pieces that follow one another.
func copyTo(pieces [][]byte, off int64, src []byte) {
	for _, m := range pieces {
		if off < int64(len(m)) {
			src = src[copy(m[off:], src):]
			off = 0
		} else {
			off -= int64(len(m))
		}
		if len(src) == 0 {
			return
		}
	}
}

// scratches are buffers of a granule and its tag.
var scratches = sync.Pool{New: func() any { b := make([]byte, 0, 64<<10+segment.TagSize); return &b }}

func getScratch() *[]byte { return scratches.Get().(*[]byte) }

func putScratch(b *[]byte) {
	if cap(*b) <= 1<<20 {
		scratches.Put(b)
	}
}

// SealRow encrypts a row of the catalog: it gives a nonce of its own and the ciphertext, which is
// bound to bound.
func (s *Secret) SealRow(row, bound []byte) ([]byte, error) {
	nonce := make([]byte, segment.NonceSize, segment.NonceSize+len(row)+segment.TagSize)
	rand.Read(nonce)
	aead, err := s.cipher(forRows, nonce)
	if err != nil {
		return nil, err
	}
	return aead.Seal(nonce, make([]byte, aead.NonceSize()), row, bound), nil
}
