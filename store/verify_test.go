package store

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

func TestVerifyNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	place := func(t *testing.T, s *Store) (g *space.Group, rec segment.Record) {
		for _, rec = range recordsOf(t, s) {
			return s.space.Find(rec.Copies[0].Group), rec
		}
		return nil, rec
	}
	for _, c := range []struct {
		name string
		harm func(t *testing.T, s *Store)
		what string // fault's structure; "": sound
		deep bool
	}{
		{"nothing", func(*testing.T, *Store) {}, "", true},
		{"a superblock", func(t *testing.T, s *Store) { harmDrive(t, s.members.Opened[1], 300, 1) }, "superblock", false},
		{"a header", func(t *testing.T, s *Store) {
			g, _ := place(t, s)
			harmDrive(t, g.Drives[0], g.Drives[0].SegmentOffset(g.Segments[0])+100, 1)
		}, "segment header", false},
		{"a log", func(t *testing.T, s *Store) {
			g, _ := place(t, s)
			for i, d := range g.Drives {
				harmDrive(t, d, d.SegmentOffset(g.Segments[i]+1)-layout.PageSize+1000, 1)
			}
		}, "log", false},
		{"payload", func(t *testing.T, s *Store) {
			_, rec := place(t, s)
			damageCopy(t, s, &rec, 0)
		}, "block", true},
		{"a row that is gone", func(t *testing.T, s *Store) {
			b := s.catalog.NewBatch()
			for l := range recordsOf(t, s) {
				b.DeleteBlock(l)
				break
			}
			require.NoError(t, s.catalog.Commit(ctx, b, true))
		}, "log", false},
		{"a row in the wrong place", func(t *testing.T, s *Store) {
			b := s.catalog.NewBatch()
			for l, rec := range recordsOf(t, s) {
				b.DeleteBlock(l)
				l.Page += 3
				b.PutBlock(l, rec.Append(nil))
				break
			}
			require.NoError(t, s.catalog.Commit(ctx, b, true))
		}, "catalog row", false},
		{"two blocks in one place", func(t *testing.T, s *Store) {
			b := s.catalog.NewBatch()
			var first *segment.Record
			for l, rec := range recordsOf(t, s) {
				if first == nil {
					first = &rec
					continue
				}
				rec.Copies = first.Copies
				b.PutBlock(l, rec.Append(nil))
				break
			}
			require.NoError(t, s.catalog.Commit(ctx, b, true))
		}, "record", false},
		{"a segment of two groups", func(t *testing.T, s *Store) {
			g, _ := place(t, s)
			state := g.Row
			state.Group += 1000
			b := s.catalog.NewBatch()
			b.PutGroup(&state)
			require.NoError(t, s.catalog.Commit(ctx, b, true))
		}, "catalog group", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, sc, keys := openCopies(t, 1)
			requireChain(t, s, sc, keys, 9000)
			c.harm(t, s)
			require.NoError(t, s.Close())
			o := s.options
			o.customDevices, o.OpenDevice = false, nil
			rep, err := Verify(ctx, o, VerifyOptions{Deep: c.deep})
			require.NoError(t, err)
			if c.what == "" {
				require.True(t, rep.Sound, "%+v", rep)
				require.EqualValues(t, len(keys), rep.Blocks)
				require.Zero(t, rep.Leftovers)
				return
			}
			require.False(t, rep.Sound)
			found := false
			for _, f := range rep.Faults {
				require.NotEmpty(t, f.Do)
				found = found || f.What == c.what
			}
			require.True(t, found, "%+v", rep.Faults)
		})
	}
	t.Run("no catalog", func(t *testing.T) {
		s, _, _ := openCopies(t, 1)
		require.NoError(t, s.Close())
		require.NoError(t, os.RemoveAll(filepath.Join(s.options.Dir, "catalog")))
		o := s.options
		o.customDevices, o.OpenDevice = false, nil
		rep, err := Verify(ctx, o, VerifyOptions{})
		require.NoError(t, err)
		require.False(t, rep.Sound)
		require.Equal(t, "catalog", rep.Faults[0].What)
	})
}
