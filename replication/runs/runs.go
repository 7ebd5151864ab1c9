// Package runs is blocks of a node on their way to another one: cut into puts, read from the node's own Store.
package runs

import (
	"bytes"
	"cmp"
	"context"
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// What a run has at most.
const (
	MaxBytes  = 8 << 20
	MaxBlocks = 64
)

// Bytes is the payload of a block.
func Bytes(b *skep.StoredBlock) (n int64) {
	for _, p := range b.Manifest {
		n += p.Size
	}
	return n
}

// Cut cuts blocks into puts. In the end blocks are in the order of the runs.
func Cut(blocks []skep.StoredBlock) (runs [][]skep.StoredBlock) {
	slices.SortFunc(blocks, func(a, b skep.StoredBlock) int {
		return cmp.Or(bytes.Compare(a.First[:], b.First[:]), cmp.Compare(a.Depth, b.Depth),
			bytes.Compare(a.Key[:], b.Key[:]))
	})
	from, size := 0, int64(0)
	for i := range blocks {
		b := &blocks[i]
		if i > from && (b.Parent == nil || *b.Parent != blocks[i-1].Key || b.First != blocks[i-1].First ||
			size+Bytes(b) > MaxBytes || i-from == MaxBlocks) {
			runs = append(runs, blocks[from:i])
			from, size = i, 0
		}
		size += Bytes(b)
	}
	if from < len(blocks) {
		runs = append(runs, blocks[from:])
	}
	return runs
}

// Spares says whether a Store has room that it need not evict for: a sixteenth of its cap.
func Spares(st *skep.Stats) bool {
	if st.CapacityBytes <= 0 {
		return true
	}
	limit := max(st.CapacityBytes, st.DeviceBytes) // drives that were added are beyond the cap
	free := limit - st.DeviceBytes
	if n := int64(st.Groups + st.FreeGroups); n > 0 {
		free += st.DeviceBytes / n * int64(st.FreeGroups)
	}
	return free >= limit/16
}

// Memory is how many bytes Read needs for a run: each part begins on a page.
func Memory(run []skep.StoredBlock) (size int64) {
	for i := range run {
		for _, p := range run[i].Manifest {
			size += pages(p.Size)
		}
	}
	return max(size, 1)
}

func pages(n int64) int64 { return (n + layout.PageSize - 1) / layout.PageSize * layout.PageSize }

// Read gives the run's blocks as a node's own Store has them, in memory of that size, up to the first that cannot be
// read any more. each is called with every chunk that came, or did not; nil where nobody wants to know.
func Read(ctx context.Context, st skep.Store, space skep.NamespaceID, run []skep.StoredBlock, mem []byte,
	each func(*skep.Chunk)) ([]skep.Block, error) {
	q := &skep.RestoreRequest{}
	var at []int // the block of each chain
	blocks := make([]skep.Block, len(run))
	for i := range run {
		b := &run[i]
		blocks[i] = skep.Block{Key: b.Key, Name: b.Name, ValidTokens: b.ValidTokens}
		for _, p := range b.Manifest {
			part := mem[:p.Size:p.Size]
			mem = mem[pages(p.Size):]
			blocks[i].Parts = append(blocks[i].Parts, skep.Part{Name: p.Name, Bytes: part})
			if p.Size == 0 {
				continue
			}
			at = append(at, i)
			q.Chains = append(q.Chains, skep.Chain{Scope: skep.Scope{Namespace: space}, Keys: []skep.Key{b.Key},
				Part: p.Name, Priority: -1, Dest: skep.Destination{Memory: part, Stride: p.Size}})
		}
	}
	whole := len(run)
	for len(q.Chains) > 0 {
		some := &skep.RestoreRequest{Chains: q.Chains[:min(len(q.Chains), skep.MaxChains)]}
		of := at[:len(some.Chains)]
		err := skep.Load(ctx, st, some, func(c *skep.Chunk) error {
			if each != nil {
				each(c)
			}
			if c.Err != nil {
				whole = min(whole, of[c.Chain])
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		q.Chains, at = q.Chains[len(some.Chains):], at[len(some.Chains):]
	}
	return blocks[:whole], nil
}
