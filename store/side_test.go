package store

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/storetest"
)

// piecesOf cuts a block's bytes, a piece of each kind and the rest in pieces of a size.
func piecesOf(b []byte, size int) (out []skep.SidecarPiece) {
	out = append(out, skep.SidecarPiece{Kind: skep.SidecarHeader, Bytes: b[:10]}, skep.SidecarPiece{Kind: skep.SidecarRoutes, Bytes: b[10:20]})
	for b = b[20:]; len(b) > 0; b = b[min(size, len(b)):] {
		out = append(out, skep.SidecarPiece{Kind: skep.SidecarMedoids, Bytes: b[:min(size, len(b))]})
	}
	return out
}

func putOne(t testing.TB, s *Store, sc skep.Scope, k skep.Key, b []byte) {
	t.Helper()
	res, err := s.Put(testContext(t), &skep.PutRequest{Scope: sc, Blocks: []skep.Block{{Key: k, Parts: []skep.Part{{Bytes: b}}}}})
	require.NoError(t, err)
	requireOutcome(t, skep.Committed, res)
}

// sideRows is what the catalog holds of side rows: roots, and pieces of which there are any.
func sideRows(t testing.TB, s *Store) (roots []catalog.SideRoot, owners []catalog.SideOwner) {
	t.Helper()
	roots, err := s.catalog.SideRoots(testContext(t))
	require.NoError(t, err)
	owners, err = s.catalog.SideOwners(testContext(t))
	require.NoError(t, err)
	return roots, owners
}

// What did not change from one version to the next is not written again, and what no version
// has any more is not there.
func TestSideRowsKeepWhatIsTheSame(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, err := Open(ctx, small(tempRoot(t, "store")))
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	sc, k := openSpace(t, s, "keys", skep.Durable, 1, false), keyOf(1)
	b := content(k, "a", 1, 50_000)
	putOne(t, s, sc, k, b)
	require.NoError(t, s.PutSidecar(ctx, sc, k, piecesOf(b, 1000)))
	before, _ := sideRows(t, s)
	cut := before[0]
	cut.Pieces = []catalog.SidePiece{{Edition: before[0].Edition + 1, Number: 99}}
	left := s.catalog.NewBatch() // by a put that was given up
	left.PutSidePiece(cut.ID, cut.Pieces[0].Edition, 99, []byte("left"))
	require.NoError(t, s.catalog.Commit(ctx, left, true))
	copy(b, "0123456789") // the header, alone
	putOne(t, s, sc, k, b)
	require.NoError(t, s.PutSidecar(ctx, sc, k, piecesOf(b, 1000)))
	after, owners := sideRows(t, s)
	require.Len(t, after, 1)
	require.Greater(t, after[0].Edition, before[0].Edition)
	require.Equal(t, after[0].Edition, after[0].Pieces[0].Edition)
	require.Equal(t, before[0].Pieces[1:], after[0].Pieces[1:])
	require.Equal(t, after[0].Edition, owners[0].Last)
	visit := func(int, []byte) error { return nil }
	requireKind(t, skep.Damaged, s.catalog.SidePieces(ctx, &cut, visit))
	old := before[0]
	old.Pieces = before[0].Pieces[:1]
	requireKind(t, skep.Damaged, s.catalog.SidePieces(ctx, &old, visit))
	old.Pieces = before[0].Pieces[1:]
	require.NoError(t, s.catalog.SidePieces(ctx, &old, visit), "the old header alone is gone")
}

