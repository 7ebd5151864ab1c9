package store

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/ingest"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/storetest"
)

// requireNothingKept requires that nothing is left of blocks that were accepted: not of the tenant's usage either.
func requireNothingKept(t *testing.T, s *Store, sc skep.Scope) {
	t.Helper()
	settledFilter(t, s)
	ns := s.names.Get(sc.Namespace)
	used, _ := s.index.Usage(ns.Tenant)
	require.Zero(t, used, "pages of the tenant")
	require.Zero(t, s.index.Stats().Blocks)
	require.Zero(t, ns.Stored.Load())
}

// acceptLate puts chains as a put does that had found its namespace before change.
func acceptLate(t *testing.T, s *Store, sc skep.Scope, keys []skep.Key, change func()) []skep.PutResult {
	t.Helper()
	ns, blocks, results := preparedPut(t, s, sc, keys)
	change()
	require.NoError(t, s.ingest.Put(testContext(t), ns, blocks, skep.AckAccepted))
	return results
}

// preparedPut is a put of a chain that has checked its blocks and done nothing else.
func preparedPut(t *testing.T, s *Store, sc skep.Scope, keys []skep.Key) (*namespaces.Namespace, []*ingest.Block, []skep.PutResult) {
	t.Helper()
	r := &skep.PutRequest{Scope: sc}
	for _, k := range keys {
		r.Blocks = append(r.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: content(k, skep.PartKV, 1, blockSize)}}})
	}
	ns, tag, err := s.names.Resolve("put", sc)
	require.NoError(t, err)
	results := make([]skep.PutResult, len(keys))
	blocks, err := s.ingest.Prepare(testContext(t), ns, tag, r, results)
	require.NoError(t, err)
	return ns, blocks, results
}

// What waits to be admitted as its salt is purged is given back: no sweep takes it out, as its namespace lives on.
func TestASaltIsPurgedWhileItsBlocksWait(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		budget int64 // 1: they are refused; 0: they are to be written
		leased bool
		rival  bool // another put of a key is under way as they are to be written
	}{{name: "refused", budget: 1}, {name: "refused, and leased", budget: 1, leased: true}, {name: "admitted"},
		{name: "admitted, and leased", leased: true}, {name: "a rival is under way", leased: true, rival: true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, _, _ := admitting(t, func(o *Options) { o.WriteBudget = c.budget })
			ctx := testContext(t)
			sc := openSpace(t, s, "n", skep.Cache, 1, true)
			sc.Salt = "who"
			keys := chainKeys(1, 4)
			requireOutcome(t, skep.Accepted, putRun(t, s, sc, keys, blockSize))
			if c.leased {
				r, err := s.Lookup(ctx, &skep.LookupRequest{Scope: sc, Keys: keys})
				require.NoError(t, err)
				require.NotZero(t, r.Lease.ID)
			}
			_, tag, err := s.names.Resolve("put", sc)
			require.NoError(t, err)
			fp := s.names.Fingerprint(s.names.Get(sc.Namespace).Instance, tag, keys[1])
			require.NoError(t, s.Purge(ctx, skep.Purge{Salt: &sc}))
			if c.rival {
				mine, other := s.puts.Flights.Join(fp)
				require.Nil(t, other)
				defer s.puts.Flights.Leave(fp, mine)
			}
			require.NoError(t, s.Flush(ctx))
			requireNothingKept(t, s, sc)
		})
	}
}

// A put that had found its namespace, or its salt's tag, before that was purged is given back, though no sweep comes
// any more.
func TestAPutIsAcceptedAfterThePurge(t *testing.T) {
	t.Parallel()
	for _, salt := range []skep.Salt{"", "who"} {
		t.Run("salt "+string(salt), func(t *testing.T) {
			t.Parallel()
			s, _, _ := admitting(t, nil)
			ctx := testContext(t)
			sc := openSpace(t, s, "n", skep.Cache, 1, true)
			sc.Salt = salt
			acceptLate(t, s, sc, chainKeys(1, 4), func() {
				p := skep.Purge{Namespace: sc.Namespace}
				if salt != "" {
					p = skep.Purge{Salt: &sc}
				}
				require.NoError(t, s.Purge(ctx, p))
				eventually(t, "all is swept", func() bool { return len(s.index.Dead()) == 0 && !s.naming.Sweeping() })
			})
			requireNothingKept(t, s, sc)
		})
	}
}

