package commit

import (
	"context"
	"sync/atomic"

	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/locks"
	"github.com/skepkv/skep/store/internal/space"
)

// owedRows are rows of blocks that the index has forgotten, and whose deletion was refused.
type owedRows struct {
	n  atomic.Int64 // of m, so that nobody locks for none
	mu locks.Mutex[locks.OwedRows]
	m  map[layout.Location]struct{}
}

func (o *owedRows) add(rows ...layout.Location) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.m == nil {
		o.m = map[layout.Location]struct{}{}
	}
	for _, l := range rows {
		o.m[l] = struct{}{}
	}
	o.n.Store(int64(len(o.m)))
}

// into has b delete them, and gives those it does.
func (o *owedRows) into(b *catalog.Batch) (rows []layout.Location) {
	if o.n.Load() == 0 {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for l := range o.m {
		b.DeleteBlock(l)
		rows = append(rows, l)
	}
	return rows
}

func (o *owedRows) paid(rows []layout.Location) {
	if len(rows) == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, l := range rows {
		delete(o.m, l)
	}
	o.n.Store(int64(len(o.m)))
}

// Owed is how many rows there are of blocks that the index has forgotten.
func (r *Rows) Owed() int { return int(r.owed.n.Load()) }

// payOwed deletes what is owed, unsynced. An error: no more may be dropped now.
func (r *Rows) payOwed() error {
	if r.owed.n.Load() == 0 {
		return nil
	}
	err := r.commit(r.Catalog.NewBatch(), false)
	if err == nil {
		r.loose.Add()
	}
	return err
}

// Stales is how often it was noted that g is stale. The rows of all blocks that it was noted for are gone: who scans
// them from now on misses none.
func (r *Rows) Stales(g *space.Group) (uint64, error) {
	r.changes.Lock()
	defer r.changes.Unlock()
	err := r.payOwed()
	return g.Stales(), err
}

// forgotten deletes the rows of blocks that the index has forgotten. Those of a commit that was refused are owed.
// Nobody waits for it to be synced but who is told that something is gone: Settle. REQUIRES: r.changes.
func (r *Rows) forgotten(rows ...layout.Location) error {
	locks.Requires(&r.changes)
	return r.deleteRows(rows...)
}

// neverShown deletes the row of a block that the index has never had there: nobody can have found it, and no other
// change is about it, so that it needs no lock.
func (r *Rows) neverShown(l layout.Location) {
	if err := r.deleteRows(l); err != nil {
		r.log.Warn("row not deleted yet", "location", l, "error", err)
	}
}

// deleteRows deletes rows, or owes it.
func (r *Rows) deleteRows(rows ...layout.Location) error {
	b := r.Catalog.NewBatch()
	for _, l := range rows {
		b.DeleteBlock(l)
	}
	err := r.commit(b, false)
	if err != nil {
		r.owed.add(rows...)
	}
	r.loose.Add() // not before: who counts it syncs it
	return err
}

// deleteRow is forgotten of one row. REQUIRES: r.changes.
func (r *Rows) deleteRow(l layout.Location) {
	if err := r.forgotten(l); err != nil {
		r.log.Warn("row not deleted yet", "location", l, "error", err)
	}
}

// Settle syncs deletions that were made without: what is not there now must not be found again after a crash by who
// was told so.
func (r *Rows) Settle(ctx context.Context) error {
	return r.loose.Settle(func() error {
		b := r.Catalog.NewBatch()
		rows := r.owed.into(b)
		if err := r.Root.Save(ctx, r.Catalog, b, true); err != nil { // who calls again deletes them again: no harm
			return err
		}
		r.owed.paid(rows)
		return nil
	})
}
