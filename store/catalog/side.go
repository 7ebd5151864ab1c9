package catalog

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/skepkv/skep"
)

// Side rows: what a block says, cut into rows. The root names the pieces that count, each by
// the edition it was written under, so that a new edition writes only what is new and takes
// over in one small commit.

// SideID is whose rows they are: a block's identity.
type SideID struct {
	Instance uint32
	Tag      [16]byte
	Key      skep.Key
}

// SidePiece is where a piece is, and what it must be.
type SidePiece struct {
	Kind    uint8  // skep.SidecarKind
	Edition uint64 // it was written under
	Number  uint32 // among those of that edition
	Bytes   uint32 // of what was kept; a sealed one's row is longer
	Sum     [16]byte
}

// SideRoot is row 'x'.
type SideRoot struct {
	ID      SideID
	Edition uint64 // of the block: when its bytes were written
	Sealed  bool   // the pieces are encrypted
	Pieces  []SidePiece
}

// maxSideRow is the longest piece's row: sealing adds to what may be put.
const maxSideRow = skep.MaxSidecarPieceBytes + 256

const (
	sideIDSize    = 4 + 16 + skep.KeySize
	sideRootKey   = 1 + sideIDSize
	sidePieceKey  = sideRootKey + 8 + 4
	leastSideSize = 1 + 1 + 1 + 1 + 16 // of a piece in a root
)

func (id SideID) rootKey() []byte  { return id.key(rowSideRoot) }
func (id SideID) pieceKey() []byte { return id.key(rowSidePiece) }

func (id SideID) key(row byte) []byte {
	k := append(key32(row, id.Instance), id.Tag[:]...)
	return append(k, id.Key[:]...)
}

func (id SideID) piece(edition uint64, number uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(id.pieceKey(), edition), number)
}

// Bound is what a sealed piece is bound to: its row's key.
func (id SideID) Bound(edition uint64, number uint32) []byte { return id.piece(edition, number) }

func parseSideID(k []byte) (id SideID) {
	id.Instance = binary.BigEndian.Uint32(k[1:])
	copy(id.Tag[:], k[5:])
	copy(id.Key[:], k[21:])
	return id
}

// under is the range of all keys that begin with prefix, the first byte of which is no 0xff.
func under(prefix []byte) keyRange {
	upper := bytes.Clone(prefix)
	for i := len(upper) - 1; ; i-- {
		if upper[i]++; upper[i] != 0 {
			return keyRange{prefix, upper[:i+1]}
		}
	}
}

// encode: edition, flags (1 sealed), number of pieces, then each as kind, edition, number and
// bytes, all numbers uvarint, and its sum.
func (r *SideRoot) encode() []byte {
	flags := uint64(0)
	if r.Sealed {
		flags = 1
	}
	b := make([]byte, 0, 32+32*len(r.Pieces))
	for _, n := range []uint64{r.Edition, flags, uint64(len(r.Pieces))} {
		b = binary.AppendUvarint(b, n)
	}
	for _, p := range r.Pieces {
		for _, n := range []uint64{uint64(p.Kind), p.Edition, uint64(p.Number), uint64(p.Bytes)} {
			b = binary.AppendUvarint(b, n)
		}
		b = append(b, p.Sum[:]...)
	}
	return b
}

func (r *SideRoot) decode(body []byte) error {
	in := reader{b: body}
	r.Edition = in.uvarint()
	flags, n := in.uvarint(), in.uvarint()
	if in.err != nil || flags > 1 || n > uint64(len(in.b))/leastSideSize {
		return errShort
	}
	r.Sealed, r.Pieces = flags == 1, make([]SidePiece, n)
	for i := range r.Pieces {
		p := &r.Pieces[i]
		p.Kind, p.Edition, p.Number, p.Bytes = uint8(in.uvarint()), in.uvarint(), uint32(in.uvarint()), uint32(in.uvarint())
		p.Sum = in.id()
	}
	return in.end()
}

// PutSideRoot has the pieces it names count, and no others.
func (b *Batch) PutSideRoot(r *SideRoot) { b.seal(r.ID.rootKey(), r.encode(), nil) }

// PutSidePiece writes a piece, which counts once a root names it.
func (b *Batch) PutSidePiece(id SideID, edition uint64, number uint32, body []byte) {
	if len(body) > maxSideRow {
		b.fail(skep.Invalidf("put side row", "piece in bytes", len(body), fmt.Sprintf("at most %d", maxSideRow)))
		return
	}
	b.seal(id.piece(edition, number), body, nil)
}

// DeleteSidePiece removes a piece that no root names any more.
func (b *Batch) DeleteSidePiece(id SideID, p SidePiece) {
	b.fail(b.b.Delete(id.piece(p.Edition, p.Number), nil))
}

// DeleteSideFrom removes the pieces of an edition and all later ones.
func (b *Batch) DeleteSideFrom(id SideID, edition uint64) {
	b.deleteRange(keyRange{id.piece(edition, 0), under(id.pieceKey()).upper})
}

// DeleteSide removes a block's side rows, all of them.
func (b *Batch) DeleteSide(id SideID) {
	b.fail(b.b.Delete(id.rootKey(), nil))
	b.deleteRange(under(id.pieceKey()))
}

