package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout/elastic"
)

// ElasticOptions are those of Elastic.
type ElasticOptions struct {
	Common
	Blocks    []int   // of the arena; a row each and layout
	Occupancy float64 // share of the blocks in use, at random
	Layers    int     // of the layer-major pool
	SlotBytes int     // of one layer of a block there
	Seed      uint64
}

// ElasticRow is one line of bench elastic.
type ElasticRow struct {
	Layout    string  `json:"layout"`      // block-major or layer-major
	Blocks    int     `json:"blocks"`      // of the arena (blocks)
	Occupancy float64 `json:"occupancy"`   // share in use
	NsPerMove float64 `json:"ns_per_move"` // one move by one unit; median of the rounds (ns)
	Relocated int64   `json:"relocated"`   // pieces of memory a move copied: one layer of a block each
	Stranded  float64 `json:"stranded"`    // mean number of sides with blocks in use beyond the border after a move
	// of one layer of a block in the layer-major pool; 0 for block-major (bytes)
	SlotBytes int       `json:"slot_bytes"`
	Layers    int       `json:"layers"`     // of the layer-major pool
	Samples   []float64 `json:"samples_ns"` // each round's (ns)
}

// Elastic measures what a border move costs, in the block-major arena and in a layer-major
// pool in memory, at random occupancy.
func Elastic(ctx context.Context, o ElasticOptions) ([]ElasticRow, error) {
	o.EnsureDefaults()
	const op = "bench elastic"
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if !(o.Occupancy >= 0 && o.Occupancy <= 1) {
		return nil, skep.Invalidf(op, "--occupancy", o.Occupancy, "0 to 1")
	}
	if o.Layers < 1 || o.Layers > 1024 {
		return nil, skep.Invalidf(op, "--layers", o.Layers, "1 to 1024")
	}
	if o.SlotBytes < 1 || o.SlotBytes > 1<<20 {
		return nil, skep.Invalidf(op, "--slot-bytes", o.SlotBytes, fmt.Sprintf("1 to %d", 1<<20))
	}
	var rows []ElasticRow
	for _, n := range o.Blocks {
		if n < 4 || n > 1<<24 {
			return nil, skep.Invalidf(op, "--blocks", n, fmt.Sprintf("4 to %d", 1<<24))
		}
		if size := int64(n+1) * int64(o.Layers) * int64(o.SlotBytes); size > 4<<30 {
			return nil, skep.Invalidf(op, "bytes of the layer-major pool", size, fmt.Sprintf("at most %d: fewer blocks, layers or slot bytes", int64(4)<<30))
		}
		o.Note("%d blocks", n)
		arena := ElasticRow{Layout: "block-major", Blocks: n, Occupancy: o.Occupancy, Layers: o.Layers}
		pool := ElasticRow{Layout: "layer-major", Blocks: n, Occupancy: o.Occupancy, Layers: o.Layers, SlotBytes: o.SlotBytes}
		a, err := o.arena(n)
		if err != nil {
			return nil, err
		}
		p := newLayerMajor(n, o.Layers, o.SlotBytes)
		for range o.Rounds {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			ns, stranded, err := moveArena(a)
			if err != nil {
				return nil, err
			}
			arena.Samples = append(arena.Samples, ns)
			arena.Stranded += stranded / float64(o.Rounds)
			ns, pool.Relocated = p.move()
			pool.Samples = append(pool.Samples, ns)
		}
		for _, r := range []*ElasticRow{&arena, &pool} {
			sorted := slices.Sorted(slices.Values(r.Samples))
			r.NsPerMove = sorted[(len(sorted)-1)/2]
			rows = append(rows, *r)
		}
	}
	return rows, nil
}

// arena is n blocks of each side, the border in the middle, filled and then freed at random
// down to the occupancy asked for.
func (o *ElasticOptions) arena(n int) (*elastic.Arena, error) {
	a, err := elastic.New(elastic.Unit{Bytes: elastic.Granule, LenderBlock: elastic.Granule, BorrowerBlock: elastic.Granule, Lender: 1, Borrower: 1}, n, 0)
	if err != nil {
		return nil, err
	}
	if err := a.Move(-n / 2); err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(o.Seed, uint64(n)))
	for _, s := range []elastic.Side{elastic.Lender, elastic.ToBorrower} {
		var used []int
		for b, ok := a.Alloc(s); ok; b, ok = a.Alloc(s) {
			used = append(used, b)
		}
		rng.Shuffle(len(used), func(i, j int) { used[i], used[j] = used[j], used[i] })
		for _, b := range used[:int(float64(len(used))*(1-o.Occupancy)+0.5)] {
			if err := a.Free(s, b); err != nil {
				return nil, err
			}
		}
	}
	return a, nil
}

// elasticMoves is how many moves a sample of the block-major arena is the mean of.
const elasticMoves = 10_000

// moveArena moves the border by one unit at a time, to and fro over a tenth of the arena.
func moveArena(a *elastic.Arena) (ns, stranded float64, err error) {
	reach := max(a.Units()/10, 1)
	home := a.Border()
	start := time.Now()
	for i := range elasticMoves {
		step := -1
		if i/reach%2 == 1 {
			step = 1
		}
		if err := a.Move(step); err != nil {
			return 0, 0, err
		}
		if _, ok := a.Stranded(elastic.Lender); ok {
			stranded++
		}
		if _, ok := a.Stranded(elastic.ToBorrower); ok {
			stranded++
		}
	}
	took := time.Since(start)
	return float64(took.Nanoseconds()) / elasticMoves, stranded / elasticMoves, a.Move(home - a.Border())
}

// layerMajor is a pool [layer][block][slot] whose number of blocks changes: layers lie one
// after another, so all of them but the first move.
type layerMajor struct {
	mem                  []byte
	layers, blocks, slot int
	grown                bool
}

func newLayerMajor(blocks, layers, slot int) *layerMajor {
	p := &layerMajor{mem: make([]byte, (blocks+1)*layers*slot), layers: layers, blocks: blocks, slot: slot}
	for i := range p.mem {
		p.mem[i] = byte(i) // the pages are there
	}
	return p
}

// move adds a block to each layer, or takes it away again.
func (p *layerMajor) move() (ns float64, relocated int64) {
	from, to := p.blocks, p.blocks+1
	start := time.Now()
	if !p.grown {
		for l := p.layers - 1; l > 0; l-- { // the last layer first: it makes room
			copy(p.mem[l*to*p.slot:], p.mem[l*from*p.slot:(l+1)*from*p.slot])
		}
	} else {
		for l := 1; l < p.layers; l++ {
			copy(p.mem[l*from*p.slot:], p.mem[l*to*p.slot:l*to*p.slot+from*p.slot])
		}
	}
	p.grown = !p.grown
	return float64(time.Since(start).Nanoseconds()), int64(p.layers-1) * int64(from)
}