// A decision on a block does not meet a later put of its key, though the first was deleted after it was made.
func TestADecisionIsOfThePutItWasMadeOn(t *testing.T) {
	t.Parallel()
	s, _, _ := admitting(t, nil)
	ctx := testContext(t)
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	keys := chainKeys(1, 1)
	ns, first, _ := preparedPut(t, s, sc, keys)
	first, err := s.ingest.Winners(ctx, ns, first)
	require.NoError(t, err)
	require.True(t, s.ingest.Hold(ns, first[0]))
	s.ingest.Filter.Add(ns, first)
	n, err := s.Delete(ctx, sc, keys)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	requireOutcome(t, skep.Accepted, putRun(t, s, sc, keys, blockSize))
	require.True(t, s.ingest.Withdraw(ns, first[0], skep.Admission), "there is nothing of it")
	requireChain(t, s, sc, keys, blockSize)
	require.EqualValues(t, blockSize, s.names.Get(sc.Namespace).Stored.Load())
	require.NoError(t, s.Flush(ctx))
	requireChain(t, s, sc, keys, blockSize)
}

// A put whose block is deleted before it waits takes no place: the next put of the key, which comes at once, is
// decided on, and what was acknowledged is there after a restart.
func TestADeletedPutTakesNobodysPlace(t *testing.T) {
	t.Parallel()
	s, _, o := admitting(t, nil)
	ctx := testContext(t)
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	keys := chainKeys(1, 1)
	ns, first, _ := preparedPut(t, s, sc, keys)
	first, err := s.ingest.Winners(ctx, ns, first)
	require.NoError(t, err)
	require.True(t, s.ingest.Hold(ns, first[0]))

	crew := storetest.NewCrew(t)
	crew.Go(func(t testing.TB) {
		n, err := s.Delete(ctx, sc, keys)
		require.NoError(t, err)
		require.Equal(t, 1, n)
	})
	eventually(t, "it is deleted", func() bool { return s.index.Stats().Blocks == 0 })
	crew.Go(func(t testing.TB) { requireOutcome(t, skep.Accepted, putRun(t, s, sc, keys, blockSize)) })
	s.ingest.Filter.Add(ns, first)
	crew.Wait()
	require.NoError(t, s.Flush(ctx))
	settledFilter(t, s)
	require.NoError(t, s.Close())
	requireChain(t, openTest(t, o), sc, keys, blockSize)
}

// A put ends once its blocks wait and before any is decided on: who decides sooner would take its flight for a
// rival's.
func TestAPutEndsBeforeItsBlocksAreDecidedOn(t *testing.T) {
	t.Parallel()
	var look atomic.Pointer[func()]
	s, _, _ := admitting(t, func(o *Options) {
		clock := o.Clock
		o.Clock = func() time.Time { // asked as decisions begin
			if f := look.Load(); f != nil {
				(*f)()
			}
			return clock()
		}
	})
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	ns, blocks, _ := preparedPut(t, s, sc, chainKeys(1, 4))
	blocks, err := s.ingest.Winners(testContext(t), ns, blocks)
	require.NoError(t, err)
	for _, in := range blocks {
		require.True(t, s.ingest.Hold(ns, in))
	}
	var looks, under atomic.Int64
	f := func() {
		looks.Add(1)
		under.Add(int64(s.puts.Flights.Len()))
	}
	look.Store(&f)
	s.ingest.Filter.Add(ns, blocks)
	look.Store(nil)
	require.Positive(t, looks.Load())
	require.Zero(t, under.Load(), "flights")
}
