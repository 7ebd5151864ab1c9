package recovery

import (
	"bytes"
	"context"
	"runtime"
	"slices"
	"sync"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/crypt"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// loadPiece is how many blocks are handed to the index at a time.
const loadPiece = 1 << 14

// Blocks fills the index from the catalog. It returns the rows an unclean end
// left in doubt: written after the last flush.
func (ld *Loader) Blocks(ctx context.Context, root catalog.StoreState, into *index.Index) ([]Doubt, error) {
	ld.Index = into
	shards := max(1, runtime.GOMAXPROCS(0))
	type shard struct {
		entries  []index.Entry
		doubtful []Doubt
		stale    []layout.Location
		seq      uint64
		bytes    int64 // of rows of scope, not counted yet
		// Rows of one scope, and a chain's blocks, mostly follow each other.
		scope namespaces.SaltTag
		ns    *namespaces.Namespace // of scope; nil: none, or purged
		bare  bool                  // no encryption key is noted of it, or none that is there: its blocks say more
		had   bool                  // a row of scope, with this key and fingerprint
		key   skep.Key
		fp    index.Fingerprint
	}
	list := make([]shard, shards)
	sealed := make([]crypt.Seen, shards)
	count := func(sh *shard) {
		if sh.ns != nil {
			sh.ns.Stored.Add(sh.bytes)
		}
		sh.bytes = 0
	}
	var mu sync.Mutex // one piece at a time goes into the index
	load := func(sh *shard) error {
		mu.Lock()
		defer mu.Unlock()
		again, err := ld.Index.BulkLoadAgain(sh.entries, nil)
		if err != nil {
			return err
		}
		for _, i := range again {
			e := &sh.entries[i]
			have, ok := ld.Index.Resolve(e.FP)
			if !ok || have.Location == e.Location {
				continue
			}
			// A block that was found damaged and put again may have two rows: the newer counts.
			lose, bytes, err := ld.older(ctx, e.Location, have.Location)
			if err != nil {
				return err
			}
			ld.Names.Unstored(e.Namespace, bytes)
			if lose == have.Location {
				ld.Index.Remove(e.FP, have.Location)
				if _, _, err := ld.Index.Insert(*e); err != nil {
					return err
				}
			}
			sh.stale = append(sh.stale, layout.Unpack(lose))
		}
		sh.entries = sh.entries[:0]
		return nil
	}
	err := ld.Catalog.ScanBlocks(ctx, shards, func(i int, l layout.Location, row []byte) error {
		sh := &list[i]
		h, err := segment.DecodeHead(row)
		if err != nil {
			return ld.damaged(l, err)
		}
		sh.seq = max(sh.seq, h.Seq)
		t := namespaces.Tag(h.SaltTag)
		if k := (namespaces.SaltTag{Instance: h.Instance, Tag: t}); k != sh.scope {
			count(sh)
			sh.scope, sh.ns, sh.had = k, ld.Names.Of(h.Instance), false
			if ld.Names.Dead(h.Instance, t) {
				sh.ns = nil
			}
			sh.bare = sh.ns != nil && !ld.Keys.Holds(sh.ns.Info.Tenant, h.Instance)
		}
		ns := sh.ns
		if ns == nil {
			return nil // purged: the cleaner meets it in its group
		}
		g := ld.Space.Loaded(l.Group)
		if g == nil {
			sh.stale = append(sh.stale, l)
			return nil
		}
		if sh.bare && h.Sealed {
			sealed[i].Note(h.Instance, row)
		}
		g.Holds(layout.SlotsOf(int(h.Pages), h.Bytes), int(h.Copies), len(row)*max(1, ns.Info.Copies))
		e := index.Entry{
			FP: ld.Names.Fingerprint(h.Instance, t, h.Key), HasParent: h.HasParent, Depth: h.Depth,
			Location: l.Pack(), Pages: uint32(layout.SlotsOf(int(h.Pages), h.Bytes)), Namespace: h.Instance,
			Tenant: ns.Tenant,
			Opaque: !ns.Info.Chained, Durable: ns.Info.Class == skep.Durable, Copies: uint8(ns.Info.Copies),
			Partial: h.ValidTokens != 0, Odd: h.Bytes != ns.PartSize(skep.PartKV),
			// What was used and when is not stored. Until the first turnover everything counts
			// as used when it was written, so that a restart alone drops nothing.
			Touched: true, Uses: 1, Last: ld.TickOf(h.Seq),
		}
		switch {
		case h.HasParent && sh.had && h.Parent == sh.key:
			e.Parent = sh.fp
		case h.HasParent:
			e.Parent = ld.Names.Fingerprint(h.Instance, t, h.Parent)
		}
		sh.key, sh.fp, sh.had = h.Key, e.FP, true
		sh.bytes += h.Bytes
		if !root.Clean && h.Seq > root.FlushedSeq {
			sh.doubtful = append(sh.doubtful, Doubt{l, bytes.Clone(row)})
		}
		if sh.entries = append(sh.entries, e); len(sh.entries) >= loadPiece {
			return load(sh)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := ld.Keys.Learn(ctx, sealed, ld.WithoutKeys); err != nil {
		return nil, err
	}
	var doubtful []Doubt
	var stale []layout.Location
	for i := range list {
		if err := load(&list[i]); err != nil {
			return nil, err
		}
		doubtful = append(doubtful, list[i].doubtful...)
		stale = append(stale, list[i].stale...)
		count(&list[i])
		ld.Root.Pass(list[i].seq)
	}
	if len(stale) > 0 && !ld.ReadOnly {
		b := ld.Catalog.NewBatch()
		for _, l := range stale {
			b.DeleteBlock(l)
		}
		if err := ld.Catalog.Commit(ctx, b, false); err != nil {
			return nil, err
		}
	}
	return doubtful, nil
}

// damaged is what a row that cannot be read means to an open: the catalog is damaged, and the logs on the drives are
// the truth. An open that only reads, or without some drive, whose logs a new catalog would lack, drops nothing, and
// goes on without the block. A deletion of it is told to the drives all the same.
func (ld *Loader) damaged(l layout.Location, err error) error {
	err = catalog.DamagedRow(l, err)
	away := func(d *space.Drive) bool { return !d.GivenUp || !ld.Whatever }
	if !ld.ReadOnly && !slices.ContainsFunc(ld.Space.AbsentDrives(), away) {
		return err
	}
	ld.Space.Doubt()
	ld.Log.Error("damaged row in the catalog; its block is not found", "error", err)
	return nil
}

// older says which of two rows of one block has the lower sequence number, and the payload it stands for.
func (ld *Loader) older(ctx context.Context, a, b uint64) (loc uint64, bytes int64, err error) {
	var heads [2]segment.Head
	for i, loc := range []uint64{a, b} {
		row, err := ld.Catalog.Block(ctx, layout.Unpack(loc), nil)
		if err != nil {
			return 0, 0, err
		}
		if heads[i], err = segment.DecodeHead(row); err != nil {
			return 0, 0, catalog.DamagedRow(layout.Unpack(loc), err)
		}
	}
	if heads[0].Seq < heads[1].Seq {
		return a, heads[0].Bytes, nil
	}
	return b, heads[1].Bytes, nil
}

// Ticks is one capacity of the index's clock: what an open finds is taken to
// have been written over the last capacity, evenly by sequence number.
const Ticks = 1 << 16

// TickOf is when something with this sequence number was written, on that clock.
func (ld *Loader) TickOf(seq uint64) index.Tick {
	first, last := ld.found[0], ld.found[1]
	if last <= first || seq <= first {
		return 1
	}
	return index.Tick(1 + uint64(float64(min(seq, last)-first)/float64(last-first)*(Ticks-1)))
}
