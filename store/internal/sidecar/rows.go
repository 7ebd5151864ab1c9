package sidecar

import (
	"context"
	"errors"
	"log/slog"

	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/crypt"
	"github.com/skepkv/skep/store/internal/locks"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/segment"
)

// Reader reads the record of a block that is on its drives. NotFound when there is none.
type Reader func(op string, key skep.Key, fp index.Fingerprint) (segment.Record, error)

// Blocks is the blocks of a store.
type Blocks interface {
	// OnDrives is a Reader.
	OnDrives(op string, key skep.Key, fp index.Fingerprint) (segment.Record, error)
	// Change calls f while nobody else changes rows. read reads records as they are then.
	Change(f func(read Reader) error) error
	// Stored says whether there is a block that rows could be of.
	Stored(fp index.Fingerprint, id catalog.SideID) bool
}

// Rows are the side rows of a store. It is safe for any number of goroutines. Make it with New.
type Rows struct {
	catalog *catalog.Catalog
	names   *namespaces.Table
	keys    *crypt.Keys
	blocks  Blocks
	log     *slog.Logger

	turn locks.Mutex[locks.SidecarPuts] // of Put, over commits; before changes
	mu   locks.Mutex[locks.Sidecars]
	m    map[index.Fingerprint]catalog.SideID // blocks that may have rows: all that do, and some that did
}

// New makes the rows of a catalog. What is there is found by Load.
func New(c *catalog.Catalog, names *namespaces.Table, keys *crypt.Keys, blocks Blocks, log *slog.Logger) *Rows {
	return &Rows{catalog: c, names: names, keys: keys, blocks: blocks, log: log, m: map[index.Fingerprint]catalog.SideID{}}
}

func (r *Rows) note(fp index.Fingerprint, id catalog.SideID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.m[fp] = id
}

// Has says whether a block may have rows.
func (r *Rows) Has(fp index.Fingerprint) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.m[fp]
	return ok
}

// gone are the blocks with rows that are not stored any more.
func (r *Rows) gone() map[index.Fingerprint]catalog.SideID {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[index.Fingerprint]catalog.SideID{}
	for fp, id := range r.m {
		if !r.blocks.Stored(fp, id) {
			out[fp] = id
		}
	}
	return out
}

// Forget is called when rows were deleted with their blocks.
func (r *Rows) Forget(list map[index.Fingerprint]catalog.SideID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for fp := range list {
		delete(r.m, fp)
	}
}

// batchBytes is how much of pieces goes into one commit.
const batchBytes = 1 << 20

// Put puts the rows of a block: its bytes, in pieces. What is there of an earlier version goes.
//
// Errors: NotFound when there is no such block on the drives, Conflict when the pieces are not its bytes, Denied when
// it is encrypted and its key is not there.
func (r *Rows) Put(ctx context.Context, ns *namespaces.Namespace, id catalog.SideID, pieces []skep.SidecarPiece) error {
	r.turn.Lock()
	defer r.turn.Unlock()
	p := put{r: r, ns: ns, id: id, fp: r.names.Fingerprint(id.Instance, id.Tag, id.Key)}
	rec, err := r.blocks.OnDrives(opPut, id.Key, p.fp)
	if err != nil {
		return err
	}
	if p.seal, err = r.keys.Sealing(ns.Info.Tenant, &rec); err != nil {
		return err
	}
	var data []byte
	for _, piece := range pieces {
		data = append(data, piece.Bytes...)
	}
	same, err := r.says(ns, rec, data)
	if err != nil {
		return err
	}
	if !same {
		return &skep.Error{Op: opPut, Kind: skep.Conflict, Field: "pieces", Value: id.Key.Short(),
			Limit: "the bytes of the block as it is stored"}
	}
	return p.put(ctx, rec.Written(), pieces)
}

const (
	opPut = "put sidecar"
	opGet = "sidecar"
)

