package commit

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/sidecar"
	"github.com/skepkv/skep/store/memory"
	"github.com/skepkv/skep/store/segment"
)

// ErrGone says that a block is no longer in the index.
var ErrGone = &skep.Error{Op: "restore", Kind: skep.Evicted}

// looks is how often a record is looked for again whose row has moved.
const looks = 8

// Record reads the record of a stored block, wherever it is.
//
// Errors: ErrGone; NotFound when there is no row where e says, as there is none for a moment while a block is moved;
// Damaged.
func (r *Rows) Record(fp index.Fingerprint, e index.Entry) (segment.Record, error) {
	return r.record(r.Context, fp, e)
}

func (r *Rows) record(ctx context.Context, fp index.Fingerprint, e index.Entry) (rec segment.Record, err error) {
	if e.Location == 0 {
		if p := r.Puts.Records.Get(fp); p != nil {
			return *p, nil
		}
		// Its commit has just moved it, or it is gone.
		var ok bool
		if e, ok = r.Index.Resolve(fp); !ok || e.Location == 0 {
			return rec, ErrGone
		}
	}
	buf, err := r.Catalog.Block(ctx, layout.Unpack(e.Location), nil)
	if err != nil {
		return rec, err
	}
	err = segment.DecodeRecord(buf, &rec)
	return rec, err
}

// RecordNow is Record for who does not change rows: the cleaner moves a block's row before it moves the index, so one
// whose row is not there is looked for again when the change of rows under way is over.
//
// Errors: ErrGone, Damaged, Overloaded when the block is moved all the time, and those of a catalog that is too slow.
func (r *Rows) RecordNow(ctx context.Context, fp index.Fingerprint, e index.Entry) (rec segment.Record, err error) {
	for range looks {
		if rec, err = r.record(ctx, fp, e); err == nil || skep.KindOf(err) != skep.NotFound && err != ErrGone {
			return rec, err
		}
		r.Await()
		var ok bool
		if e, ok = r.Index.Resolve(fp); !ok {
			return rec, ErrGone
		}
	}
	return rec, &skep.Error{Op: "read record", Kind: skep.Overloaded, Field: "block",
		Limit: "one that is not moved all the time", Err: err}
}

// OnDrives is the record of a block that is on its devices. NotFound when there is none.
func (r *Rows) OnDrives(op string, key skep.Key, fp index.Fingerprint) (segment.Record, error) {
	return r.onDrives(op, key, fp, func(fp index.Fingerprint, e index.Entry) (segment.Record, error) {
		return r.RecordNow(r.Context, fp, e)
	})
}

// Change calls f while nobody else changes rows. read is OnDrives, of records as they are then.
func (r *Rows) Change(f func(read sidecar.Reader) error) error {
	r.changes.Lock()
	defer r.changes.Unlock()
	return f(func(op string, key skep.Key, fp index.Fingerprint) (segment.Record, error) {
		return r.onDrives(op, key, fp, r.Record)
	})
}

// Stored says whether there is a block that side rows could be of.
func (r *Rows) Stored(fp index.Fingerprint, id catalog.SideID) bool {
	_, ok := r.Index.Resolve(fp)
	return ok && !r.Names.Dead(id.Instance, id.Tag)
}

func (r *Rows) onDrives(op string, key skep.Key, fp index.Fingerprint,
	read func(index.Fingerprint, index.Entry) (segment.Record, error),
) (rec segment.Record, err error) {
	if e, ok := r.Index.Resolve(fp); ok && e.Location != 0 {
		if rec, err = read(fp, e); err == nil || skep.KindOf(err) != skep.NotFound && err != ErrGone {
			return rec, err
		}
	}
	return rec, &skep.Error{Op: op, Kind: skep.NotFound, Field: "block", Value: key.Short()}
}

// forgetter says what is to be forgotten of a block that is about to go: its payload in bytes, and its parts in the
// DRAM tier.
func (r *Rows) forgetter(ns *namespaces.Namespace, fp index.Fingerprint, e index.Entry) (size int64, forget func()) {
	forget = func() { r.forgetCached(fp) }
	if !e.Odd {
		return ns.PartSize(skep.PartKV), forget
	}
	rec, err := r.Record(fp, e)
	if err != nil {
		return layout.SlotBytes(uint64(e.Pages)), forget
	}
	return rec.Bytes(), forget
}

// forgetCached drops a block that the index has no more from the DRAM tier, but for what a put has accepted since.
func (r *Rows) forgetCached(fp index.Fingerprint) {
	if r.Cache != nil {
		r.Cache.Forget(memory.KeyOf(fp), func() bool {
			e, ok := r.Index.Resolve(fp)
			return ok && e.Location == 0
		})
	}
}
