package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/space"
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
