package store

import (
	"context"
	"errors"

	"github.com/skepkv/skep/store/internal/locks"

	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/crypt"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/segment"
)

// Side rows: what some blocks say, as rows of the catalog. The block is what counts: rows are
// compared with its record's checksums when they are put and when they are read, and are of the
// version whose bytes were written when their edition says. So nothing has to be in step: a
// rebuild brings back none, and who opens what they are of puts them again.
//
//	Delete, purges    take them along in their commit
//	evicted, lost     the sweep of every second, and every open
//	a crash in a put  pieces that no root names: the next open

// sides are the blocks that may have side rows: all that do, and some that did.
type sides struct {
	turn locks.Mutex[locks.SidecarPuts] // of PutSide, over commits; before changes
	mu   locks.Mutex[locks.Sidecars]
	m    map[index.Fingerprint]catalog.SideID
}

func (d *sides) note(fp index.Fingerprint, id catalog.SideID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.m == nil {
		d.m = map[index.Fingerprint]catalog.SideID{}
	}
	d.m[fp] = id
}

func (d *sides) has(fp index.Fingerprint) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.m[fp]
	return ok
}

// gone are those for which stored says no.
func (d *sides) gone(stored func(fp index.Fingerprint, id catalog.SideID) bool) map[index.Fingerprint]catalog.SideID {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[index.Fingerprint]catalog.SideID{}
	for fp, id := range d.m {
		if !stored(fp, id) {
			out[fp] = id
		}
	}
	return out
}

func (d *sides) forget(list map[index.Fingerprint]catalog.SideID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for fp := range list {
		delete(d.m, fp)
	}
}

// sideBatchBytes is how much of pieces goes into one commit.
const sideBatchBytes = 1 << 20

// PutSidecar implements skep.Store.
func (s *Store) PutSidecar(ctx context.Context, sc skep.Scope, key skep.Key, pieces []skep.SidecarPiece) error {
	const op = "put sidecar"
	if err := s.enterWrite(ctx, op); err != nil {
		return err
	}
	defer s.leave()
	if err := skep.ValidateSidecar(pieces); err != nil {
		return err
	}
	if s.catalogFull.Load() {
		return &skep.Error{Op: op, Kind: skep.Full, Field: "catalog"}
	}
	ns, t, err := s.names.Resolve(op, sc)
	if err != nil {
		return err
	}
	s.sides.turn.Lock()
	defer s.sides.turn.Unlock()
	p := sidePut{s: s, ns: ns, id: catalog.SideID{Instance: ns.Instance, Tag: t, Key: key}, fp: s.names.Fingerprint(ns.Instance, t, key)}
	rec, err := s.committed(op, key, p.fp, s.recordNow)
	if err != nil {
		return err
	}
	if p.seal, err = s.keys.Sealing(ns.Info.Tenant, &rec); err != nil {
		return err
	}
	var data []byte
	for _, piece := range pieces {
		data = append(data, piece.Bytes...)
	}
	same, err := s.says(ns, rec, data)
	if err != nil {
		return err
	}
	if !same {
		return &skep.Error{Op: op, Kind: skep.Conflict, Field: "pieces", Value: key.Short(), Limit: "the bytes of the block as it is stored"}
	}
	return p.put(ctx, rec.Written(), pieces)
}

// committed is the record of a block that is on its devices, as read reads it: record, under
// s.changes, or recordNow. NotFound when there is none.
func (s *Store) committed(op string, key skep.Key, fp index.Fingerprint,
	read func(index.Fingerprint, index.Entry) (segment.Record, error),
) (rec segment.Record, err error) {
	if e, ok := s.index.Resolve(fp); ok && e.Location != 0 {
		if rec, err = read(fp, e); err == nil || skep.KindOf(err) != skep.NotFound && err != errGone {
			return rec, err
		}
	}
	return rec, &skep.Error{Op: op, Kind: skep.NotFound, Field: "block", Value: key.Short()}
}

// says reports whether data is what a record is of, by its checksums. Denied: it is encrypted,
// and its key is not there.
func (s *Store) says(ns *namespaces.Namespace, rec segment.Record, data []byte) (bool, error) {
	if len(rec.Parts) != 1 || rec.Parts[0].Size != int64(len(data)) {
		return false, nil
	}
	rec.Parts = append([]segment.RecordPart(nil), rec.Parts...)
	if err := s.keys.ClearSums(ns.Info.Tenant, &rec); err != nil {
		return false, err
	}
	sums, err := segio.SumsOf("side rows", ns.Info.Shape, &rec, 0)
	if err != nil {
		return false, nil // it has other granules
	}
	for range sums.Wrong(sums.All(), segio.Whole(data)) {
		return false, nil
	}
	return true, nil
}

// sidePut is one PutSide under way.
type sidePut struct {
	s    *Store
	ns   *namespaces.Namespace
	id   catalog.SideID
	fp   index.Fingerprint
	seal *crypt.Secret // the block's own; nil: pieces are not encrypted
}

