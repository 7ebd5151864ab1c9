package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
)

// A group's log could not be compared with the catalog, for once. It is again after a while, and not at once: else the
// group were stale for as long as it is there.
func TestALogThatWasNotComparedIsAgain(t *testing.T) {
	t.Parallel()
	for _, why := range []string{"reads fail", "the catalog refuses"} {
		t.Run(why, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			refuser := &refuser{}
			s, r, _ := openRig(t, func(o *Options) { well(o); o.taskEvery, o.refuseCommits = hangs, refuser.refuse })
			defer func() { require.NoError(t, s.Close()) }()
			_, _, g := putAway(t, s, skep.Cache)
			rests := func() time.Time {
				s.space.Inside().Lock()
				defer s.space.Inside().Unlock()
				return g.Rests
			}
			if why == "reads fail" {
				r.each(func(_ int, d *device.Fault) {
					d.MustInject(device.Rule{Action: device.Fail, Kinds: device.Reads})
				})
			} else {
				refuser.on.Store(true)
			}
			s.space.Suspect(g)
			eventually(t, "it is tried", func() bool {
				s.logs.ReconcileStale(ctx)
				return !rests().IsZero()
			})
			r.each(func(_ int, d *device.Fault) { d.Clear() })
			refuser.on.Store(false)
			require.Nil(t, s.space.NextSuspect(), "it rests")
			require.Equal(t, 1, s.space.SealSuspects(), "and is not forgotten")

			s.space.Inside().Lock()
			g.Rests = time.Time{}
			s.space.Inside().Unlock()
			eventually(t, "it is compared", func() bool {
				s.logs.ReconcileStale(ctx)
				return !s.space.AnyStale()
			})
		})
	}
}

// Blocks of a group are dropped, or found damaged, while the group's log is compared with the catalog, which had their
// rows when it was asked. The group is stale as before: who deletes them has tombstones written, and a rebuild does
// not find them.
func TestASuspicionOutlivesTheComparisonThatMissedIt(t *testing.T) {
	t.Parallel()
	for _, why := range []string{"dropped", "damaged"} {
		t.Run(why, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			s, r, o := openRig(t, func(o *Options) { well(o); o.taskEvery, o.Policy = hangs, "lru" })
			sc, keys := openSpace(t, s, "n", skep.Cache, 1, false), chainKeys(1, 12)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
			g := sealRecorded(t, s)
			drop := func() {
				if why == "dropped" {
					require.NoError(t, s.index.SetCapacity(1<<20, int64(s.index.Stats().Pages)*2/3))
					require.True(t, s.rows.Trim())
					return
				}
				for at, rec := range recordsOf(t, s) {
					ns, tag, err := s.names.Resolve("test", sc)
					require.NoError(t, err)
					require.True(t, s.rows.Forget(g, s.names.Fingerprint(ns.Instance, tag, rec.Key), at, &rec))
					return
				}
			}
			drop() // the catalog says so
			r.each(func(_ int, d *device.Fault) { d.Hold(device.Read) })
			s.space.Suspect(g)
			compared := make(chan struct{})
			go func() { defer close(compared); s.logs.ReconcileStale(ctx) }()
			require.NoError(t, waitHeld(r, 1))
			before := present(t, s, sc, keys)
			drop()
			r.each(func(_ int, d *device.Fault) { d.Release() })
			<-compared
			eventually(t, "nobody compares it", func() bool { return s.space.IsIdle(g) })
			left := present(t, s, sc, keys)
			require.Less(t, len(left), len(before))
			n, err := s.Delete(ctx, sc, before)
			require.NoError(t, err)
			require.Equal(t, len(left), n)
			require.NoError(t, s.Close())

			s = rebuilt(t, o)
			require.Empty(t, present(t, s, sc, keys), "dropped and deleted, and back")
			require.NoError(t, s.Close())
		})
	}
}
