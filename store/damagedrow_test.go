package store

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// damageRow makes the row of one block of g wrong, as damage in the catalog that its own checksums do not find.
func damageRow(t *testing.T, s *Store, g *space.Group) {
	t.Helper()
	ctx := testContext(t)
	b := s.catalog.NewBatch()
	require.NoError(t, s.catalog.ScanGroup(ctx, g.Num, func(l layout.Location, row []byte) error {
		row = bytes.Clone(row)
		row[len(row)/2] ^= 1
		b = s.catalog.NewBatch()
		b.PutBlock(l, row)
		return nil
	}))
	require.NoError(t, s.catalog.Commit(ctx, b, true))
}

// The row of a block cannot be read. Whatever is done with its group, the group stays, and so does the block: its
// record is in the logs, of which the next open makes the catalog anew.
func TestABlockWithADamagedRowStays(t *testing.T) {
	t.Parallel()
	drive := func(s *Store) string { return s.members.Opened[0].Path }
	for name, do := range map[string]func(t *testing.T, s *Store, g *space.Group){
		"open": func(*testing.T, *Store, *space.Group) {},
		"clean": func(t *testing.T, s *Store, g *space.Group) {
			for _, keepAll := range []bool{true, false} {
				requireKind(t, skep.Damaged, s.cleaner.Clean(testContext(t), g, keepAll))
			}
		},
		"compare": func(_ *testing.T, s *Store, g *space.Group) { s.space.Suspect(g) }, // when it closes
		"drain": func(t *testing.T, s *Store, _ *space.Group) {
			_, err := s.DrainDevice(testContext(t), drive(s), MoveOptions{})
			requireKind(t, skep.Damaged, err)
			require.ErrorContains(t, err, "close the store and open it")
		},
		"remove": func(t *testing.T, s *Store, _ *space.Group) {
			_, err := s.RemoveDevice(testContext(t), drive(s), MoveOptions{Force: true})
			requireKind(t, skep.Damaged, err)
		},
		"scrub": func(t *testing.T, s *Store, g *space.Group) {
			rep, err := s.Scrub(testContext(t), ScrubOptions{})
			require.NoError(t, err)
			require.EqualValues(t, 1, rep.Unmended, "%+v", rep)
			require.Equal(t, "catalog row", rep.Faults[0].What)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, sc, keys := openCopies(t, 1)
			require.NoError(t, s.Flush(testContext(t)))
			s.space.SealOpen(space.User)
			g := s.space.Groups()[0]
			eventually(t, "nobody writes to it", func() bool { return s.space.IsIdle(g) })
			damageRow(t, s, g)
			do(t, s, g)
			require.True(t, s.space.Has(g))
			o := s.options
			o.OpenDevice, o.customDevices = nil, false
			require.NoError(t, s.Close())

			s, err := Open(testContext(t), o)
			require.NoError(t, err)
			requireChain(t, s, sc, keys, 9000)
			require.Empty(t, unsound(s))
			if name == "drain" || name == "remove" {
				_, err := s.RemoveDevice(testContext(t), drive(s), MoveOptions{})
				require.NoError(t, err)
				requireChain(t, s, sc, keys, 9000)
			}
			require.NoError(t, s.Close())
		})
	}
}

// A group with such a row stays, however short of room the store is, and others are cleaned instead.
func TestOthersAreCleanedInsteadOfADamagedGroup(t *testing.T) {
	t.Parallel()
	s, _, o := openRig(t, func(o *Options) { well(o); o.CapacityBytes, o.taskEvery = 3<<20, hangs })
	sc, keys, g := putAway(t, s, skep.Cache)
	damageRow(t, s, g)
	for i := range 400 { // several times what there is room for
		requireOutcome(t, skep.Committed, putRun(t, s, sc, []skep.Key{keyOf(uint32(i), 9)}, faultBlock))
	}
	require.Positive(t, s.count.Evicted.Load())
	require.True(t, s.space.Has(g))
	require.NoError(t, s.Close())

	_, err := Open(testContext(t), o)
	requireKind(t, skep.Damaged, err) // the devices are the caller's own, who rebuilds
	_, err = Rebuild(testContext(t), o, false, nil)
	require.NoError(t, err)
	s, err = Open(testContext(t), o)
	require.NoError(t, err)
	requireChain(t, s, sc, keys, faultBlock)
	require.NoError(t, s.Close())
}

