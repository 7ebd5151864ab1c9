package store

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/internal/admission"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/storetest"
)

// admitting opens a small store whose DRAM tier is an admission filter, on a clock of
// the test's own.
func admitting(t *testing.T, change func(o *Options)) (*Store, *testClock, Options) {
	clock := &testClock{now: time.Unix(1e9, 0)}
	o := small(t.TempDir())
	o.CacheBytes, o.CapacityBytes, o.Clock, o.Admission = 1<<20, 16<<20, clock.get, admission.Budget
	if change != nil {
		change(&o)
	}
	return openTest(t, o), clock, o
}

type testClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *testClock) get() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *testClock) pass(d time.Duration) {
	c.mu.Lock()
	c.now = c.now.Add(d)
	c.mu.Unlock()
}

func admissionOf(t *testing.T, s *Store) skep.AdmissionStats {
	st, err := s.Stats(testContext(t))
	require.NoError(t, err)
	return st.Admission
}

func prefix(t *testing.T, s *Store, sc skep.Scope, keys []skep.Key) int {
	t.Helper()
	r, err := s.Lookup(testContext(t), &skep.LookupRequest{Scope: sc, Keys: keys, Lease: skep.NoLease})
	require.NoError(t, err)
	return r.Blocks
}

// settledFilter requires that nothing waits and nothing is left behind of what did.
func settledFilter(t *testing.T, s *Store) {
	t.Helper()
	a := s.ingest.Filter.Stats()
	require.Zero(t, a.WaitingBlocks)
	require.Zero(t, a.QueuedBytes)
	require.Zero(t, s.ingest.Filter.Len())
	require.Zero(t, s.puts.Records.Len())
	require.Zero(t, s.cache.Stats().DirtyBytes)
	require.Zero(t, s.index.Stats().Accepted)
}

const blockSize = 8 << 10

// A day's budget with which the tests' few blocks fit, and little more.
const little = 1 << 30

func TestAdmissionByUse(t *testing.T) {
	t.Parallel()
	s, clock, o := admitting(t, func(o *Options) { o.WriteBudget = little })
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	used, not := chainKeys(1, 8), chainKeys(2, 8)
	requireOutcome(t, skep.Accepted, putRun(t, s, sc, used, blockSize))
	requireOutcome(t, skep.Accepted, putRun(t, s, sc, not, blockSize))
	requireChain(t, s, sc, used[:5], blockSize)
	a := admissionOf(t, s)
	require.EqualValues(t, 16, a.WaitingBlocks, "there is no budget at first: what is used waits on")
	require.Zero(t, a.AdmittedBlocks)

	clock.pass(10 * time.Second) // 250 KB for both devices: a percent of what may be saved up
	require.NoError(t, s.Flush(testContext(t)))
	settledFilter(t, s)
	a = admissionOf(t, s)
	require.EqualValues(t, 5, a.AdmittedBlocks)
	require.Equal(t, map[string]int64{index.RefusedUnused.String(): 2, index.RefusedParent.String(): 9}, a.Refused)
	require.Equal(t, 5, prefix(t, s, sc, used))
	require.Zero(t, prefix(t, s, sc, not))
	requireChain(t, s, sc, used[:5], blockSize)

	// Asking again for what was refused is a hit that refusing cost, and a use.
	requireOutcome(t, skep.Accepted, putRun(t, s, sc, not[:3], blockSize))
	a = admissionOf(t, s)
	require.EqualValues(t, 3, a.RefusedHits)
	require.EqualValues(t, 3*blockSize, a.RefusedHitBytes)
	require.NoError(t, s.Flush(testContext(t)))
	require.EqualValues(t, 8, admissionOf(t, s).AdmittedBlocks)

	require.NoError(t, s.Close())
	s = openTest(t, o)
	requireChain(t, s, sc, used[:5], blockSize)
	requireChain(t, s, sc, not[:3], blockSize)
}

// Without a budget everything is written, only later.
func TestAdmissionWithoutBudgetWritesAll(t *testing.T) {
	t.Parallel()
	s, _, o := admitting(t, nil)
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	for i := range 30 { // more than the DRAM tier holds: what finds no room goes straight to the drives
		for _, r := range putRun(t, s, sc, chainKeys(i, 10), blockSize) {
			require.NotEqual(t, skep.Declined, r.Outcome)
		}
	}
	require.NoError(t, s.Close(), "decides on what waits")
	s = openTest(t, o)
	for i := range 30 {
		requireChain(t, s, sc, chainKeys(i, 10), blockSize)
	}
}

func TestAdmissionLeavesDurableAlone(t *testing.T) {
	t.Parallel()
	s, _, _ := admitting(t, func(o *Options) { o.WriteBudget = 1 })
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1, 8), blockSize))
	requireChain(t, s, sc, chainKeys(1, 8), blockSize)
	require.Negative(t, admissionOf(t, s).BudgetLeft, "and counts what it writes")
}

