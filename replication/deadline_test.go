package replication

import (
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// answersOf reads a session until so many chunks of a chain are answered, and says when that was; what came is kept.
func answersOf(t *testing.T, ses skep.Session, chain, n int) (errs []error, at time.Duration, kept []skep.Chunk) {
	t.Helper()
	began, into := time.Now(), make([]skep.Chunk, 64)
	for len(errs) < n {
		m, err := ses.Next(t.Context(), into)
		require.NoError(t, err)
		for _, c := range into[:m] {
			if c.Chain == chain {
				errs = append(errs, c.Err)
			}
			kept = append(kept, c)
		}
	}
	return errs, time.Since(began), kept
}

// What has not been begun at a chain's deadline is missed then, although nothing else happens: the nodes are at another
// chain, which comes first, and give nothing. A deadline that is put off is kept, too.
func TestADeadlineIsKeptBehindAnotherChain(t *testing.T) {
	t.Parallel()
	for _, later := range []time.Duration{0, 200 * ms} {
		synctest.Test(t, func(t *testing.T) {
			const n = 600
			r := clusterOf(t, three(3, 4), skep.Cache)
			first, second := chainOf(1, 4000), chainOf(2, n)
			r.put(first, 0, 4000)
			r.put(second, 0, n)
			s := &stall{}
			for _, x := range r.nodes {
				x.wrap = s.wrap
			}
			ses, err := r.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{
				{Scope: r.scope(), Keys: first, Priority: 1,
					Dest: skep.Destination{Memory: make([]byte, 4000*300), Stride: 300}},
				{Scope: r.scope(), Keys: second, Deadline: skep.Steady().Add(50 * ms),
					Dest: skep.Destination{Memory: make([]byte, n*300), Stride: 300}},
			}})
			require.NoError(t, err)
			want := 50 * ms
			if later > 0 {
				require.NoError(t, ses.Reprioritise(t.Context(), 1, 0, skep.Steady().Add(later)))
				want = later
			}
			errs, at, _ := answersOf(t, ses, 1, n)
			require.Equal(t, want, at)
			for _, err := range errs {
				require.ErrorIs(t, err, skep.Deadline)
			}
			require.NoError(t, ses.Close(t.Context()))
		})
	}
}

// So it is where a node that gives nothing has as much of the chain as it may have, and where the reader has as much as
// the window lets it: what is on its way is waited for, all else is missed.
func TestADeadlineIsKeptWhereNothingMoreIsBegun(t *testing.T) {
	t.Parallel()
	for _, window := range []int64{0, 64 << 10} {
		synctest.Test(t, func(t *testing.T) {
			const n = 4000
			r := clusterOf(t, three(3, 4), skep.Cache)
			keys := chainOf(1, n)
			r.put(keys, 0, n)
			chain := skep.Chain{Scope: r.scope(), Keys: keys, Deadline: skep.Steady().Add(50 * ms)}
			s := &stall{}
			if window == 0 {
				chain.Dest = skep.Destination{Memory: make([]byte, n*300), Stride: 300}
				for _, x := range r.nodes {
					x.wrap = s.wrap
				}
			}
			ses, err := r.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{chain}, Window: window})
			require.NoError(t, err)
			synctest.Wait()
			asked := 0
			for _, x := range r.nodes {
				asked += int(x.asked.Load())
			}
			require.Less(t, asked, n, "there is something that is not begun")
			missed := n
			if window == 0 {
				missed -= asked
			}
			errs, at, kept := answersOf(t, ses, 0, missed)
			require.Equal(t, 50*ms, at)
			require.ErrorIs(t, errs[len(errs)-1], skep.Deadline)
			for i := range kept {
				kept[i].Release()
			}
			if window > 0 {
				_, err = ses.Next(t.Context(), make([]skep.Chunk, 1))
				require.True(t, errors.Is(err, io.EOF), "%v", err)
			}
			require.NoError(t, ses.Close(t.Context()))
		})
	}
}

// What is missed for its deadline, or because it was stopped, is told beside what is loaded, and not before: chains
// that are in time are loaded while the reader takes those misses one at a time, whichever comes first.
func TestALateChainKeepsNoOtherWaiting(t *testing.T) {
	t.Parallel()
	for _, late := range []skep.Chain{{Priority: 0}, {Priority: 2}} {
		synctest.Test(t, func(t *testing.T) {
			const n = 4000
			r := clusterOf(t, three(3, 4), skep.Cache)
			first, second := chainOf(1, n), chainOf(2, n)
			r.put(first, 0, n)
			r.put(second, 0, n)
			late.Scope, late.Keys, late.Deadline = r.scope(), second, skep.Steady().Add(-ms)
			late.Dest = skep.Destination{Memory: make([]byte, n*300), Stride: 300}
			ses, err := r.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{
				{Scope: r.scope(), Keys: first, Priority: 1,
					Dest: skep.Destination{Memory: make([]byte, n*300), Stride: 300}},
				late,
			}})
			require.NoError(t, err)
			asked := func() (each []int64) {
				synctest.Wait()
				for _, x := range r.nodes {
					each = append(each, x.asked.Load())
				}
				return each
			}
			for i, n := range asked() {
				require.Positive(t, n, "node %d is asked at once", i)
			}
			var came [2]int
			for into := make([]skep.Chunk, 1); came[0] < n; synctest.Wait() {
				_, err := ses.Next(t.Context(), into)
				require.NoError(t, err)
				came[into[0].Chain]++
				if into[0].Chain == 0 {
					require.NoError(t, into[0].Err)
				} else {
					require.ErrorIs(t, into[0].Err, skep.Deadline)
				}
			}
			require.Less(t, came[1], n, "misses that were told before all was loaded")
			_, _, _ = answersOf(t, ses, 1, n-came[1])
			require.NoError(t, ses.Close(t.Context()))
		})
	}
}
