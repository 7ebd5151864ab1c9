package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/restore"
)

// aheadStore is a store with a DRAM tier, on a simulated drive, that holds a chain of n blocks on the drive only.
func aheadStore(t *testing.T, bps int64, n int, budget int64) (*Store, skep.Scope, []skep.Key) {
	t.Helper()
	s := openSlow(t, bps, func(o *Options) { o.CacheBytes, o.PrefetchBytes = 16<<20, budget })
	sc := openModel(t, s)
	keys := chainKeys(1, n)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, modelBlock))
	require.Zero(t, inMemory(t, s, sc, keys))
	return s, sc, keys
}

// inMemory is how many of a chain's blocks the DRAM tier holds.
func inMemory(t *testing.T, s *Store, sc skep.Scope, keys []skep.Key) (n int) {
	t.Helper()
	r, err := s.Lookup(testContext(t), &skep.LookupRequest{Scope: sc, Keys: keys, Tiers: true, Lease: skep.NoLease})
	require.NoError(t, err)
	for _, tier := range r.Tiers {
		if tier == skep.TierDRAM {
			n++
		}
	}
	return n
}

func statsOf(t *testing.T, s *Store) skep.Stats {
	t.Helper()
	st, err := s.Stats(testContext(t))
	require.NoError(t, err)
	return st
}

// What a hint says is needed soon is read ahead; the request then finds it in memory. That is counted
// as used, and reading ahead is nobody's use of the blocks.
func TestHintsAreReadAhead(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]skep.Hint{"steps to execution": {Steps: 2}, "next use": {NextUse: 5 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			const n = 100
			s, sc, keys := aheadStore(t, 1<<30, n, 8<<20)
			began := statsOf(t, s).Devices[0].BytesRead
			had, err := s.Hint(testContext(t), sc, keys, h)
			require.NoError(t, err)
			require.Equal(t, n, had)
			eventually(t, "all is read ahead", func() bool { return statsOf(t, s).Prefetch.UnusedBytes == n*modelBlock })
			require.Equal(t, n, inMemory(t, s, sc, keys))
			before := statsOf(t, s)
			require.Zero(t, before.RestoredBytes)
			require.LessOrEqual(t, before.Devices[0].BytesRead-began, int64(n*modelBlock+noise))
			requireChain(t, s, sc, keys, modelBlock)
			after := statsOf(t, s)
			require.LessOrEqual(t, after.Devices[0].BytesRead, before.Devices[0].BytesRead+noise, "the drive had nothing to do")
			used := withoutWaiting(after.Prefetch)
			used.Promoted = 0 // a use right after the last read comes before it is crossed off
			require.Equal(t, skep.PrefetchStats{ReadBytes: n * modelBlock, UsedBytes: n * modelBlock}, used)
		})
	}
}

func withoutWaiting(p skep.PrefetchStats) skep.PrefetchStats {
	p.Waiting = 0
	return p
}

// Reading ahead keeps to its budget, from the tail, until what it read is used.
func TestReadingAheadKeepsToItsBudget(t *testing.T) {
	t.Parallel()
	const n, fit = 100, 10
	s, sc, keys := aheadStore(t, 1<<30, n, fit*modelBlock)
	_, err := s.Hint(testContext(t), sc, keys, skep.Hint{Steps: 1})
	require.NoError(t, err)
	eventually(t, "the hint was followed", func() bool { return statsOf(t, s).Prefetch.Waiting == 0 })
	require.EqualValues(t, fit*modelBlock, statsOf(t, s).Prefetch.UnusedBytes)
	require.Equal(t, fit, inMemory(t, s, sc, keys))
	requireChain(t, s, sc, keys, modelBlock)
	st := statsOf(t, s)
	require.EqualValues(t, fit*modelBlock, st.Prefetch.UsedBytes)
	require.Zero(t, st.Prefetch.UnusedBytes)
}

