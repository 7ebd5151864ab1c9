package layout

import (
	"iter"

	"github.com/skepkv/skep"
)

// Piece is what is loaded and delivered as one chunk: some layers of one block.
type Piece struct {
	Block  int
	Layers skep.Range
}

// Sequence is the order in which a chain's pieces move. The numbers are the pieces of
// 4 blocks with 3 layers; the directions that come from the far end are for engines
// that compute from the near one meanwhile, until the two meet.
//
//	block      0  1  2  3      0  1  2  3      0  1  2  3      0  1  2  3
//	layer 2    1  2  3  4      4  3  2  1      9 10 11 12      1  2  3  4
//	layer 1    |  |  |  |      |  |  |  |      5  6  7  8      5  6  7  8
//	layer 0    |  |  |  |      |  |  |  |      1  2  3  4      9 10 11 12
//	           HeadFirst       TailFirst       LayersUp        LayersDown
type Sequence struct {
	dir            skep.Direction
	blocks, layers skep.Range
}

// Order is the sequence of the given blocks and layers in direction dir. In the
// block directions a piece is all the layers of a block, in the layer directions one
// layer of one, blocks in ascending order within each layer. The ranges are taken as
// they are (resolve a zero Range first, Range.Within); an empty one gives an empty
// sequence.
func Order(dir skep.Direction, blocks, layers skep.Range) Sequence {
	return Sequence{dir, blocks, layers}
}

// Len is the number of pieces.
func (s Sequence) Len() int {
	if s.blocks.Len() <= 0 || s.layers.Len() <= 0 {
		return 0
	}
	if s.dir.ByLayer() {
		return s.blocks.Len() * s.layers.Len()
	}
	return s.blocks.Len()
}

// At is piece i; it must be in 0 to Len()-1.
func (s Sequence) At(i int) Piece {
	if !s.dir.ByLayer() {
		if s.dir == skep.TailFirst {
			return Piece{s.blocks.To - 1 - i, s.layers}
		}
		return Piece{s.blocks.From + i, s.layers}
	}
	l, b := s.layers.From, s.blocks.From
	if n := s.blocks.Len(); n > 0 {
		l, b = l+i/n, b+i%n
	}
	if s.dir == skep.LayersDown {
		l = s.layers.To - 1 - (l - s.layers.From)
	}
	return Piece{b, skep.Range{From: l, To: l + 1}}
}

// Index is the place of a piece in the sequence, -1 when it is not in it. Of the
// piece's layers only the first counts, and only in the layer directions.
func (s Sequence) Index(p Piece) int {
	if p.Block < s.blocks.From || p.Block >= s.blocks.To || s.Len() == 0 {
		return -1
	}
	b := p.Block - s.blocks.From
	switch s.dir {
	case skep.TailFirst:
		return s.blocks.Len() - 1 - b
	case skep.LayersUp, skep.LayersDown:
		l := p.Layers.From
		if l < s.layers.From || l >= s.layers.To {
			return -1
		}
		if l -= s.layers.From; s.dir == skep.LayersDown {
			l = s.layers.Len() - 1 - l
		}
		return l*s.blocks.Len() + b
	}
	return b
}

// All goes through the pieces in order.
func (s Sequence) All() iter.Seq[Piece] {
	return func(yield func(Piece) bool) {
		for i := range s.Len() {
			if !yield(s.At(i)) {
				return
			}
		}
	}
}
