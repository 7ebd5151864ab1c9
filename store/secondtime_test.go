package store

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/segment"
)

// The second time: every call that the catalog refused is made again by its caller, as real
// callers do, and the pair is judged. A refused commit did not happen: so the first call must
// have changed nothing, the second must do it, and after a restart it must stay done.

// refuser is a catalog that refuses commits while on is set, as one does whose file system
// is full.
type refuser struct {
	on   atomic.Bool
	only atomic.Pointer[func() bool] // when it is; nil: always
	said atomic.Int64
}

func (r *refuser) refuse() error {
	only := r.only.Load()
	if !r.on.Load() || only != nil && !(*only)() {
		return nil
	}
	r.said.Add(1)
	return &skep.Error{Op: "commit", Kind: skep.Full, Field: "catalog filesystem"}
}

// during makes a call while commits are refused.
func (r *refuser) during(t *testing.T, f func() error) {
	t.Helper()
	before := r.said.Load()
	r.on.Store(true)
	err := f()
	r.on.Store(false)
	requireKind(t, skep.Full, err)
	require.Greater(t, r.said.Load(), before, "nothing was refused")
}

// refusingRig is a store whose catalog may refuse commits, and what opens it again.
func refusingRig(t *testing.T, change func(o *Options)) (s *Store, r *refuser, again func() *Store) {
	t.Helper()
	r = &refuser{}
	s, _, o := openRig(t, func(o *Options) {
		o.refuseCommits = r.refuse
		if change != nil {
			change(o)
		}
	})
	return s, r, func() *Store {
		require.NoError(t, s.Close())
		s, err := Open(context.Background(), o)
		require.NoError(t, err)
		return s
	}
}

// stored is how many leading keys of a chain a lookup finds.
func stored(t *testing.T, s *Store, sc skep.Scope, keys []skep.Key) int {
	t.Helper()
	res, err := s.Lookup(testContext(t), &skep.LookupRequest{Scope: sc, Keys: keys, Lease: skep.NoLease})
	require.NoError(t, err)
	return res.Blocks
}

// A delete that is refused leaves the blocks as they were; made again it deletes them, and
// they stay gone.
func TestSecondTimeDelete(t *testing.T) {
	t.Parallel()
	for _, chained := range []bool{true, false} {
		for _, cached := range []bool{true, false} {
			t.Run(sprintf("chained %v, cached %v", chained, cached), func(t *testing.T) {
				ctx := testContext(t)
				s, r, again := refusingRig(t, func(o *Options) {
					if cached {
						o.CacheBytes = 4 << 20
					}
				})
				sc := openSpace(t, s, "n", skep.Durable, 1, chained)
				keys := chainKeys(1, 6)
				requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))

				r.during(t, func() error {
					n, err := s.Delete(ctx, sc, keys[3:])
					require.Zero(t, n, "said to be deleted, and refused")
					return err
				})
				require.Equal(t, 6, stored(t, s, sc, keys))
				requireChain(t, s, sc, keys, faultBlock)

				n, err := s.Delete(ctx, sc, append(keys[3:], keys[3])) // one of them twice
				require.NoError(t, err)
				require.Equal(t, 3, n)
				require.Equal(t, 3, stored(t, s, sc, keys))
				s = again()
				requireChain(t, s, sc, keys[:3], faultBlock)
				require.Equal(t, 3, stored(t, s, sc, keys))
				require.NoError(t, s.Close())
			})
		}
	}
}

// A row that the index has forgotten is owed: one whose deletion was refused, of a block that
// was found damaged or was evicted, goes with the next delete, which is not acknowledged
// before. So nobody is told that a key is not there which a restart finds.
func TestSecondTimeEvicted(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, again := refusingRig(t, nil)
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	keys := chainKeys(1, 4)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
	ns, tg, err := s.names.Resolve("test", sc)
	require.NoError(t, err)
	fp := s.names.Fingerprint(ns.Instance, tg, keys[3])
	e, ok := s.index.Resolve(fp)
	require.True(t, ok)

	rec, err := s.rows.Record(fp, e)
	require.NoError(t, err)
	r.on.Store(true) // its bytes are wrong, and the catalog cannot keep that now
	loc := layout.Unpack(e.Location)
	require.True(t, s.rows.Forget(s.space.Find(loc.Group), fp, loc, &rec))
	require.Equal(t, 3, stored(t, s, sc, keys))
	_, err = s.Delete(ctx, sc, keys[3:])
	requireKind(t, skep.Full, err) // or it would be back after a restart
	r.on.Store(false)

	n, err := s.Delete(ctx, sc, keys[3:])
	require.NoError(t, err)
	require.Zero(t, n)
	s = again()
	require.Equal(t, 3, stored(t, s, sc, keys))
	requireChain(t, s, sc, keys[:3], faultBlock)
	require.NoError(t, s.Close())
}