// put writes what is new of pieces, and then the root that has them count. REQUIRES: sides.turn.
func (p *sidePut) put(ctx context.Context, edition uint64, pieces []skep.SidecarPiece) error {
	s := p.s
	old, err := s.catalog.SideRoot(ctx, p.id)
	switch k := skep.KindOf(err); {
	case k == skep.NotFound || k == skep.Damaged:
		old = catalog.SideRoot{}
	case err != nil:
		return err
	}
	s.sides.note(p.fp, p.id)
	root, fresh := p.plan(&old, edition, pieces)
	b := s.catalog.NewBatch()
	if len(old.Pieces) == 0 || old.Edition >= edition { // nothing that is there can be built upon
		b.DeleteSide(p.id)
		old.Pieces = nil
	} else {
		b.DeleteSideFrom(p.id, old.Edition+1) // what a put that was cut off has left
	}
	bytes := 0
	for _, i := range fresh {
		body, err := p.sealed(edition, uint32(i), pieces[i].Bytes)
		if err != nil {
			return err
		}
		b.PutSidePiece(p.id, edition, uint32(i), body)
		if bytes += len(body); bytes >= sideBatchBytes {
			if err := s.catalog.Commit(ctx, b, false); err != nil {
				return err
			}
			b, bytes = s.catalog.NewBatch(), 0
		}
	}
	for _, o := range dropped(old.Pieces, root.Pieces) {
		b.DeleteSidePiece(p.id, o)
	}
	b.PutSideRoot(&root)
	return p.commit(ctx, b, edition)
}

// commit has the root count, unless the block went meanwhile: then all is taken back.
func (p *sidePut) commit(ctx context.Context, b *catalog.Batch, edition uint64) error {
	const op = "put sidecar"
	s := p.s
	s.changes.Lock()
	defer s.changes.Unlock()
	rec, err := s.committed(op, p.id.Key, p.fp, s.record)
	if err == nil && (rec.Written() != edition || s.names.Dead(p.id.Instance, p.id.Tag)) {
		err = &skep.Error{Op: op, Kind: skep.Conflict, Field: "block", Value: p.id.Key.Short(), Limit: "the one the pieces are of"}
	}
	if err != nil {
		undo := s.catalog.NewBatch()
		undo.DeleteSideFrom(p.id, edition)
		return errors.Join(err, s.catalog.Commit(ctx, undo, false))
	}
	return s.catalog.Commit(ctx, b, p.ns.Info.Class == skep.Durable)
}

// plan decides which pieces of the old root go on, and which are written. Those of an encrypted
// block are written all: a hash of them would tell what they are.
func (p *sidePut) plan(old *catalog.SideRoot, edition uint64, pieces []skep.SidecarPiece) (root catalog.SideRoot, fresh []int) {
	root = catalog.SideRoot{ID: p.id, Edition: edition, Sealed: p.seal != nil}
	type content struct {
		kind uint8
		sum  [16]byte
	}
	have := map[content]catalog.SidePiece{}
	if old.Edition < edition && !old.Sealed {
		for _, o := range old.Pieces {
			have[content{o.Kind, o.Sum}] = o
		}
	}
	for i, piece := range pieces {
		now := catalog.SidePiece{Kind: uint8(piece.Kind), Edition: edition, Number: uint32(i), Bytes: uint32(len(piece.Bytes))}
		if p.seal == nil {
			now.Sum = xxh3.Hash128(piece.Bytes).Bytes()
		}
		if was, ok := have[content{now.Kind, now.Sum}]; ok && p.seal == nil && was.Bytes == now.Bytes {
			now = was
		} else {
			fresh = append(fresh, i)
		}
		root.Pieces = append(root.Pieces, now)
	}
	return root, fresh
}

// dropped are the pieces of old that are not among now.
func dropped(old, now []catalog.SidePiece) (out []catalog.SidePiece) {
	type place struct {
		edition uint64
		number  uint32
	}
	keep := map[place]bool{}
	for _, p := range now {
		keep[place{p.Edition, p.Number}] = true
	}
	for _, p := range old {
		if !keep[place{p.Edition, p.Number}] {
			out = append(out, p)
		}
	}
	return out
}

// Sidecar implements skep.Store.
func (s *Store) Sidecar(ctx context.Context, sc skep.Scope, key skep.Key) ([]skep.SidecarPiece, error) {
	const op = "sidecar"
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	ns, t, err := s.names.Resolve(op, sc)
	if err != nil {
		return nil, err
	}
	fp := s.names.Fingerprint(ns.Instance, t, key)
	rec, err := s.committed(op, key, fp, s.recordNow)
	if err != nil {
		return nil, err
	}
	root, err := s.catalog.SideRoot(ctx, catalog.SideID{Instance: ns.Instance, Tag: t, Key: key})
	if err != nil {
		return nil, err
	}
	if root.Edition != rec.Written() {
		return nil, &skep.Error{Op: op, Kind: skep.NotFound, Field: "side rows of block", Value: key.Short(), Limit: "of the version that is stored"}
	}
	s.index.Touch(fp) // as reading the block is
	return s.sidePieces(ctx, ns, &rec, &root)
}

