package segio

import (
	"iter"

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

// Whole is a part in one piece.
type Whole []byte

func (Whole) Len() int                    { return 1 }
func (w Whole) Piece(int) (int64, []byte) { return 0, w }

// Sums are the checksums of the granules of one part.
type Sums struct {
	Granules layout.Granules
	Seed     segment.Seed
	Sums     []uint64
}

// SumsOf are those of part i of rec, which it shares them with. Error: Damaged, of operation op, when
// they are not as many as the part has granules.
func SumsOf(op string, shape skep.Shape, rec *segment.Record, i int) (Sums, error) {
	p := &rec.Parts[i]
	g, err := layout.GranulesOf(shape, p.Name, p.Size)
	if err != nil {
		return Sums{}, err
	}
	if g.N() != len(p.Sums) {
		return Sums{}, &skep.Error{Op: op, Kind: skep.Damaged, Field: "granule checksums", Value: len(p.Sums), Limit: g.N()}
	}
	return Sums{Granules: g, Seed: rec.Seed(i), Sums: p.Sums}, nil
}

// Compute makes the checksums what those of data are.
func (s *Sums) Compute(data []byte) {
	for i := range s.Sums {
		sp := s.Granules.Span(i)
		s.Sums[i] = s.Seed.Sum(i, data[sp.Off:sp.End()])
	}
}

// All is the whole part, as spans of it.
func (s *Sums) All() []layout.Span {
	return []layout.Span{{Len: s.Granules.Part}}
}

// Wrong gives the granules that spans touch, lowest first and each once, whose bytes in pieces do
// not have their checksum, or are not all there. It is the one place where payload is compared
// with its checksums.
func (s *Sums) Wrong(spans []layout.Span, pieces Pieces) iter.Seq2[int, layout.Span] {
	return func(yield func(int, layout.Span) bool) {
		next := 0 // first granule not compared
		at := 0   // piece that holds or precedes it
		for _, sp := range spans {
			first, last := s.Granules.Cover(sp)
			for g := max(first, next); g <= last; g++ {
				granule := s.Granules.Span(g)
				sum, ok := sumOf(s.Seed, g, granule, pieces, &at)
				if (!ok || sum != s.Sums[g]) && !yield(g, granule) {
					return
				}
			}
			next = max(next, last+1)
		}
	}
}

// sumOf hashes a granule out of the pieces it lies in, starting at piece *at.
func sumOf(seed segment.Seed, g int, s layout.Span, pieces Pieces, at *int) (sum uint64, ok bool) {
	for ; ; *at++ {
		if *at == pieces.Len() {
			return 0, false
		}
		off, mem := pieces.Piece(*at)
		if off+int64(len(mem)) <= s.Off {
			continue
		}
		if off <= s.Off && off+int64(len(mem)) >= s.End() { // as nearly all are
			return seed.Sum(g, mem[s.Off-off:s.End()-off]), true
		}
		break
	}
	var h segment.Hasher
	h.Reset(seed, g)
	want := s.Off
	for i := *at; i < pieces.Len() && want < s.End(); i++ {
		off, mem := pieces.Piece(i)
		if off > want {
			return 0, false
		}
		if end := off + int64(len(mem)); end > want {
			to := min(end, s.End())
			h.Write(mem[want-off : to-off])
			want = to
		}
	}
	return h.Sum(), want == s.End()
}

// Verify compares every granule of every part of a block with its record; stored is the block's
// stored form. Error: Damaged, with the ranges of stored that are wrong where that is known.
func Verify(shape skep.Shape, rec *segment.Record, stored []byte) (wrong []layout.Span, err error) {
	var off int64
	for i := range rec.Parts {
		p := &rec.Parts[i]
		data, at := p.Inline, int64(-1)
		if data == nil {
			padded := layout.Padded(p.Size)
			if off+padded > int64(len(stored)) {
				return nil, damagedRecord("stored bytes", len(stored))
			}
			data, at = stored[off:off+p.Size], off
			off += padded
		}
		sums, e := SumsOf("verify", shape, rec, i)
		if e != nil {
			return nil, e
		}
		for g, sp := range sums.Wrong(sums.All(), Whole(data)) {
			if err == nil {
				err = damagedRecord("granule of part "+p.Name, g)
			}
			if at >= 0 {
				wrong = append(wrong, layout.Span{Off: at + sp.Off, Len: sp.Len})
			}
		}
	}
	return wrong, err
}

func damagedRecord(field string, value any) error {
	return &skep.Error{Op: "verify", Kind: skep.Damaged, Field: field, Value: value}
}