// The cleaner evicts, and the catalog refuses: nothing is dropped. If it refuses from then on
// only when something was dropped, its rows are owed, and no more is dropped before they are
// gone. Deletes acknowledged afterwards hold over a restart.
func TestSecondTimeClean(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"cost", "lru"} {
		t.Run(policy, func(t *testing.T) {
			ctx := testContext(t)
			s, r, again := refusingRig(t, func(o *Options) { o.Policy = policy })
			sc := openSpace(t, s, "n", skep.Cache, 1, false)
			keys := chainKeys(1, 60)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
			evict := func() { // some of them
				if policy == "lru" {
					require.NoError(t, s.index.SetCapacity(1<<20, int64(s.index.Stats().Pages)/2))
					s.rows.Trim()
					return
				}
				dropGroup(t, s)
			}
			r.on.Store(true)
			evict()
			require.Len(t, present(t, s, sc, keys), len(keys), "dropped, and the catalog does not know")
			r.on.Store(false)
			dropped := func() bool { return s.count.Evicted.Load() > 0 }
			r.only.Store(&dropped)
			r.on.Store(true)
			evict()
			there := len(present(t, s, sc, keys))
			require.Less(t, there, len(keys))
			evict()
			require.Len(t, present(t, s, sc, keys), there, "it drops more, and cannot keep that it has")
			r.on.Store(false)

			gone := keys[:0:0]
			for _, k := range keys {
				if len(present(t, s, sc, []skep.Key{k})) == 0 {
					gone = append(gone, k)
				}
			}
			_, err := s.Delete(ctx, sc, gone)
			require.NoError(t, err)
			s = again()
			require.Empty(t, present(t, s, sc, gone), "deleted, and back")
			require.NoError(t, s.Close())
		})
	}
}

// present are those of keys, each by itself, that are there.
func present(t *testing.T, s *Store, sc skep.Scope, keys []skep.Key) (list []skep.Key) {
	t.Helper()
	for _, k := range keys {
		if stored(t, s, sc, []skep.Key{k}) == 1 {
			list = append(list, k)
		}
	}
	return list
}

// dropGroup has the cleaner drop what lies in the first group that holds blocks. An error is
// what it is there for.
func dropGroup(t *testing.T, s *Store) {
	t.Helper()
	for _, num := range s.space.Numbers(0) {
		if dropFrom(t, s, num) {
			return
		}
	}
	t.Fatal("there is no group with blocks")
}

// dropFrom has the cleaner drop what lies in a group; false when that is nothing.
func dropFrom(t *testing.T, s *Store, num uint32) bool {
	t.Helper()
	var recs []segment.Record
	var refs []index.Ref
	require.NoError(t, s.catalog.ScanGroup(testContext(t), num, func(l layout.Location, row []byte) error {
		var rec segment.Record
		if err := segment.DecodeRecord(row, &rec); err != nil {
			return err
		}
		fp := s.names.Fingerprint(rec.Instance, namespaces.Tag(rec.SaltTag), rec.Key)
		if e, ok := s.index.Resolve(fp); ok && e.Location == l.Pack() {
			recs, refs = append(recs, rec), append(refs, index.Ref{FP: fp, Location: e.Location})
		}
		return nil
	}))
	if len(recs) == 0 {
		return false
	}
	verdicts := make([]index.Verdict, len(recs))
	for i := range verdicts {
		verdicts[i] = index.Drop
	}
	_ = s.rows.Evict(s.space.Find(num), recs, refs, verdicts)
	return true
}

// A purge that is refused purges nothing; made again it does, and it holds.
func TestSecondTimePurge(t *testing.T) {
	t.Parallel()
	for _, salted := range []bool{false, true} {
		t.Run(sprintf("salted %v", salted), func(t *testing.T) {
			ctx := testContext(t)
			s, r, again := refusingRig(t, nil)
			sc := openSpace(t, s, "n", skep.Durable, 1, true)
			p := skep.Purge{Namespace: sc.Namespace}
			if salted {
				sc.Salt = "pepper"
				p = skep.Purge{Salt: &sc}
			}
			keys := chainKeys(1, 3)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
			r.during(t, func() error { return s.Purge(ctx, p) })
			requireChain(t, s, sc, keys, faultBlock)
			require.NoError(t, s.Purge(ctx, p))
			require.Zero(t, stored(t, s, sc, keys))
			requireOutcome(t, skep.Committed, putRun(t, s, sc, keys[:1], faultBlock))
			s = again()
			require.Equal(t, 1, stored(t, s, sc, keys))
			require.NoError(t, s.Close())
		})
	}
}

// A namespace that could not be made is not there; made again it gets a number of its own.
func TestSecondTimeOpenNamespace(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, again := refusingRig(t, nil)
	first := openSpace(t, s, "first", skep.Cache, 1, true)
	spec := skep.NamespaceSpec{Tenant: "t", Name: "second", Shape: anySize, Chained: true}
	r.during(t, func() error {
		_, err := s.OpenNamespace(ctx, spec)
		return err
	})
	list, err := s.Namespaces(ctx)
	require.NoError(t, err)
	require.Len(t, list, 1)
	info, err := s.OpenNamespace(ctx, spec)
	require.NoError(t, err)
	require.NotEqual(t, first.Namespace, info.ID)
	sc := skep.Scope{Namespace: info.ID}
	keys := chainKeys(1, 2)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
	s = again()
	requireChain(t, s, sc, keys, faultBlock)
	list, err = s.Namespaces(ctx)
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.NoError(t, s.Close())
}

// A hint that is refused for want of room pins nothing: made again when there is room, all is
// pinned.
func TestSecondTimeHint(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, _, again := refusingRig(t, func(o *Options) { o.PinnedBytes = 4 * faultBlock })
	sc := openSpace(t, s, "n", skep.Cache, 1, false)
	keys := chainKeys(1, 6)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
	_, err := s.Hint(ctx, sc, keys, skep.Hint{Pin: hangs})
	requireKind(t, skep.Quota, err)
	_, pinned := s.index.Held(0)
	require.Zero(t, pinned, "refused, and pinned in part")
	n, err := s.Hint(ctx, sc, keys[:4], skep.Hint{Pin: hangs})
	require.NoError(t, err)
	require.Equal(t, 4, n)
	require.NoError(t, again().Close())
}
