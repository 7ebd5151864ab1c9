package elastic

import (
	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// Borrower is the model that borrows (the paper's master): the memory it has of its own and
// the geometry of its blocks.
type Borrower struct {
	Local    int64 // C_master, bytes of its own GPU memory for KV
	Geometry layout.Geometry
}

// Capacity is how many blocks a borrower can have at work in one prefill.
type Capacity struct {
	Stream  int // N_LSC, eq. 4: one layer of each is local, the rest is lent memory
	Regular int // N_RC, eq. 5: all layers are local
	Tokens  int // (N_LSC + N_RC) · B
	// Conventional is how many the same local memory holds with all layers local.
	Conventional int
}

// LentBlocks is K_i (eq. 2): how many of the borrower's blocks, all layers, fit into bytes
// lent to it. Lent memory that is handed over in units holds what Unit.Borrower says.
func LentBlocks(g layout.Geometry, bytes int64) int {
	if full := fullBytes(g); full > 0 && bytes > 0 {
		return int(bytes / full)
	}
	return 0
}

// LayerBlocks is K_master (eq. 3): how many single-layer blocks fit into bytes.
func LayerBlocks(g layout.Geometry, bytes int64) int {
	if layer := g.MBlock(); layer > 0 && bytes > 0 {
		return int(bytes / layer)
	}
	return 0
}

func fullBytes(g layout.Geometry) int64 { return g.MBlock() * int64(g.Layers()) }

// Divide is eq. 4 and 5 over the blocks that are lent at this moment, one number a lender: to be
// asked again at each move of a border. Of local memory for so many single-layer blocks, stream
// are for the layer at work, one for each lent block, and what is left holds regular blocks of all
// layers. Negative numbers count as none, and so does everything where there are no layers.
func Divide(local, layers int, lent ...int) (stream, regular int) {
	return DivideBy(local, layers, 1, lent...)
}

// DivideBy is Divide where each lent block has room for so many of its layers: 2 with two buffers, or with one and the
// first layer resident. Of less than 1 it is that of 1.
func DivideBy(local, layers, room int, lent ...int) (stream, regular int) {
	if local < 0 || layers < 1 {
		return 0, 0
	}
	room = max(room, 1)
	for _, k := range lent {
		stream += min(max(k, 0), local/room-stream) // more than local is as good as local
	}
	return stream, (local - room*stream) / layers
}

// Capacity is Divide for what the borrower has.
func (b Borrower) Capacity(lent ...int) Capacity { return b.CapacityBy(1, lent...) }

// CapacityBy is DivideBy for what the borrower has.
func (b Borrower) CapacityBy(room int, lent ...int) Capacity {
	layers := b.Geometry.Layers()
	local := LayerBlocks(b.Geometry, b.Local)
	c := Capacity{Conventional: local / layers}
	c.Stream, c.Regular = DivideBy(local, layers, room, lent...)
	c.Tokens = (c.Stream + c.Regular) * b.Geometry.Shape().BlockTokens
	return c
}

// DecodeBytes is what decoding one token from lent memory moves over the link: every layer
// of every streamed block. It is the price of Capacity's Stream, which is for prefill.
func (b Borrower) DecodeBytes(c Capacity) int64 { return int64(c.Stream) * fullBytes(b.Geometry) }

// Granule is what GPUs map memory in.
const Granule = 2 << 20

// MaxUnit is the largest unit by default.
const MaxUnit = 64 << 20

// Unit is the step in which a border moves, the paper's minimum elastic unit in bytes: with
// K and V, each side's element type, and whole granules.
type Unit struct {
	Bytes         int64
	LenderBlock   int64 // bytes of a block, all layers
	BorrowerBlock int64
	Lender        int // MEU_i: the lender's blocks in a unit
	Borrower      int // MEU_m
	// Bytes of a unit that no block can use. Zero when Bytes is the plain least common
	// multiple, which for unlike shapes can be hundreds of MiB.
	LenderWaste   int64
	BorrowerWaste int64
}

// Waste is the larger of the two sides' shares of a unit that no block can use.
func (u Unit) Waste() float64 {
	return float64(max(u.LenderWaste, u.BorrowerWaste)) / float64(u.Bytes)
}

// UnitFor is the unit of two models' blocks: the least common multiple of both and of
// Granule where that is at most limit (0: MaxUnit); else the multiple of Granule up to limit
// that wastes the smallest share, the smaller one of equals. Invalid when a block is larger
// than limit.
func UnitFor(lender, borrower layout.Geometry, limit int64) (Unit, error) {
	if limit == 0 {
		limit = MaxUnit
	}
	a, b := fullBytes(lender), fullBytes(borrower)
	if limit < Granule || limit > 1<<40 {
		return Unit{}, skep.Invalidf("elastic unit", "limit in bytes", limit, "2 MiB to 1 TiB")
	}
	if a <= 0 || a > limit {
		return Unit{}, skep.Invalidf("elastic unit", "lender's block in bytes", a, limit)
	}
	if b <= 0 || b > limit {
		return Unit{}, skep.Invalidf("elastic unit", "borrower's block in bytes", b, limit)
	}
	if n := lcm(lcm(a, b, limit), Granule, limit); n <= limit {
		return unitOf(n, a, b), nil
	}
	best := Unit{}
	for n := (max(a, b) + Granule - 1) / Granule * Granule; n <= limit; n += Granule {
		if u := unitOf(n, a, b); best.Bytes == 0 || u.Waste() < best.Waste() {
			best = u
		}
	}
	if best.Bytes == 0 {
		return Unit{}, skep.Invalidf("elastic unit", "larger block in whole granules", max(a, b), limit)
	}
	return best, nil
}

func unitOf(n, a, b int64) Unit {
	return Unit{Bytes: n, LenderBlock: a, BorrowerBlock: b, Lender: int(n / a), Borrower: int(n / b), LenderWaste: n % a, BorrowerWaste: n % b}
}

// lcm is the least common multiple, or limit+1 when it is larger than limit.
func lcm(a, b, limit int64) int64 {
	if a > limit || b > limit {
		return limit + 1
	}
	g := a
	for r := b; r != 0; {
		g, r = r, g%r
	}
	if q := b / g; a > limit/q {
		return limit + 1
	} else {
		return a * q
	}
}

// Elements is BE (eq. 6 and 7): the elements of one block, K and V counted once, as the
// paper counts them.
func Elements(layers, tokens, heads, dim int) int64 {
	return int64(layers) * int64(tokens) * int64(heads) * int64(dim)
}

// MEU is eq. 8 and 9: in how many blocks of each side a border moves when it moves by the
// least common multiple of their elements. (0, 0) when that is beyond 2^62.
func MEU(master, worker int64) (ofMaster, ofWorker int64) {
	if master <= 0 || worker <= 0 {
		return 0, 0
	}
	n := lcm(master, worker, 1<<62)
	if n > 1<<62 {
		return 0, 0
	}
	return n / master, n / worker
}
