package crypt

import (
	"encoding/binary"
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/segment"
)

// Pieces are buffers that hold bytes of a part, in the order of where in the part they lie.
type Pieces interface {
	Len() int
	// Piece is the i-th: its bytes, and the offset of the first of them in the part.
	Piece(i int) (off int64, mem []byte)
}

// Opener decrypts a part of a sealed block.
type Opener struct {
	cipher *partCipher
	part   string
	tags   []byte
	sums   []uint64 // of the bytes that were put
}

// Opener prepares reading a part of rec, of which it keeps nothing. Nil: rec is not sealed.
// Errors: Denied when the key is not there; Damaged when the seal is not the block's.
func (k *Keys) Opener(tenant string, rec *segment.Record, part int) (*Opener, error) {
	s, err := k.Sealing(tenant, rec)
	if s == nil || err != nil {
		return nil, err
	}
	aead, err := s.cipher(forBlocks, rec.Sealed.Nonce[:])
	if err != nil {
		return nil, err
	}
	p := &rec.Parts[part]
	tags := len(p.Sums) * segment.TagSize
	o := &Opener{cipher: newPartCipher(aead, rec, part), part: p.Name, tags: slices.Clone(p.Seal[:tags])}
	raw, err := aead.Open(nil, o.cipher.at(sealedSums), p.Seal[tags:], o.cipher.bound)
	if err != nil {
		return nil, o.wrong()
	}
	o.sums = make([]uint64, len(p.Sums))
	for i := range o.sums {
		o.sums[i] = binary.LittleEndian.Uint64(raw[8*i:])
	}
	return o, nil
}

// ClearSums gives rec the checksums of what was put, where it is sealed. Its errors are Opener's.
func (k *Keys) ClearSums(tenant string, rec *segment.Record) error {
	for i := range rec.Parts {
		o, err := k.Opener(tenant, rec, i)
		if err != nil {
			return err
		}
		if o != nil {
			rec.Parts[i].Sums = o.sums
		}
	}
	return nil
}

// Sums are the checksums of the granules as they were put. The caller does not change them.
func (o *Opener) Sums() []uint64 { return o.sums }

func (o *Opener) wrong() error {
	return &skep.Error{Op: "decrypt", Kind: skep.Damaged, Field: "seal of part " + o.part}
}

// Open decrypts in place every granule of g that spans touch. Error: Damaged; what the pieces
// hold is of no use then.
func (o *Opener) Open(g layout.Granules, spans []layout.Span, pieces Pieces) error {
	next, at := 0, 0
	for _, s := range spans {
		first, last := g.Cover(s)
		for i := max(first, next); i <= last; i++ {
			if !o.granule(i, g.Span(i), pieces, &at) {
				return o.wrong()
			}
		}
		next = max(next, last+1)
	}
	return nil
}

// OpenAll decrypts a whole part in place. Error: Damaged.
func (o *Opener) OpenAll(g layout.Granules, part []byte) error {
	at := 0
	for i := range g.N() {
		if !o.granule(i, g.Span(i), whole(part), &at) {
			return o.wrong()
		}
	}
	return nil
}

// whole is a part in one piece.
type whole []byte

func (whole) Len() int                    { return 1 }
func (w whole) Piece(int) (int64, []byte) { return 0, w }

// granule decrypts granule g, whose bytes lie in pieces from piece *at on, in place.
func (o *Opener) granule(g int, s layout.Span, pieces Pieces, at *int) bool {
	scratch := getScratch()
	defer putScratch(scratch)
	for ; *at < pieces.Len(); *at++ {
		if off, mem := pieces.Piece(*at); off+int64(len(mem)) > s.Off {
			break
		}
	}
	buf := (*scratch)[:0]
	off := s.Off
	for i := *at; i < pieces.Len() && off < s.End(); i++ {
		begin, mem := pieces.Piece(i)
		if begin > off {
			break
		}
		if end := begin + int64(len(mem)); end > off {
			to := min(end, s.End())
			buf = append(buf, mem[off-begin:to-begin]...)
			off = to
		}
	}
	if off != s.End() {
		return false
	}
	buf = append(buf, o.tags[g*segment.TagSize:(g+1)*segment.TagSize]...)
	*scratch = buf
	c := o.cipher
	if begin, mem := pieces.Piece(*at); begin+int64(len(mem)) >= s.End() { // as nearly all are
		dst := mem[s.Off-begin : s.Off-begin : s.End()-begin]
		_, err := c.aead.Open(dst, c.at(uint64(g)), buf, c.bound)
		return err == nil
	}
	clear, err := c.aead.Open(buf[:0], c.at(uint64(g)), buf, c.bound)
	if err != nil {
		return false
	}
	for i := *at; len(clear) > 0; i++ {
		begin, mem := pieces.Piece(i)
		if from := max(s.Off-begin, 0); from < int64(len(mem)) {
			clear = clear[copy(mem[from:], clear):]
		}
	}
	return true
}

// OpenRow decrypts what SealRow gave. False: it is not what was sealed, or was bound to something else.
func (s *Secret) OpenRow(sealed, bound []byte) ([]byte, bool) {
	if len(sealed) < segment.NonceSize {
		return nil, false
	}
	aead, err := s.cipher(forRows, sealed[:segment.NonceSize])
	if err != nil {
		return nil, false
	}
	row, err := aead.Open(nil, make([]byte, aead.NonceSize()), sealed[segment.NonceSize:], bound)
	return row, err == nil
}