// DeleteSidesOf removes the side rows of all blocks of an instance, or of one salt's in it, at
// the cost of two range deletions.
func (b *Batch) DeleteSidesOf(instance uint32, tag *[16]byte) {
	for _, row := range []byte{rowSideRoot, rowSidePiece} {
		prefix := key32(row, instance)
		if tag != nil {
			prefix = append(prefix, tag[:]...)
		}
		b.deleteRange(under(prefix))
	}
}

// DeleteAllSides removes all side rows there are.
func (b *Batch) DeleteAllSides() {
	b.deleteRange(rowRange(rowSideRoot))
	b.deleteRange(rowRange(rowSidePiece))
}

func (b *Batch) deleteRange(r keyRange) { b.fail(b.b.DeleteRange(r.lower, r.upper, nil)) }

// SideRoot reads a block's root of side rows; skep.NotFound when there is none.
func (c *Catalog) SideRoot(ctx context.Context, id SideID) (SideRoot, error) {
	const op = "read side row"
	var root SideRoot
	err := c.call(ctx, op, func(v *visitor) error {
		got := SideRoot{ID: id}
		found, err := get(c.db, id.rootKey(), got.decode)
		if err == nil && !found {
			err = &skep.Error{Op: op, Kind: skep.NotFound, Field: "side rows of block", Value: id.Key.Short()}
		}
		if err != nil {
			return err
		}
		return v.do(func() error { root = got; return nil })
	})
	return root, err
}

// SideRoots lists the roots of all side rows, by instance, salt tag and key.
func (c *Catalog) SideRoots(ctx context.Context) ([]SideRoot, error) {
	return list(ctx, c, rowSideRoot, func(key, value []byte) (r SideRoot, err error) {
		if len(key) != sideRootKey {
			return r, damaged(key, errShort)
		}
		r.ID = parseSideID(key)
		return r, decodeRow(key, value, r.decode)
	})
}

// SidePieces visits the pieces a root names, in its order. body is valid during the visit. A
// piece that is not there is skep.Damaged; an error of visit, with a kind, ends it.
func (c *Catalog) SidePieces(ctx context.Context, r *SideRoot, visit func(i int, body []byte) error) error {
	root := SideRoot{ID: r.ID, Pieces: append([]SidePiece(nil), r.Pieces...)} // the goroutine may outlive this call
	return c.call(ctx, "read side rows", func(v *visitor) error { return sidePieces(c.db, v, &root, visit) })
}

// SideRows reads a block's root and the pieces it names, all as they are at one moment: root is called
// with the one, visit with each of the others, as by SidePieces. skep.NotFound when there is no root.
func (c *Catalog) SideRows(ctx context.Context, id SideID, root func(SideRoot) error,
	visit func(i int, body []byte) error,
) error {
	const op = "read side rows"
	return c.call(ctx, op, func(v *visitor) error {
		snapshot := c.db.NewSnapshot()
		walk := func() error {
			r := SideRoot{ID: id}
			found, err := get(snapshot, id.rootKey(), r.decode)
			if err == nil && !found {
				err = &skep.Error{Op: op, Kind: skep.NotFound, Field: "side rows of block", Value: id.Key.Short()}
			}
			if err != nil {
				return err
			}
			pieces := SideRoot{ID: id, Pieces: append([]SidePiece(nil), r.Pieces...)} // r is the caller's from here on
			if err := v.do(func() error { return root(r) }); err != nil {
				return err
			}
			return sidePieces(snapshot, v, &pieces, visit)
		}
		return cmp.Or(walk(), snapshot.Close())
	})
}

func sidePieces(db pebble.Reader, v *visitor, r *SideRoot, visit func(i int, body []byte) error) error {
	for i, p := range r.Pieces {
		key := r.ID.piece(p.Edition, p.Number)
		found, err := get(db, key, func(body []byte) error {
			return v.do(func() error { return visit(i, body) })
		})
		if err == nil && !found {
			err = damaged(key, pebble.ErrNotFound)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// SideOwner is a block of which there are pieces.
type SideOwner struct {
	ID   SideID
	Last uint64 // the latest edition of them
}

// SideOwners lists the blocks of which there are pieces, by seeking from one to the next.
func (c *Catalog) SideOwners(ctx context.Context) ([]SideOwner, error) {
	var all []SideOwner
	err := c.call(ctx, "list side rows", func(v *visitor) error {
		r := rowRange(rowSidePiece)
		it, err := c.db.NewIter(&pebble.IterOptions{LowerBound: r.lower, UpperBound: r.upper})
		if err != nil {
			return err
		}
		return finish(it, sideOwners(it, v, &all))
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

func sideOwners(it *pebble.Iterator, v *visitor, all *[]SideOwner) error {
	for ok := it.First(); ok; {
		if len(it.Key()) != sidePieceKey {
			return damaged(it.Key(), errShort)
		}
		o := SideOwner{ID: parseSideID(it.Key())}
		next := under(o.ID.pieceKey()).upper
		if !it.SeekLT(next) {
			return it.Error()
		}
		o.Last = binary.BigEndian.Uint64(it.Key()[sideRootKey:])
		if err := v.do(func() error { *all = append(*all, o); return nil }); err != nil {
			return err
		}
		ok = it.SeekGE(next)
	}
	return nil
}
