package catalog

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// Block copies a block record into buf, which is the caller's, grown when it is too
// small, and returns it. skep.NotFound when there is no such row.
func (c *Catalog) Block(ctx context.Context, l layout.Location, buf []byte) ([]byte, error) {
	const op = "read block row"
	err := c.call(ctx, op, func(v *visitor) error {
		value, closer, err := c.db.Get(appendBlockKey(make([]byte, 0, blockKeySize), l))
		if errors.Is(err, pebble.ErrNotFound) {
			return &skep.Error{Op: op, Kind: skep.NotFound, Field: "location", Value: l}
		}
		if err != nil {
			return err
		}
		defer closer.Close()
		return v.do(func() error {
			buf = append(buf[:0], value...)
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	return buf, nil
}

// nextsBeforeSeek is how many rows Blocks steps over before it seeks: a step costs
// a tenth of a seek.
const nextsBeforeSeek = 8

// Blocks reads many records in one pass over the rows, in their order: adjacent rows
// by stepping, others by seeking. It calls visit once for each of locs, in row
// order, with its index in locs and its record, nil when there is no such row. rec is
// valid during the visit only. An error of visit ends the pass and is returned as
// it is. visit is not called any more once Blocks has returned.
func (c *Catalog) Blocks(ctx context.Context, locs []layout.Location, visit func(i int, rec []byte) error) error {
	if len(locs) == 0 {
		return nil
	}
	order := make([]int32, len(locs))
	for i := range order {
		order[i] = int32(i)
	}
	byRow := func(a, b int32) int { return locs[a].Compare(locs[b]) }
	if !slices.IsSortedFunc(order, byRow) {
		slices.SortStableFunc(order, byRow)
	}
	// The goroutine may outlive this call: it works on a copy.
	sorted := make([]layout.Location, len(locs))
	for i, o := range order {
		sorted[i] = locs[o]
	}
	return c.call(ctx, "read block rows", func(v *visitor) error {
		var key, end [blockKeySize + 1]byte
		upper := append(appendBlockKey(end[:0], sorted[len(sorted)-1]), 0)
		it, err := c.db.NewIter(&pebble.IterOptions{LowerBound: appendBlockKey(key[:0], sorted[0]), UpperBound: upper})
		if err != nil {
			return err
		}
		return finish(it, blocks(it, v, sorted, order, visit))
	})
}

func blocks(it *pebble.Iterator, v *visitor, sorted []layout.Location, order []int32, visit func(int, []byte) error) error {
	var key [blockKeySize]byte
	var at layout.Location // row the iterator stands on, when valid
	valid := false
	load := func(ok bool) {
		if valid = ok; ok {
			at, _ = parseBlockKey(it.Key())
		}
	}
	load(it.First())
	for i, want := range sorted {
		if valid && at.Compare(want) < 0 {
			if at.Group == want.Group {
				for n := 0; n < nextsBeforeSeek && valid && at.Compare(want) < 0; n++ {
					load(it.Next())
				}
			}
			if valid && at.Compare(want) < 0 {
				load(it.SeekGE(appendBlockKey(key[:0], want)))
			}
		}
		var rec []byte
		if valid && at == want {
			var err error
			if rec, err = it.ValueAndErr(); err != nil {
				return err
			}
		} else if err := it.Error(); err != nil {
			return err
		}
		if err := v.do(func() error { return visit(int(order[i]), rec) }); err != nil {
			return err
		}
	}
	return nil
}

// finish closes an iterator and returns the first error, of the walk or its own.
func finish(it *pebble.Iterator, walk error) error {
	return cmp.Or(walk, it.Error(), it.Close())
}

// ScanGroup visits all block rows of a group in order. rec is valid during the visit.
func (c *Catalog) ScanGroup(ctx context.Context, group uint32, visit func(l layout.Location, rec []byte) error) error {
	return c.call(ctx, "scan group", func(v *visitor) error { return scanBlocks(c.db, v, groupRange(group), visit) })
}

func scanBlocks(db *pebble.DB, v *visitor, r keyRange, visit func(layout.Location, []byte) error) error {
	return scan(db, r, func(key, value []byte) error {
		l, ok := parseBlockKey(key)
		if !ok {
			return damaged(key, errors.New("not a block row"))
		}
		return v.do(func() error { return visit(l, value) })
	})
}

func scan(db *pebble.DB, r keyRange, visit func(key, value []byte) error) error {
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: r.lower, UpperBound: r.upper})
	if err != nil {
		return err
	}
	walk := func() error {
		for ok := it.First(); ok; ok = it.Next() {
			value, err := it.ValueAndErr()
			if err != nil {
				return err
			}
			if err := visit(it.Key(), value); err != nil {
				return err
			}
		}
		return nil
	}
	return finish(it, walk())
}

// get reads and decodes one row; false when there is none.
func get(db pebble.Reader, key []byte, decode func(body []byte) error) (bool, error) {
	value, closer, err := db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer closer.Close()
	return true, decodeRow(key, value, decode)
}

// Owner reads whose the devices are; false where nothing says so.
func (c *Catalog) Owner(ctx context.Context) (o Owner, found bool, err error) {
	err = c.call(ctx, "read owner row", func(v *visitor) error {
		var got Owner
		ok, err := get(c.db, []byte{rowOwner}, func(body []byte) error { return json.Unmarshal(body, &got) })
		if err != nil {
			return err
		}
		return v.do(func() error { o, found = got, ok; return nil })
	})
	return o, found, err
}

// Store reads the root; skep.NotFound in a catalog that was created and not yet given one.
func (c *Catalog) Store(ctx context.Context) (StoreState, error) {
	var s StoreState
	err := c.call(ctx, "read store row", func(v *visitor) error {
		var got StoreState
		found, err := get(c.db, []byte{rowStore}, got.decode)
		if err != nil {
			return err
		}
		if !found {
			return &skep.Error{Op: "read store row", Kind: skep.NotFound, Field: "store row"}
		}
		return v.do(func() error { s = got; return nil })
	})
	return s, err
}

// Groups lists all groups, by number.
func (c *Catalog) Groups(ctx context.Context) ([]GroupState, error) {
	return list(ctx, c, rowGroup, func(key, value []byte) (g GroupState, err error) {
		if len(key) != 5 {
			return g, damaged(key, errShort)
		}
		g.Group = binary.BigEndian.Uint32(key[1:])
		return g, decodeRow(key, value, g.decode)
	})
}

// Namespaces lists all namespaces, by number.
func (c *Catalog) Namespaces(ctx context.Context) ([]Namespace, error) {
	return list(ctx, c, rowNamespace, func(key, value []byte) (n Namespace, err error) {
		if len(key) != 5 {
			return n, damaged(key, errShort)
		}
		err = decodeRow(key, value, n.decode)
		n.ID = skep.NamespaceID(binary.BigEndian.Uint32(key[1:]))
		return n, err
	})
}

// Purges lists all purges, by instance.
func (c *Catalog) Purges(ctx context.Context) ([]Purge, error) {
	return list(ctx, c, rowPurge, func(key, value []byte) (p Purge, err error) {
		if len(key) != 21 {
			return p, damaged(key, errShort)
		}
		p.Instance, p.Tag = binary.BigEndian.Uint32(key[1:]), [16]byte(key[5:])
		return p, decodeRow(key, value, p.decode)
	})
}

// Intent is a row 'j': log entries that a crash may have kept from the devices.
type Intent struct {
	Number  uint64
	Entries []byte
}

// Intents lists what is still to be written to the devices' logs, by number.
func (c *Catalog) Intents(ctx context.Context) ([]Intent, error) {
	return list(ctx, c, rowIntent, func(key, value []byte) (i Intent, err error) {
		if len(key) != 9 {
			return i, damaged(key, errShort)
		}
		i.Number = binary.BigEndian.Uint64(key[1:])
		return i, decodeRow(key, value, func(body []byte) error {
			i.Entries = slices.Clone(body)
			return nil
		})
	})
}

// Devices lists all devices, by index.
func (c *Catalog) Devices(ctx context.Context) ([]DeviceState, error) {
	return list(ctx, c, rowDevice, func(key, value []byte) (d DeviceState, err error) {
		if len(key) != 3 {
			return d, damaged(key, errShort)
		}
		d.Index = binary.BigEndian.Uint16(key[1:])
		return d, decodeRow(key, value, d.decode)
	})
}

func list[T any](ctx context.Context, c *Catalog, row byte, decode func(key, value []byte) (T, error)) ([]T, error) {
	var all []T
	err := c.call(ctx, "list rows", func(v *visitor) error {
		return scan(c.db, rowRange(row), func(key, value []byte) error {
			t, err := decode(key, value)
			if err != nil {
				return err
			}
			return v.do(func() error { all = append(all, t); return nil })
		})
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// Usage is what a catalog takes, in bytes.
type Usage struct {
	Disk      int64 // tables, log and manifest
	Log       int64 // of it, the log
	Cache     int64 // memory: table blocks
	Memtables int64 // memory: rows not yet in tables
	Tables    int64 // how many
}

// Usage says what the catalog takes now.
func (c *Catalog) Usage(ctx context.Context) (Usage, error) {
	var u Usage
	err := c.call(ctx, "catalog usage", func(v *visitor) error {
		m := c.db.Metrics()
		t := m.Total()
		return v.do(func() error {
			u = Usage{Disk: int64(m.DiskSpaceUsage()), Log: int64(m.WAL.PhysicalSize), Cache: m.BlockCache.Size,
				Memtables: int64(m.MemTable.Size), Tables: t.TablesCount}
			return nil
		})
	})
	return u, err
}