// An open that only reads, or without a drive, drops nothing for such a row, and gives the others. With all drives it
// is a damaged catalog, and the one that is made anew knows what was deleted meanwhile.
func TestADamagedRowBesideAMissingDrive(t *testing.T) {
	t.Parallel()
	s, r, o := openRig(t, well)
	sc, keys, g := putAway(t, s, skep.Cache)
	damageRow(t, s, g)
	require.NoError(t, s.Close())
	only := s.options
	only.OpenDevice, only.ReadOnly = r.open, true
	s, err := Open(testContext(t), only)
	require.NoError(t, err)
	n, _ := requireRight(t, s, sc, keys, faultBlock)
	require.Equal(t, len(keys)-1, n)
	require.NoError(t, s.Close())

	open := o.OpenDevice
	o.OpenDevice = func(i int, path string, create bool, size int64) (device.Device, error) {
		if i == 1 {
			return nil, skep.Missing
		}
		return open(i, path, create, size)
	}
	s, err = Open(testContext(t), o)
	require.NoError(t, err)
	require.Contains(t, strings.Join(s.logTail.Lines(), "\n"), "blocks_with_damaged_rows=1")
	n, _ = requireRight(t, s, sc, keys, faultBlock)
	require.Less(t, n, len(keys))
	_, err = s.Delete(testContext(t), sc, keys)
	require.NoError(t, err)
	require.NoError(t, s.Close())

	o.OpenDevice = open
	_, err = Open(testContext(t), o)
	requireKind(t, skep.Damaged, err)
	_, err = Rebuild(testContext(t), o, false, nil)
	require.NoError(t, err)
	s, err = Open(testContext(t), o)
	require.NoError(t, err)
	n, _ = requireRight(t, s, sc, keys, faultBlock)
	require.Zero(t, n)
	require.NoError(t, s.Close())
}

// A record in a log whose checksum is right and which says what cannot be gets no row in a catalog that is made anew:
// no open would find that row wrong, and no group with it would ever be cleaned.
func TestARecordThatSaysWhatCannotBeGetsNoRow(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, _, o := openRig(t, well)
	sc, keys, _ := putAway(t, s, skep.Durable)
	var bad segment.Record
	for _, bad = range recordsOf(t, s) {
		break
	}
	bad.Seq, bad.Key, bad.Parent, bad.Depth = s.root.Next(), keyOf(99), nil, 7
	bad.Copies, bad.Pages, bad.Parts = nil, 0, []segment.RecordPart{{Name: skep.PartKV, Size: 3, Inline: []byte("odd")}}
	var w segment.LogWriter
	require.NoError(t, w.Entry(segment.Entry{Kind: segment.KindBlock, Body: bad.Append(nil)}))
	require.NoError(t, s.appends.Entries(ctx, space.User, hangs, w.Bytes()))
	require.NoError(t, s.Close())

	rep, err := Rebuild(ctx, o, false, nil)
	require.NoError(t, err)
	require.EqualValues(t, len(keys), rep.Blocks)
	require.NotEmpty(t, rep.Faults)
	require.Equal(t, "record", rep.Faults[0].What)
	s, err = Open(ctx, o)
	require.NoError(t, err)
	s.space.SealOpen(space.User)
	for _, g := range s.space.Groups() {
		require.NoError(t, s.cleaner.Clean(ctx, g, true))
	}
	requireChain(t, s, sc, keys, faultBlock)
	require.NoError(t, s.Close())
}