// What a lease protects is written after all; what was deleted, purged or replaced while
// it waited is forgotten.
func TestAdmissionKeepsPromises(t *testing.T) {
	t.Parallel()
	s, _, _ := admitting(t, func(o *Options) { o.WriteBudget = 1 })
	ctx := testContext(t)
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	leased, deleted, again := chainKeys(1, 4), chainKeys(2, 4), chainKeys(3, 4)
	for _, keys := range [][]skep.Key{leased, deleted, again} {
		requireOutcome(t, skep.Accepted, putRun(t, s, sc, keys, blockSize))
	}
	r, err := s.Lookup(ctx, &skep.LookupRequest{Scope: sc, Keys: leased[:3]})
	require.NoError(t, err)
	require.NotZero(t, r.Lease.ID)
	n, err := s.Delete(ctx, sc, deleted)
	require.NoError(t, err)
	require.Equal(t, 4, n)
	n, err = s.Delete(ctx, sc, again)
	require.NoError(t, err)
	require.Equal(t, 4, n)
	requireOutcome(t, skep.Accepted, putRun(t, s, sc, again, blockSize))
	requireChain(t, s, sc, again, blockSize)
	purged := openSpace(t, s, "p", skep.Cache, 1, true)
	requireOutcome(t, skep.Accepted, putRun(t, s, purged, chainKeys(4, 4), blockSize))
	require.NoError(t, s.Purge(ctx, skep.Purge{Namespace: purged.Namespace}))

	require.NoError(t, s.Flush(ctx))
	require.Equal(t, 3, prefix(t, s, sc, leased))
	requireChain(t, s, sc, leased[:3], blockSize)
	require.Zero(t, prefix(t, s, sc, deleted))
	require.Zero(t, prefix(t, s, sc, again), "refused")
	require.EqualValues(t, 3, admissionOf(t, s).PromisedBlocks)
	eventually(t, "the purged are swept", func() bool { return s.index.Stats().Accepted == 0 })
	settledFilter(t, s)
}

// A plain second touch declines the first put of a block.
func TestSecondTouch(t *testing.T) {
	t.Parallel()
	s, _, _ := admitting(t, func(o *Options) { o.Admission = admission.SecondTouch })
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	keys := chainKeys(1, 4)
	for _, r := range putRun(t, s, sc, keys, blockSize) {
		require.Equal(t, skep.PutResult{Outcome: skep.Declined, Reason: skep.Admission}, r)
	}
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, blockSize))
	requireChain(t, s, sc, keys, blockSize)
	a := admissionOf(t, s)
	require.EqualValues(t, 4, a.RefusedHits)
	require.Equal(t, map[string]int64{index.RefusedFirst.String(): 4}, a.Refused)
}

// Over a simulated day the devices write what the budget allows, not more than what may be
// saved up beyond.
func TestAdmissionBudgetHolds(t *testing.T) {
	t.Parallel()
	const perDay = 16 << 20
	s, clock, _ := admitting(t, func(o *Options) { o.WriteBudget = perDay })
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	before := s.members.Written()
	for i := range 96 {
		clock.pass(15 * time.Minute)
		for k := range 4 {
			keys := chainKeys(100*i+k, 20)
			putRun(t, s, sc, keys, blockSize)
			if k == 0 {
				requireRight(t, s, sc, keys[:10], blockSize)
			}
		}
		eventually(t, "what was admitted is written", func() bool { return admissionOf(t, s).QueuedBytes == 0 })
	}
	wrote := s.members.Written() - before
	t.Logf("%d of %d put blocks' bytes written in a day, budget %d: %+v", wrote, 96*80*blockSize, 2*perDay, admissionOf(t, s))
	require.LessOrEqual(t, wrote, int64(2*perDay+appender.MaxBytes+appender.MaxBytes), "two devices")
	require.Greater(t, wrote, int64(perDay), "and the budget is used")
}

// Whatever meets in the filter, bytes are right and nothing is left behind.
func TestAdmissionUnderLoad(t *testing.T) {
	t.Parallel()
	seed := testSeed(t)
	s, clock, _ := admitting(t, func(o *Options) { o.WriteBudget = 4 << 30 })
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	const chains, length = 40, 12
	wg := storetest.NewCrew(t)
	var restored atomic.Int64
	for g := range 4 {
		wg.Go(func(t testing.TB) {
			rng := newRand(seed + uint64(g))
			for range testNumber(t, "SKEP_ADMISSION_OPS", 150) {
				keys := chainKeys(rng.IntN(chains), length)
				switch rng.IntN(10) {
				case 0:
					_, err := s.Delete(testContext(t), sc, keys[rng.IntN(length):])
					require.NoError(t, err)
				case 1:
					require.NoError(t, s.Flush(testContext(t)))
				case 2:
					clock.pass(time.Duration(rng.IntN(100)) * time.Second)
				case 3, 4, 5:
					n, _ := requireRight(t, s, sc, keys, blockSize)
					restored.Add(int64(n))
				default:
					n := 1 + rng.IntN(length)
					for i, r := range putRun(t, s, sc, keys[:n], blockSize) {
						require.False(t, r.Differs, "block %d", i)
					}
				}
			}
		})
	}
	wg.Wait()
	require.Positive(t, restored.Load())
	require.NoError(t, s.Flush(testContext(t)))
	settledFilter(t, s)
	t.Logf("%d blocks restored, %+v", restored.Load(), admissionOf(t, s))
}