// says reports whether data is what a record is of, by its checksums. Denied: it is encrypted,
// and its key is not there.
func (r *Rows) says(ns *namespaces.Namespace, rec segment.Record, data []byte) (bool, error) {
	if len(rec.Parts) != 1 || rec.Parts[0].Size != int64(len(data)) {
		return false, nil
	}
	rec.Parts = append([]segment.RecordPart(nil), rec.Parts...)
	if err := r.keys.ClearSums(ns.Info.Tenant, &rec); err != nil {
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

// put is one Put under way.
type put struct {
	r    *Rows
	ns   *namespaces.Namespace
	id   catalog.SideID
	fp   index.Fingerprint
	seal *crypt.Secret // the block's own; nil: pieces are not encrypted
}

// put writes what is new of pieces, and then the root that has them count. REQUIRES: Rows.turn.
func (p *put) put(ctx context.Context, edition uint64, pieces []skep.SidecarPiece) error {
	r := p.r
	old, err := r.catalog.SideRoot(ctx, p.id)
	switch k := skep.KindOf(err); {
	case k == skep.NotFound || k == skep.Damaged:
		old = catalog.SideRoot{}
	case err != nil:
		return err
	}
	r.note(p.fp, p.id)
	root, fresh := p.plan(&old, edition, pieces)
	b := r.catalog.NewBatch()
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
		if bytes += len(body); bytes >= batchBytes {
			if err := r.catalog.Commit(ctx, b, false); err != nil {
				return err
			}
			b, bytes = r.catalog.NewBatch(), 0
		}
	}
	for _, o := range dropped(old.Pieces, root.Pieces) {
		b.DeleteSidePiece(p.id, o)
	}
	b.PutSideRoot(&root)
	return p.commit(ctx, b, edition)
}

// commit has the root count, unless the block went meanwhile: then all is taken back.
func (p *put) commit(ctx context.Context, b *catalog.Batch, edition uint64) error {
	r := p.r
	return r.blocks.Change(func(read Reader) error {
		rec, err := read(opPut, p.id.Key, p.fp)
		if err == nil && (rec.Written() != edition || r.names.Dead(p.id.Instance, p.id.Tag)) {
			err = &skep.Error{Op: opPut, Kind: skep.Conflict, Field: "block", Value: p.id.Key.Short(),
				Limit: "the one the pieces are of"}
		}
		if err != nil {
			undo := r.catalog.NewBatch()
			undo.DeleteSideFrom(p.id, edition)
			return errors.Join(err, r.catalog.Commit(ctx, undo, false))
		}
		return r.catalog.Commit(ctx, b, p.ns.Info.Class == skep.Durable)
	})
}

// plan decides which pieces of the old root go on, and which are written. Those of an encrypted
// block are written all: a hash of them would tell what they are.
func (p *put) plan(old *catalog.SideRoot, edition uint64, pieces []skep.SidecarPiece) (root catalog.SideRoot, fresh []int) {
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

// Get is the rows of a block. NotFound when there is none on the drives, or no rows of the version that is.
// Root and pieces are read as of one moment, for others delete and put them meanwhile.
func (r *Rows) Get(ctx context.Context, ns *namespaces.Namespace, id catalog.SideID) ([]skep.SidecarPiece, error) {
	rec, err := r.blocks.OnDrives(opGet, id.Key, r.names.Fingerprint(id.Instance, id.Tag, id.Key))
	if err != nil {
		return nil, err
	}
	g := reading{r: r, ns: ns, rec: &rec}
	err = r.catalog.SideRows(ctx, id, func(root catalog.SideRoot) error {
		if root.Edition != rec.Written() {
			return &skep.Error{Op: opGet, Kind: skep.NotFound, Field: "side rows of block", Value: id.Key.Short(),
				Limit: "of the version that is stored"}
		}
		return g.begin(&root)
	}, g.piece)
	return g.end(err)
}

// Pieces reads what a root names, and compares it with the block's record: Damaged when it
// is something else, Denied when it is encrypted and its key is not there.
func (r *Rows) Pieces(ctx context.Context, ns *namespaces.Namespace, rec *segment.Record, root *catalog.SideRoot,
) ([]skep.SidecarPiece, error) {
	g := reading{r: r, ns: ns, rec: rec}
	err := g.begin(root)
	if err == nil {
		err = r.catalog.SidePieces(ctx, root, g.piece)
	}
	return g.end(err)
}

// reading is the pieces of a block as they are read: begin, piece for each, end.
type reading struct {
	r      *Rows
	ns     *namespaces.Namespace
	rec    *segment.Record
	root   *catalog.SideRoot
	seal   *crypt.Secret
	data   []byte
	pieces []skep.SidecarPiece
}

func (g *reading) wrong() error {
	return &skep.Error{Op: opGet, Kind: skep.Damaged, Field: "side rows of block", Value: g.root.ID.Key.Short()}
}

func (g *reading) begin(root *catalog.SideRoot) (err error) {
	g.root = root
	if g.seal, err = g.r.keys.Sealing(g.ns.Info.Tenant, g.rec); err != nil {
		return err
	}
	size := int64(0)
	for _, p := range root.Pieces {
		size += int64(p.Bytes)
	}
	if len(g.rec.Parts) != 1 || size != g.rec.Parts[0].Size || root.Sealed != (g.seal != nil) {
		return g.wrong()
	}
	g.data = make([]byte, 0, size)
	g.pieces = make([]skep.SidecarPiece, len(root.Pieces))
	return nil
}

func (g *reading) piece(i int, body []byte) error {
	was := g.root.Pieces[i]
	if g.seal != nil {
		var ok bool
		if body, ok = g.seal.OpenRow(body, g.root.ID.Bound(was.Edition, was.Number)); !ok {
			return damaged(g.root.ID, was)
		}
	}
	if len(body) != int(was.Bytes) {
		return damaged(g.root.ID, was)
	}
	at := len(g.data)
	g.data = append(g.data, body...)
	g.pieces[i] = skep.SidecarPiece{Kind: skep.SidecarKind(was.Kind), Bytes: g.data[at:len(g.data):len(g.data)]}
	return nil
}

func (g *reading) end(err error) ([]skep.SidecarPiece, error) {
	if err != nil {
		return nil, err
	}
	same, err := g.r.says(g.ns, *g.rec, g.data)
	if err == nil && !same {
		err = g.wrong()
	}
	if err != nil {
		return nil, err
	}
	return g.pieces, nil
}

func damaged(id catalog.SideID, p catalog.SidePiece) error {
	return &skep.Error{Op: opGet, Kind: skep.Damaged, Field: "piece of block " + id.Key.Short(), Value: p.Number}
}

// sealed is a piece's row: what was put, or a nonce of its own and the ciphertext.
func (p *put) sealed(edition uint64, number uint32, data []byte) ([]byte, error) {
	if p.seal == nil {
		return data, nil
	}
	return p.seal.SealRow(data, p.id.Bound(edition, number))
}

// Sweep deletes the side rows of blocks that are gone.
func (r *Rows) Sweep(ctx context.Context) error {
	if len(r.gone()) == 0 {
		return nil
	}
	return r.blocks.Change(func(Reader) error { // a put's root comes before, or finds its block gone
		gone := r.gone()
		b := r.catalog.NewBatch()
		for _, id := range gone {
			b.DeleteSide(id)
		}
		err := r.catalog.Commit(ctx, b, false)
		if err == nil {
			r.Forget(gone)
		}
		return err
	})
}

// Load finds which blocks have side rows, and deletes what belongs to none. Where one of
// them is damaged all go: they are made anew.
func (r *Rows) Load(ctx context.Context) error {
	b := r.catalog.NewBatch()
	err := r.list(ctx, b)
	if skep.KindOf(err) == skep.Damaged {
		r.log.Error("side rows in the catalog are damaged; all are deleted, and made anew from their blocks", "error", err)
		b = r.catalog.NewBatch()
		b.DeleteAllSides()
		err = nil
	}
	if err == nil && b.Len() > 0 {
		err = r.catalog.Commit(ctx, b, false)
	}
	if err != nil {
		return err
	}
	return r.Sweep(ctx)
}

// list notes the blocks that have side rows, and has b delete what puts that were cut off
// have left.
func (r *Rows) list(ctx context.Context, b *catalog.Batch) error {
	roots, err := r.catalog.SideRoots(ctx)
	if err != nil {
		return err
	}
	editions := make(map[catalog.SideID]uint64, len(roots))
	for _, o := range roots {
		editions[o.ID] = o.Edition
		r.note(r.names.Fingerprint(o.ID.Instance, o.ID.Tag, o.ID.Key), o.ID)
	}
	owners, err := r.catalog.SideOwners(ctx)
	for _, o := range owners {
		if edition, ok := editions[o.ID]; !ok {
			b.DeleteSide(o.ID)
		} else if o.Last > edition {
			b.DeleteSideFrom(o.ID, edition+1)
		}
	}
	return err
}
