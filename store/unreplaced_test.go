package store

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// A put that replaces a tail by name is refused by the catalog. Its append, with the tombstone of the tail, is in the
// log for good. The tail is stored as before, and a rebuild finds it, whatever became of the log until then.
func TestATailOutlivesAPutThatFailed(t *testing.T) {
	t.Parallel()
	for _, then := range []string{"compared", "cleaned", "compared and cleaned", "cleaned after an open"} {
		t.Run(then, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			r := &refuser{}
			s, _, crash := crashRig(t, func(o *Options) { well(o); o.taskEvery, o.refuseCommits = hangs, r.refuse })
			sc := tailSpace(t, s, true)
			tail, k := keyOf(1), keyOf(2)
			res, err := s.Put(ctx, &skep.PutRequest{Scope: sc, Blocks: []skep.Block{version(tail, 1, 1)}})
			require.NoError(t, err)
			requireOutcome(t, skep.Committed, res)
			s.space.SealOpen(space.User)
			putRun(t, s, openSpace(t, s, "opens the next group", skep.Cache, 1, true), chainKeys(9, 1), 100)
			whole := version(k, 1, 0)
			whole.Replaces = &tail
			// Nobody compares its log before it is sealed.
			r.during(t, func() error {
				_, err := heapPut(ctx, s, &skep.PutRequest{Scope: sc, Blocks: []skep.Block{whole}})
				return err
			})
			g := openedBy(s, space.User)
			require.NotNil(t, g)
			var o Options
			if then == "cleaned after an open" {
				o = crash("failed")
				require.NoError(t, s.Close())
				o.refuseCommits = nil
				s, err = Open(ctx, o)
				require.NoError(t, err)
				g = s.space.Find(g.Num)
			}
			clean := func() {
				eventually(t, "it is cleaned", func() bool { return s.cleaner.Clean(ctx, g, true) == nil })
				eventually(t, "its drives are told", func() bool { return isFreed(g) })
			}
			if then == "cleaned" {
				s.space.Inside().Lock()
				g.Rests = time.Now().Add(hangs) // it is not compared before
				s.space.Inside().Unlock()
			}
			s.space.SealOpen(space.User)
			if then != "cleaned" {
				eventually(t, "it is compared", func() bool {
					s.logs.ReconcileStale(ctx)
					return !s.space.AnyStale()
				})
			}
			if then != "compared" {
				clean()
			}
			if then != "cleaned after an open" {
				o = crash("compared, or cleaned")
			}
			require.NoError(t, s.Close())
			s = rebuilt(t, o)
			require.Equal(t, 1, prefix(t, s, sc, []skep.Key{tail}))
			require.Zero(t, prefix(t, s, sc, []skep.Key{k}))
			require.NoError(t, s.Close())
		})
	}
}

// The same, and the drive with the payload of what replaced the tail is missing when the catalog is made anew: nobody
// can know any more whether that append was whole, and the tail stays. The drive will not be back: the log is compared
// with the catalog without it, and says that the tail stays.
func TestATailOutlivesAPutThatFailedOnAMissingDrive(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	r := &refuser{}
	o := small(tempRoot(t, "store"))
	well(&o)
	o.DeviceCount, o.CapacityBytes, o.CacheBytes, o.taskEvery, o.refuseCommits = 3, 6<<20, -1, hangs, r.refuse
	o.FlushInterval = hangs // no mark passes the append
	s, err := Open(ctx, o)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	sc := tailSpace(t, s, true)
	tail := putTails(t, s, sc, 1)[0]
	whole := version(keyOf(2), 1, 0)
	whole.Replaces = &tail
	r.during(t, func() error {
		_, err := heapPut(ctx, s, &skep.PutRequest{Scope: sc, Blocks: []skep.Block{whole}})
		return err
	})
	g, away := openedBy(s, space.User), ""
	require.NotNil(t, g)
	require.NoError(t, s.space.ScanGroupLogs(ctx, g, func(_ *segment.Append, e segment.Entry) error {
		if e.Kind != segment.KindBlock {
			return nil
		}
		h, err := segment.DecodeHead(e.Body)
		if h.Key == whole.Key {
			away = g.Drives[h.Place.Device].Path
		}
		return err
	}))
	o = small(filepath.Join(tempRoot(t, "copy"), "store"))
	o.DeviceCount, o.CapacityBytes, o.CacheBytes, o.Degraded = 3, 6<<20, -1, DegradedAlways
	require.NoError(t, os.CopyFS(o.Dir, os.DirFS(s.options.Dir)))
	require.NoError(t, os.Remove(filepath.Join(o.Dir, filepath.Base(away))))
	for range 2 { // a mark has passed the append by the second time
		require.NoError(t, os.RemoveAll(filepath.Join(o.Dir, "catalog")))
		rep, err := Rebuild(ctx, o, false, nil)
		require.NoError(t, err)
		require.EqualValues(t, 1, rep.Blocks, "%+v", rep)
		again, err := Open(ctx, o)
		require.NoError(t, err)
		require.Equal(t, 1, prefix(t, again, sc, []skep.Key{tail}))
		require.True(t, again.space.AnyStale(), "a rebuild may take the drive again, with what was deleted since")
		require.NoError(t, again.Close())
	}
}
