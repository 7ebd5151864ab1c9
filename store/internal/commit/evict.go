package commit

import (
	"errors"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/locks"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// Evict drops what the verdicts say, rows and all; what a promise protects turns out to be a must. A row that stayed
// would bring the block back at the next open, over what was put in its place, or after its deletion. From here on g
// is stale, also when all of it is kept: should its cleaning stop half-way, its log has records of blocks that were
// moved, and whose copies elsewhere may go. Only g's cleaner calls it.
func (r *Rows) Evict(g *space.Group, recs []segment.Record, refs []index.Ref, verdicts []index.Verdict) error {
	r.changes.Lock()
	defer r.changes.Unlock()
	if err := r.payOwed(); err != nil {
		return err
	}
	if len(recs) == 0 {
		return nil
	}
	if err := r.outlives(g); err != nil {
		return err
	}
	var rows []layout.Location
	for i, v := range verdicts {
		if v != index.Drop {
			continue
		}
		old, err := r.Index.Evict(refs[i].FP, refs[i].Location)
		if errors.Is(err, index.ErrProtected) {
			verdicts[i] = index.Must
		} else if err == nil {
			rows = append(rows, layout.Unpack(refs[i].Location))
			r.evicted(&recs[i], refs[i].FP, old)
		}
	}
	if len(rows) == 0 {
		return nil
	}
	err := r.forgotten(rows...)
	if err != nil {
		g.Owed = append(g.Owed, r.Heirless(g, recs, refs)...) // the next cleaning may not see them
	}
	return err
}

func (r *Rows) evicted(rec *segment.Record, fp index.Fingerprint, old index.Entry) {
	r.Count.Evict(old)
	r.Names.Unstored(rec.Instance, rec.Bytes())
	r.forgetCached(fp)
	if ns := r.Names.Of(rec.Instance); ns != nil {
		ev := r.Event(ns, rec, skep.EventEvicted)
		ev.Reason = skep.Full
		r.Tell(ev, rec.Instance, namespaces.Tag(rec.SaltTag))
	}
}

// Heirless are tombstones for those of recs, all of g, that are gone and may stand for older records of their keys.
func (r *Rows) Heirless(g *space.Group, recs []segment.Record, refs []index.Ref) (stones []segment.Tombstone) {
	others := r.Space.OtherStale(g)
	for i := range recs {
		rec := &recs[i]
		if rec.Flags&segment.RecordSuccessor == 0 && others == 0 {
			continue
		}
		if _, ok := r.Index.Resolve(refs[i].FP); !ok && !r.Names.Dead(rec.Instance, namespaces.Tag(rec.SaltTag)) {
			stones = append(stones, segment.Tombstone{Seq: r.Root.Next(), Covers: rec.Written(), Instance: rec.Instance,
				SaltTag: rec.SaltTag, Key: rec.Key})
		}
	}
	return stones
}

// trimmed is how many blocks one Trim drops at most.
const trimmed = 4096

// Trim drops what the policies lru and s3fifo have over their logical cap. They have an exact order, in which blocks go
// one by one whatever group they lie in; the policy cost drops blocks with their group only.
func (r *Rows) Trim() bool {
	if !r.Exact {
		return false
	}
	r.changes.Lock()
	defer r.changes.Unlock()
	if r.payOwed() != nil {
		return false
	}
	var rows []layout.Location
	some := false
	for range trimmed {
		e, ok := r.Index.NextEvict()
		if !ok {
			break
		}
		if g := r.Space.Find(layout.Unpack(e.Location).Group); g != nil && r.outlives(g) != nil {
			break
		}
		rec, unread := r.Record(e.FP, e) // before it is gone: events tell of it
		if _, err := r.Index.Evict(e.FP, e.Location); err != nil {
			continue
		}
		if some = true; unread == nil {
			r.evicted(&rec, e.FP, e)
		} else {
			r.Count.Evict(e)
			r.Names.Unstored(e.Namespace, layout.SlotBytes(uint64(e.Pages)))
			r.forgetCached(e.FP)
		}
		if e.Location != 0 { // else its commit finds that it is gone
			rows = append(rows, layout.Unpack(e.Location))
		}
	}
	if !some {
		return false
	}
	if err := r.forgotten(rows...); err != nil {
		r.log.Warn("evicted rows not deleted", "error", err)
	}
	return true
}

// outlives notes, before a block is dropped from g, that its log goes on telling of it. An error: nothing may be
// dropped. The row that says so comes first, since that of the block may be deleted by any commit: owedRows. REQUIRES:
// r.changes.
func (r *Rows) outlives(g *space.Group) error {
	locks.Requires(&r.changes)
	r.Space.SetStale(g)
	if g.Noted.Load() {
		return nil
	}
	if state := r.Space.Row(g); state.State == catalog.GroupSealed { // saveSealed says it of one that is open
		state.State = catalog.GroupCleaning
		b := r.Catalog.NewBatch()
		b.PutGroup(&state)
		if err := r.commit(b, false); err != nil {
			return err
		}
		g.Noted.Store(true)
	}
	return nil
}