// Side rows go with what takes their block away, at once or by the sweep.
func TestSideRowsGoWithTheirBlock(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	dir := tempRoot(t, "store")
	s, err := Open(ctx, small(dir))
	require.NoError(t, err)
	fill := func(name string, salt skep.Salt) (skep.Scope, skep.Key) {
		sc, k := openSpace(t, s, name, skep.Durable, 1, false), keyOf(7)
		sc.Salt = salt
		b := content(k, "a", 1, 9000)
		putOne(t, s, sc, k, b)
		require.NoError(t, s.PutSidecar(ctx, sc, k, piecesOf(b, 4000)))
		return sc, k
	}
	none := func() {
		roots, owners := sideRows(t, s)
		require.Empty(t, roots)
		require.Empty(t, owners)
	}
	sc, k := fill("deleted", "s")
	_, err = s.Delete(ctx, sc, []skep.Key{k})
	require.NoError(t, err)
	none()

	sc, _ = fill("salt", "s")
	require.NoError(t, s.Purge(ctx, skep.Purge{Salt: &sc}))
	none()
	sc, _ = fill("salt", "s") // a salt that was purged before
	require.NoError(t, s.Purge(ctx, skep.Purge{Salt: &sc}))
	none()
	sc, _ = fill("purged", "")
	require.NoError(t, s.Purge(ctx, skep.Purge{Namespace: sc.Namespace}))
	none()

	sc, k = fill("evicted", "")
	ns, tag, err := s.names.Resolve("test", sc)
	require.NoError(t, err)
	fp := s.names.Fingerprint(ns.Instance, tag, k)
	e, _ := s.index.Resolve(fp)
	s.rows.Changes().Lock() // as the cleaner does
	b := s.catalog.NewBatch()
	b.DeleteBlock(layout.Unpack(e.Location))
	require.NoError(t, s.catalog.Commit(ctx, b, true))
	s.index.Remove(fp, e.Location)
	s.rows.Changes().Unlock()
	_, err = s.Sidecar(ctx, sc, k)
	requireKind(t, skep.NotFound, err)
	eventually(t, "the sweep takes them", func() bool { roots, owners := sideRows(t, s); return len(roots)+len(owners) == 0 })

	// What an earlier run has left, of blocks that are not there and of puts that were cut off.
	sc, k = fill("kept", "")
	id := catalog.SideID{Instance: 1 << 20, Key: k}
	roots, _ := sideRows(t, s)
	b = s.catalog.NewBatch()
	b.PutSideRoot(&catalog.SideRoot{ID: id, Edition: 3})
	b.PutSidePiece(id, 3, 0, []byte("of a purged namespace"))
	b.PutSidePiece(catalog.SideID{Instance: roots[0].ID.Instance, Key: keyOf(8)}, 9, 1, []byte("without a root"))
	b.PutSidePiece(roots[0].ID, roots[0].Edition+1, 0, []byte("of a put that was cut off"))
	require.NoError(t, s.catalog.Commit(ctx, b, true))
	require.NoError(t, s.Close())
	s, err = Open(ctx, small(dir))
	require.NoError(t, err)
	after, owners := sideRows(t, s)
	require.Equal(t, roots, after)
	require.Equal(t, []catalog.SideOwner{{ID: roots[0].ID, Last: roots[0].Edition}}, owners)
	got, err := s.Sidecar(ctx, sc, k)
	require.NoError(t, err)
	require.Equal(t, piecesOf(content(k, "a", 1, 9000), 4000), got)
	require.NoError(t, s.Close())
}

// The catalog's file system stops at every one of the writes of a PutSide, with what was not
// synced there or not: what comes back is the rows of the block that is stored, or none.
func TestSideRowsAfterACrashAnywhere(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	mem := vfs.NewCrashableMem()
	devices := &rig{}
	type point struct {
		fs   *vfs.MemFS
		mems []*device.Memory
	}
	var mu sync.Mutex
	var points []point
	recording := false
	rng := rand.New(rand.NewPCG(testSeed(t), 1))
	stop := errorfs.InjectorFunc(func(op errorfs.Op) error {
		mu.Lock()
		defer mu.Unlock()
		if recording && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			p := point{fs: mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 50, 100}[rng.IntN(3)], RNG: rng})}
			for _, m := range devices.mems {
				p.mems = append(p.mems, m.Clone())
			}
			points = append(points, p)
		}
		return nil
	})
	options := func(fs vfs.FS, r *rig) Options {
		o := small(tempRoot(t, "store"))
		o.OpenDevice, o.CatalogFS, o.CatalogDir, o.CapacityBytes, o.SegmentBytes = r.open, fs, "/catalog", 32<<20, 4<<20
		o.FlushInterval = time.Minute
		return o
	}
	s, err := Open(ctx, options(errorfs.Wrap(storetest.CrashFS(mem), stop), devices))
	require.NoError(t, err)
	sc, k := openSpace(t, s, "keys", skep.Durable, 1, false), keyOf(1)
	old := content(k, "a", 1, 2<<20)
	putOne(t, s, sc, k, old)
	require.NoError(t, s.PutSidecar(ctx, sc, k, piecesOf(old, 60_000)))
	now := bytes.Clone(old)
	copy(now[1<<20:], content(k, "a", 2, 1<<20)) // the second half is new
	putOne(t, s, sc, k, now)
	mu.Lock()
	recording = true
	mu.Unlock()
	require.NoError(t, s.PutSidecar(ctx, sc, k, piecesOf(now, 60_000)))
	mu.Lock()
	recording = false
	mu.Unlock()
	require.NoError(t, s.Close())

	require.NotEmpty(t, points)
	points = append(points, point{mem, devices.mems})
	whole := 0
	for i, p := range points {
		r := &rig{mems: p.mems, faults: make([]*device.Fault, len(p.mems))}
		s, err := Open(ctx, options(p.fs, r))
		require.NoError(t, err, "point %d", i)
		got, err := s.Sidecar(ctx, sc, k)
		if err == nil {
			whole++
			require.Equal(t, piecesOf(now, 60_000), got, "point %d", i)
		} else {
			requireKind(t, skep.NotFound, err)
		}
		require.NoError(t, s.PutSidecar(ctx, sc, k, piecesOf(now, 50_000)), "point %d", i)
		roots, owners := sideRows(t, s)
		require.Len(t, roots, 1)
		require.Len(t, owners, 1)
		require.Equal(t, roots[0].Edition, owners[0].Last)
		require.NoError(t, s.Close())
	}
	require.Positive(t, whole)
	require.Less(t, whole, len(points), "some were cut off before")
}