// The request may come while its blocks are being read ahead: it waits for what is on its way and
// reads the rest itself. Nothing to speak of is read twice.
func TestRequestsOvertakeReadingAhead(t *testing.T) {
	t.Parallel() // it waits
	const n = 128
	s, drive := openFaulty(t, 32<<20, func(o *Options) { o.CacheBytes, o.PrefetchBytes = 16<<20, 8<<20 })
	sc := openModel(t, s)
	keys := chainKeys(1, n)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, modelBlock))
	before := statsOf(t, s).Devices[0].BytesRead
	drive.MustInject(device.Rule{Action: device.Hold, Kinds: device.Reads, Nth: 2}) // until the request has come
	_, err := s.Hint(testContext(t), sc, keys, skep.Hint{Steps: 1})
	require.NoError(t, err)
	eventually(t, "some was read ahead", func() bool { return statsOf(t, s).Prefetch.ReadBytes > 0 })
	came := make(chan error, 1)
	go func() {
		_, err := fetch(testContext(t), s, skep.Chain{Scope: sc, Keys: keys})
		came <- err
	}()
	eventually(t, "the request overtakes", func() bool { return statsOf(t, s).Prefetch.Promoted > 0 })
	drive.Clear()
	drive.Release()
	require.NoError(t, <-came)
	eventually(t, "the prefetch ended", func() bool { return s.restores.State().Sessions == 0 })
	st := statsOf(t, s)
	require.EqualValues(t, 1, st.Prefetch.Promoted)
	require.LessOrEqual(t, st.Devices[0].BytesRead-before, int64(n*modelBlock+noise))
	require.Equal(t, st.Prefetch.ReadBytes, st.Prefetch.UsedBytes+st.Prefetch.WastedBytes+st.Prefetch.UnusedBytes)
	require.Positive(t, st.Prefetch.UsedBytes)
	require.Less(t, st.Prefetch.ReadBytes, int64(n*modelBlock))
	requireChain(t, s, sc, keys, modelBlock)
}

// What is due later is not read yet, what was dropped is not read at all, and what leaves memory
// unused is counted as wasted.
func TestReadingAheadInVain(t *testing.T) {
	t.Parallel()
	const n = 20
	s, sc, keys := aheadStore(t, 1<<30, n, 8<<20)
	ctx := testContext(t)
	_, err := s.Hint(ctx, sc, keys, skep.Hint{NextUse: time.Hour})
	require.NoError(t, err)
	require.EqualValues(t, 1, statsOf(t, s).Prefetch.Waiting)
	_, err = s.Hint(ctx, sc, keys, skep.Hint{Drop: true})
	require.NoError(t, err)
	require.Equal(t, skep.PrefetchStats{}, statsOf(t, s).Prefetch)

	_, err = s.Hint(ctx, sc, keys, skep.Hint{Steps: 1})
	require.NoError(t, err)
	eventually(t, "all is read ahead", func() bool { return statsOf(t, s).Prefetch.UnusedBytes == n*modelBlock })
	_, err = s.Delete(ctx, sc, keys)
	require.NoError(t, err)
	eventually(t, "it is counted", func() bool { return statsOf(t, s).Prefetch.WastedBytes == n*modelBlock })
	require.Zero(t, statsOf(t, s).Prefetch.UnusedBytes)
}

// Hints beyond what is remembered are dropped; without a budget nothing is read ahead.
func TestHintsBeyondBounds(t *testing.T) {
	t.Parallel()
	s, sc, keys := aheadStore(t, 1<<30, 1, 8<<20)
	many := append(keys, chainKeys(2, restore.MaxPrefetchKeys)...)
	_, err := s.Hint(testContext(t), sc, many, skep.Hint{NextUse: time.Hour})
	require.NoError(t, err)
	require.Equal(t, skep.PrefetchStats{Dropped: 1}, statsOf(t, s).Prefetch)

	off, sc, keys := aheadStore(t, 1<<30, 1, -1)
	_, err = off.Hint(testContext(t), sc, keys, skep.Hint{Steps: 1})
	require.NoError(t, err)
	require.Zero(t, statsOf(t, off).Prefetch)
}
