package catalog

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

func sideID(instance uint32, tag, key byte) (id SideID) {
	id.Instance, id.Tag[15], id.Key[31] = instance, tag, key
	return id
}

// readSide is what a root and its pieces say.
func readSide(t *testing.T, c *Catalog, id SideID) (SideRoot, []string) {
	t.Helper()
	r, err := c.SideRoot(bg, id)
	require.NoError(t, err)
	var out []string
	require.NoError(t, c.SidePieces(bg, &r, func(i int, body []byte) error {
		assert.Len(t, out, i)
		out = append(out, string(body))
		return nil
	}))
	return r, out
}

func TestSideRows(t *testing.T) {
	t.Parallel()
	c := open(t, vfs.NewMem())
	one, salted, other, next := sideID(1, 0, 0xff), sideID(1, 0xff, 1), sideID(1, 0, 2), sideID(2, 0, 2)
	piece := func(edition uint64, number uint32, s string) SidePiece {
		return SidePiece{Kind: uint8(skep.SidecarRoutes), Edition: edition, Number: number, Bytes: uint32(len(s)), Sum: [16]byte{1, 2, byte(number)}}
	}
	roots := map[SideID]SideRoot{}
	for _, id := range []SideID{one, salted, other, next} {
		r := SideRoot{ID: id, Edition: 7, Sealed: id == salted, Pieces: []SidePiece{piece(7, 1, "new"), piece(3, 4, "old")}}
		roots[id] = r
		commit(t, c, true, func(b *Batch) {
			b.PutSidePiece(id, 3, 4, []byte("old"))
			b.PutSidePiece(id, 7, 1, []byte("new"))
			b.PutSideRoot(&r)
		})
	}
	for id, want := range roots {
		got, pieces := readSide(t, c, id)
		require.Equal(t, want, got)
		require.Equal(t, []string{"new", "old"}, pieces)
	}
	all, err := c.SideRoots(bg)
	require.NoError(t, err)
	require.Len(t, all, 4)
	owners, err := c.SideOwners(bg)
	require.NoError(t, err)
	require.Equal(t, []SideOwner{{other, 7}, {one, 7}, {salted, 7}, {next, 7}}, owners)

	commit(t, c, true, func(b *Batch) { b.DeleteSideFrom(one, 4) })
	root := roots[one]
	require.ErrorIs(t, c.SidePieces(bg, &root, func(int, []byte) error { return nil }), skep.Damaged)
	visited := errors.New("enough")
	root = roots[other]
	require.ErrorIs(t, c.SidePieces(bg, &root, func(int, []byte) error { return &skep.Error{Kind: skep.Denied, Err: visited} }), visited)
	left := func() (out []string) {
		all, err := c.SideRoots(bg)
		require.NoError(t, err)
		owners, err := c.SideOwners(bg)
		require.NoError(t, err)
		for _, r := range all {
			out = append(out, fmt.Sprintf("root %d %d %d", r.ID.Instance, r.ID.Tag[15], r.ID.Key[31]))
		}
		for _, o := range owners {
			out = append(out, fmt.Sprintf("pieces %d %d %d", o.ID.Instance, o.ID.Tag[15], o.ID.Key[31]))
		}
		return out
	}
	commit(t, c, true, func(b *Batch) { b.DeleteSide(other) })
	require.Equal(t, []string{"root 1 0 255", "root 1 255 1", "root 2 0 2", "pieces 1 0 255", "pieces 1 255 1", "pieces 2 0 2"}, left())
	commit(t, c, true, func(b *Batch) { b.DeleteSidesOf(1, &salted.Tag) })
	require.Equal(t, []string{"root 1 0 255", "root 2 0 2", "pieces 1 0 255", "pieces 2 0 2"}, left())
	commit(t, c, true, func(b *Batch) { b.DeleteSidesOf(1, nil) })
	require.Equal(t, []string{"root 2 0 2", "pieces 2 0 2"}, left())
	commit(t, c, true, func(b *Batch) { b.DeleteAllSides() })
	require.Empty(t, left())
	_, err = c.SideRoot(bg, one)
	require.ErrorIs(t, err, skep.NotFound)

	b := c.NewBatch()
	b.PutSidePiece(one, 1, 1, make([]byte, maxSideRow+1))
	require.ErrorIs(t, c.Commit(bg, b, true), skep.Invalid)
}

// Side rows that are not as they were written are damage, or of a newer program.
func TestDamagedSideRows(t *testing.T) {
	t.Parallel()
	c := open(t, vfs.NewMem())
	id := sideID(1, 2, 3)
	good := SideRoot{ID: id, Edition: 1, Pieces: []SidePiece{{Kind: 1, Edition: 1, Bytes: 3}}}
	body := good.encode()
	for name, bad := range map[string][]byte{"empty": nil, "short": body[:len(body)-1], "long": append(bytes.Clone(body), 0),
		"flags": {1, 2, 0}, "more pieces than bytes": {1, 0, 200, 1}} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, c.db.Set(id.rootKey(), seal(id.rootKey(), bad), pebble.Sync))
			_, err := c.SideRoot(bg, id)
			require.ErrorIs(t, err, skep.Damaged)
			_, err = c.SideRoots(bg)
			require.ErrorIs(t, err, skep.Damaged)
		})
	}
	newer := seal(id.rootKey(), body)
	newer[0]++
	newer = append(newer[:len(newer)-4], 0, 0, 0, 0)
	sum := checksum(id.rootKey(), newer[:len(newer)-4])
	for i := range 4 {
		newer[len(newer)-4+i] = byte(sum >> (8 * i))
	}
	require.NoError(t, c.db.Set(id.rootKey(), newer, pebble.Sync))
	_, err := c.SideRoot(bg, id)
	require.ErrorIs(t, err, skep.Version)
	require.NoError(t, c.db.Set([]byte{rowSidePiece, 1}, seal([]byte{rowSidePiece, 1}, body), pebble.Sync))
	_, err = c.SideOwners(bg)
	require.ErrorIs(t, err, skep.Damaged)
}

// Root and pieces are those of one moment, whatever is committed while they are visited.
func TestSideRowsOfOneMoment(t *testing.T) {
	t.Parallel()
	c, id := open(t, vfs.NewMem()), sideID(1, 0, 1)
	put := func(edition uint64, pieces ...string) SideRoot {
		r := SideRoot{ID: id, Edition: edition}
		commit(t, c, true, func(b *Batch) {
			b.DeleteSide(id)
			for i, s := range pieces {
				b.PutSidePiece(id, edition, uint32(i), []byte(s))
				r.Pieces = append(r.Pieces, SidePiece{Edition: edition, Number: uint32(i), Bytes: uint32(len(s))})
			}
			b.PutSideRoot(&r)
		})
		return r
	}
	want := put(1, "one", "two")
	var got []string
	require.NoError(t, c.SideRows(bg, id, func(r SideRoot) error {
		assert.Equal(t, want, r)
		done := make(chan error, 1)
		go func() { // another caller: who visits takes no lock of the catalog
			b := c.NewBatch()
			b.DeleteSide(id)
			done <- c.Commit(bg, b, true)
		}()
		return <-done
	}, func(_ int, body []byte) error {
		got = append(got, string(body))
		return nil
	}))
	require.Equal(t, []string{"one", "two"}, got)
	none := func(SideRoot) error { return errors.New("called") }
	require.ErrorIs(t, c.SideRows(bg, id, none, nil), skep.NotFound)
	refused := &skep.Error{Kind: skep.Denied}
	put(2, "three")
	require.ErrorIs(t, c.SideRows(bg, id, func(SideRoot) error { return refused }, nil), refused)
}