// Pieces of an encrypted block are encrypted, bound to their row, and read by who has the key.
func TestSideRowsOfAnEncryptedBlock(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	dir := tempRoot(t, "store")
	o := small(dir)
	o.EncryptionKeys = oneKey("t", 7)
	s, err := Open(ctx, o)
	require.NoError(t, err)
	sc, k := openSpace(t, s, "keys", skep.Durable, 1, false), keyOf(1)
	b := marked(20_000)
	putOne(t, s, sc, k, b)
	require.NoError(t, s.PutSidecar(ctx, sc, k, piecesOf(b, 4000)))
	got, err := s.Sidecar(ctx, sc, k)
	require.NoError(t, err)
	require.Equal(t, piecesOf(b, 4000), got)
	roots, _ := sideRows(t, s)
	require.True(t, roots[0].Sealed)
	var rows [][]byte
	require.NoError(t, s.catalog.SidePieces(ctx, &roots[0], func(_ int, row []byte) error {
		assert.NotContains(t, string(row), "IN PLAIN SIGHT")
		rows = append(rows, bytes.Clone(row))
		return nil
	}))
	for _, p := range roots[0].Pieces {
		require.Zero(t, p.Sum, "a hash would tell what it is")
	}
	swap := s.catalog.NewBatch() // two pieces of one size change places
	swap.PutSidePiece(roots[0].ID, roots[0].Pieces[2].Edition, roots[0].Pieces[2].Number, rows[3])
	swap.PutSidePiece(roots[0].ID, roots[0].Pieces[3].Edition, roots[0].Pieces[3].Number, rows[2])
	require.NoError(t, s.catalog.Commit(ctx, swap, true))
	_, err = s.Sidecar(ctx, sc, k)
	requireKind(t, skep.Damaged, err)
	require.NoError(t, s.PutSidecar(ctx, sc, k, piecesOf(b, 4000)))
	got, err = s.Sidecar(ctx, sc, k)
	require.NoError(t, err)
	require.Equal(t, piecesOf(b, 4000), got)
	require.NoError(t, s.Close())
	found, of := searchFiles(t, dir)
	require.Positive(t, of)
	require.Zero(t, found)

	o.EncryptionKeys, o.WithoutKeys = oneKey("another", 7), true
	s, err = Open(ctx, o)
	require.NoError(t, err)
	_, err = s.Sidecar(ctx, sc, k)
	requireKind(t, skep.Denied, err)
	requireKind(t, skep.Denied, s.PutSidecar(ctx, sc, k, piecesOf(b, 4000)))
	require.NoError(t, s.Close())
}

// A rebuild brings the block back and no rows; a store that is read only has them and takes none.
func TestSideRowsAreNotRebuilt(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	o := small(tempRoot(t, "store"))
	s, err := Open(ctx, o)
	require.NoError(t, err)
	sc, k := openSpace(t, s, "keys", skep.Durable, 1, false), keyOf(1)
	b := content(k, "a", 1, 9000)
	putOne(t, s, sc, k, b)
	require.NoError(t, s.PutSidecar(ctx, sc, k, piecesOf(b, 4000)))
	require.NoError(t, s.Close())

	ro := o
	ro.ReadOnly = true
	s, err = Open(ctx, ro)
	require.NoError(t, err)
	got, err := s.Sidecar(ctx, sc, k)
	require.NoError(t, err)
	require.Equal(t, piecesOf(b, 4000), got)
	requireKind(t, skep.ReadOnly, s.PutSidecar(ctx, sc, k, piecesOf(b, 4000)))
	require.NoError(t, s.Close())

	_, err = Rebuild(context.Background(), o, false, nil)
	require.NoError(t, err)
	s, err = Open(ctx, o)
	require.NoError(t, err)
	_, err = s.Sidecar(ctx, sc, k)
	requireKind(t, skep.NotFound, err)
	require.NoError(t, s.PutSidecar(ctx, sc, k, piecesOf(b, 4000)))
	got, err = s.Sidecar(ctx, sc, k)
	require.NoError(t, err)
	require.Equal(t, piecesOf(b, 4000), got)
	require.NoError(t, s.Close())
}