// sidePieces reads what a root names, and compares it with the block's record: Damaged when it
// is something else, Denied when it is encrypted and its key is not there.
func (s *Store) sidePieces(ctx context.Context, ns *namespaces.Namespace, rec *segment.Record, root *catalog.SideRoot) ([]skep.SidecarPiece, error) {
	wrong := &skep.Error{Op: "sidecar", Kind: skep.Damaged, Field: "side rows of block", Value: root.ID.Key.Short()}
	seal, err := s.keys.Sealing(ns.Info.Tenant, rec)
	if err != nil {
		return nil, err
	}
	size := int64(0)
	for _, p := range root.Pieces {
		size += int64(p.Bytes)
	}
	if len(rec.Parts) != 1 || size != rec.Parts[0].Size || root.Sealed != (seal != nil) {
		return nil, wrong
	}
	data := make([]byte, 0, size)
	pieces := make([]skep.SidecarPiece, len(root.Pieces))
	err = s.catalog.SidePieces(ctx, root, func(i int, body []byte) error {
		was := root.Pieces[i]
		if seal != nil {
			var ok bool
			if body, ok = seal.OpenRow(body, root.ID.Bound(was.Edition, was.Number)); !ok {
				return damagedSide(root.ID, was)
			}
		}
		if len(body) != int(was.Bytes) {
			return damagedSide(root.ID, was)
		}
		at := len(data)
		data = append(data, body...)
		pieces[i] = skep.SidecarPiece{Kind: skep.SidecarKind(was.Kind), Bytes: data[at:len(data):len(data)]}
		return nil
	})
	if err != nil {
		return nil, err
	}
	same, err := s.says(ns, *rec, data)
	if err == nil && !same {
		err = wrong
	}
	return pieces, err
}

func damagedSide(id catalog.SideID, p catalog.SidePiece) error {
	return &skep.Error{Op: "sidecar", Kind: skep.Damaged, Field: "piece of block " + id.Key.Short(), Value: p.Number}
}

// sealed is a piece's row: what was put, or a nonce of its own and the ciphertext.
func (p *sidePut) sealed(edition uint64, number uint32, data []byte) ([]byte, error) {
	if p.seal == nil {
		return data, nil
	}
	return p.seal.SealRow(data, p.id.Bound(edition, number))
}

// stores says whether there is a block that side rows could be of.
func (s *Store) stores(fp index.Fingerprint, id catalog.SideID) bool {
	_, ok := s.index.Resolve(fp)
	return ok && !s.names.Dead(id.Instance, id.Tag)
}

// sweepSides deletes the side rows of blocks that are gone.
func (s *Store) sweepSides(ctx context.Context) error {
	if len(s.sides.gone(s.stores)) == 0 {
		return nil
	}
	s.changes.Lock() // a put's root comes before, or finds its block gone
	defer s.changes.Unlock()
	gone := s.sides.gone(s.stores)
	b := s.catalog.NewBatch()
	for _, id := range gone {
		b.DeleteSide(id)
	}
	err := s.catalog.Commit(ctx, b, false)
	if err == nil {
		s.sides.forget(gone)
	}
	return err
}

// loadSides finds which blocks have side rows, and deletes what belongs to none. Where one of
// them is damaged all go: they are made anew.
func (s *Store) loadSides(ctx context.Context) error {
	b := s.catalog.NewBatch()
	err := s.listSides(ctx, b)
	if skep.KindOf(err) == skep.Damaged {
		s.log.Error("side rows in the catalog are damaged; all are deleted, and made anew from their blocks", "error", err)
		b = s.catalog.NewBatch()
		b.DeleteAllSides()
		err = nil
	}
	if err == nil && b.Len() > 0 {
		err = s.catalog.Commit(ctx, b, false)
	}
	if err != nil {
		return err
	}
	return s.sweepSides(ctx)
}

// listSides notes the blocks that have side rows, and has b delete what puts that were cut off
// have left.
func (s *Store) listSides(ctx context.Context, b *catalog.Batch) error {
	roots, err := s.catalog.SideRoots(ctx)
	if err != nil {
		return err
	}
	editions := make(map[catalog.SideID]uint64, len(roots))
	for _, r := range roots {
		editions[r.ID] = r.Edition
		s.sides.note(s.names.Fingerprint(r.ID.Instance, r.ID.Tag, r.ID.Key), r.ID)
	}
	owners, err := s.catalog.SideOwners(ctx)
	for _, o := range owners {
		if edition, ok := editions[o.ID]; !ok {
			b.DeleteSide(o.ID)
		} else if o.Last > edition {
			b.DeleteSideFrom(o.ID, edition+1)
		}
	}
	return err
}
