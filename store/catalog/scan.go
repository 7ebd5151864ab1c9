package catalog

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// piecesPerShard is how many key ranges a scan is cut into for each goroutine, so
// that none is long alone at the end.
const piecesPerShard = 8

// ScanBlocks visits all block rows in n goroutines, each on key ranges of its own:
// visit is called from all of them at once, with shard 0 to n-1 saying from which, so
// that it can keep state by shard without locks. Rows come in order within a range
// only. rec is valid during the visit. The first error ends the scan. Rows written
// meanwhile may or may not be seen; it is made for loading everything at open.
func (c *Catalog) ScanBlocks(ctx context.Context, n int, visit func(shard int, l layout.Location, rec []byte) error) error {
	const op = "scan blocks"
	if n < 1 {
		return skep.Invalidf(op, "goroutines", n, "at least 1")
	}
	var pieces []keyRange
	err := c.call(ctx, op, func(v *visitor) error {
		p, err := cut(c.db, n*piecesPerShard)
		return cmp.Or(err, v.do(func() error { pieces = p; return nil }))
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var first error
	var once sync.Once
	var next atomic.Int64
	var wg sync.WaitGroup
	for shard := range min(n, len(pieces)) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(pieces)) && ctx.Err() == nil; i = next.Add(1) - 1 {
				if err := c.call(ctx, op, func(v *visitor) error {
					return scanBlocks(c.db, v, pieces[i], func(l layout.Location, rec []byte) error { return visit(shard, l, rec) })
				}); err != nil {
					once.Do(func() { first = err })
					cancel()
				}
			}
		})
	}
	wg.Wait()
	if first == nil && ctx.Err() != nil {
		return waitError(op, ctx.Err())
	}
	return first
}

// cut divides the block rows into about n ranges of like size: at the borders of the
// tables, which Pebble makes of like size, and, as long as these are too few, at
// groups. What is still in memtables falls where it falls.
func cut(db *pebble.DB, n int) ([]keyRange, error) {
	all := rowRange(rowBlock)
	levels, err := db.SSTables()
	if err != nil {
		return nil, err
	}
	var borders [][]byte
	for _, level := range levels {
		for _, t := range level {
			borders = append(borders, t.Smallest.UserKey, t.Largest.UserKey)
		}
	}
	borders = append(borders, groupBorders(db, all, n)...)
	borders = slices.DeleteFunc(borders, func(k []byte) bool {
		return bytes.Compare(k, all.lower) <= 0 || bytes.Compare(k, all.upper) >= 0
	})
	slices.SortFunc(borders, bytes.Compare)
	borders = slices.CompactFunc(borders, bytes.Equal)
	return ranges(all, borders, n), nil
}

// groupBorders are up to n group numbers between the first and the last, evenly.
func groupBorders(db *pebble.DB, all keyRange, n int) (borders [][]byte) {
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: all.lower, UpperBound: all.upper})
	if err != nil {
		return nil
	}
	defer it.Close()
	if !it.First() {
		return nil
	}
	first, _ := parseBlockKey(it.Key())
	it.Last()
	last, _ := parseBlockKey(it.Key())
	span := uint64(last.Group) - uint64(first.Group)
	for i := range uint64(n) {
		borders = append(borders, binary.BigEndian.AppendUint32([]byte{rowBlock}, first.Group+uint32(span*i/uint64(n))))
	}
	return borders
}

// ranges picks at most n-1 of the sorted borders, evenly, and cuts all there.
func ranges(all keyRange, borders [][]byte, n int) []keyRange {
	var out []keyRange
	lower := all.lower
	pick := min(n-1, len(borders))
	for i := range pick {
		b := slices.Clone(borders[(i+1)*len(borders)/(pick+1)])
		if bytes.Compare(lower, b) < 0 {
			out = append(out, keyRange{lower, b})
			lower = b
		}
	}
	return append(out, keyRange{lower, all.upper})
}