// Verify compares rows with what their blocks' records say, and an open mends what it can.
func TestVerifyComparesSideRows(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	for _, c := range []struct {
		name         string
		harm         func(b *catalog.Batch, r *catalog.SideRoot)
		faults       int
		sides, stale int
	}{
		{"nothing", func(*catalog.Batch, *catalog.SideRoot) {}, 0, 1, 0},
		{"a piece is gone", func(b *catalog.Batch, r *catalog.SideRoot) { b.DeleteSidePiece(r.ID, r.Pieces[1]) }, 1, 1, 0},
		{"a piece says something else", func(b *catalog.Batch, r *catalog.SideRoot) {
			b.PutSidePiece(r.ID, r.Edition, r.Pieces[1].Number, make([]byte, r.Pieces[1].Bytes))
		}, 1, 1, 0},
		{"the root names too little", func(b *catalog.Batch, r *catalog.SideRoot) {
			r.Pieces = r.Pieces[1:]
			b.PutSideRoot(r)
		}, 1, 1, 0},
		{"an earlier version", nil, 0, 1, 1},
		{"of no block", func(b *catalog.Batch, r *catalog.SideRoot) {
			r.ID.Key = keyOf(99)
			b.PutSideRoot(r)
		}, 0, 2, 1},
		{"a put that was cut off", func(b *catalog.Batch, r *catalog.SideRoot) { b.PutSidePiece(r.ID, r.Edition+1, 0, []byte("x")) }, 0, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := small(tempRoot(t, "store"))
			s, err := Open(ctx, o)
			require.NoError(t, err)
			sc, k := openSpace(t, s, "keys", skep.Durable, 1, false), keyOf(1)
			b := content(k, "a", 1, 9000)
			putOne(t, s, sc, k, b)
			require.NoError(t, s.PutSidecar(ctx, sc, k, piecesOf(b, 4000)))
			roots, _ := sideRows(t, s)
			if c.harm == nil {
				putOne(t, s, sc, k, b)
			} else {
				harm := s.catalog.NewBatch()
				c.harm(harm, &roots[0])
				require.NoError(t, s.catalog.Commit(ctx, harm, true))
			}
			require.NoError(t, s.Close())
			rep, err := Verify(ctx, o, VerifyOptions{})
			require.NoError(t, err)
			require.Len(t, rep.Faults, c.faults)
			require.Equal(t, c.sides, rep.Sides)
			require.Equal(t, c.stale, rep.StaleSides)
			for _, f := range rep.Faults {
				require.Equal(t, "side rows", f.What)
				require.Equal(t, k.String(), f.Key)
			}

			s, err = Open(ctx, o)
			require.NoError(t, err)
			if got, err := s.Sidecar(ctx, sc, k); err == nil {
				require.Equal(t, piecesOf(b, 4000), got)
			}
			require.NoError(t, s.PutSidecar(ctx, sc, k, piecesOf(b, 4000)))
			require.NoError(t, s.Close())
			rep, err = Verify(ctx, o, VerifyOptions{})
			require.NoError(t, err)
			require.True(t, rep.Sound, "%v", rep.Faults)
			require.Equal(t, [2]int{1, 0}, [2]int{rep.Sides, rep.StaleSides})
		})
	}
}

// A side row that cannot be read costs the side rows, and not the catalog.
func TestDamagedSideRowsAreDeleted(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	o := small(tempRoot(t, "store"))
	s, err := Open(ctx, o)
	require.NoError(t, err)
	sc, k := openSpace(t, s, "keys", skep.Durable, 1, false), keyOf(1)
	b := content(k, "a", 1, 9000)
	putOne(t, s, sc, k, b)
	require.NoError(t, s.PutSidecar(ctx, sc, k, piecesOf(b, 4000)))
	require.NoError(t, s.Close())
	db, err := pebble.Open(o.catalogDir(), &pebble.Options{Logger: quietPebble{}})
	require.NoError(t, err)
	require.NoError(t, db.Set([]byte("x not a root"), []byte("nonsense"), pebble.Sync))
	require.NoError(t, db.Close())
	rep, err := Verify(ctx, o, VerifyOptions{})
	require.NoError(t, err)
	require.Len(t, rep.Faults, 1)
	require.Equal(t, "side rows", rep.Faults[0].What)
	s, err = Open(ctx, o)
	require.NoError(t, err)
	roots, owners := sideRows(t, s)
	require.Empty(t, roots)
	require.Empty(t, owners)
	require.NoError(t, s.PutSidecar(ctx, sc, k, piecesOf(b, 4000)))
	require.NoError(t, s.Close())
	rep, err = Verify(ctx, o, VerifyOptions{})
	require.NoError(t, err)
	require.True(t, rep.Sound, "%v", rep.Faults)
}

type quietPebble struct{ pebble.Logger }

func (quietPebble) Infof(string, ...any) {}
