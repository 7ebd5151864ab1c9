package sparse

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// While records are moved, which takes as long as a clustering and all reads and writes of a layer, a step goes on:
// what it would write waits for the next one.
func TestAStepDoesNotWaitForARecluster(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		k := b.clustered()
		y := k.layers[0]
		for e := range slotsPerBlock {
			b.appendAs(k, bedTokens+e, 1)
		}
		y.mu.Lock()
		for e := range uint32(slotsPerBlock) {
			y.mu.joined = append(y.mu.joined, joined{entry: bedTokens + e})
		}
		y.mu.Unlock()
		waits := func() int {
			y.mu.Lock()
			defer y.mu.Unlock()
			return len(y.mu.window)
		}
		require.NoError(t, y.hold(t.Context(), "test"))
		began := time.Now()
		require.NoError(t, k.Observe(b.ctx, skep.Observation{Entries: []uint32{1, 2}}))
		require.Equal(t, slotsPerBlock, waits())
		require.NoError(t, b.fetch(k, bedTokens+slotsPerBlock))
		require.Zero(t, time.Since(began))
		y.free()
		require.NoError(t, k.Observe(b.ctx, skep.Observation{Entries: []uint32{1, 2}}))
		require.Zero(t, waits())
		require.NoError(t, b.fetch(k, bedTokens+slotsPerBlock))
	})
}

// Who has to wait for it waits as long as the caller does, and so does who waits behind another Append.
func TestAnAppendAndAReclusterWaitForAsLongAsTheCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		k := b.clustered()
		b.appendAs(k, bedTokens, maxUnjoined)
		require.NoError(t, k.layers[0].hold(t.Context(), "test"))
		var first <-chan error
		one := func(ctx context.Context) error { _, err := k.Append(ctx, [][]byte{bedEntry(0)}); return err }
		for _, name := range []string{"append", "recluster", "append behind an append"} {
			call := one
			switch name {
			case "recluster":
				call = func(ctx context.Context) error { _, err := k.Recluster(ctx, 0); return err }
			case "append behind an append":
				first = begin(func() error { return one(b.ctx) })
				synctest.Wait()
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			began := time.Now()
			require.ErrorIs(t, call(ctx), skep.Deadline, name)
			require.Equal(t, time.Second, time.Since(began), name)
			cancel()
		}
		y := k.layers[0]
		y.mu.Lock()
		placed, waiting := len(y.mu.joined), len(y.mu.joiner.Waiting())
		y.mu.Unlock()
		require.Zero(t, placed, "entries that have a place although nothing was written")
		require.Equal(t, maxUnjoined, waiting)
		k.layers[0].free()
		require.NoError(t, await(b, "the first append", first))
		require.Equal(t, maxUnjoined+1, k.Info().Appended)
	})
}

// A Recluster that nobody wants any more does not go on to the end: not for its caller, and not while a drop, which has
// refused all calls, waits for it.
func TestAReclusterGivesWay(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	k := b.clustered()
	b.observeGroups(k)
	y := k.layers[0]
	over, cancel := context.WithCancel(b.ctx)
	cancel()
	var res skep.ReclusterResult
	_, err := y.better(over, y.arranged(), &res)
	require.ErrorIs(t, err, skep.Deadline)
	next, err := y.better(b.ctx, y.arranged(), &res)
	require.NoError(t, err)
	require.NotNil(t, next, "%s", res.Reason)

	k.appending <- struct{}{} // an Append that waits for the Recluster
	ended := begin(func() error { k.end(); return nil })
	require.Eventually(t, func() bool { return k.ended("test") != nil }, time.Minute, time.Millisecond)
	_, err = y.better(b.ctx, y.arranged(), &res)
	require.ErrorIs(t, err, skep.Closed)
	<-k.appending
	require.NoError(t, await(b, "the end", ended))
}

// While a Close waits for a recluster, so does every other one, of the context and of all, and who opens the context
// gets one that is not closed, or waits for as long as the caller.
func TestASecondCloseWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		k := b.clustered()
		require.NoError(t, k.layers[0].hold(t.Context(), "test"))
		first := begin(func() error { return k.Close(b.ctx) })
		synctest.Wait()
		require.ErrorIs(t, k.ended("test"), skep.Closed)
		second := begin(func() error { return k.Close(b.ctx) })
		for _, again := range []func(ctx context.Context) (skep.SparseContext, error){
			func(ctx context.Context) (skep.SparseContext, error) { return b.sp.OpenContext(ctx, b.scope, b.last()) },
			func(ctx context.Context) (skep.SparseContext, error) {
				return b.sp.Cluster(ctx, &skep.ClusterRequest{Scope: b.scope, Keys: b.keys, QueryHeads: 2})
			},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := again(ctx)
			require.ErrorIs(t, err, skep.Deadline)
			cancel()
		}
		opened := begin(func() error {
			c, err := b.sp.OpenContext(b.ctx, b.scope, b.last())
			if err == nil {
				err = b.fetch(c, bedTokens)
			}
			return err
		})
		synctest.Wait()
		for what, done := range map[string]<-chan error{"a close": first, "another": second, "an open": opened} {
			require.Empty(t, done, what)
		}
		k.layers[0].free()
		require.NoError(t, await(b, "a close", first))
		require.NoError(t, await(b, "another", second))
		require.NoError(t, await(b, "an open", opened))

		k = b.clustered()
		require.NoError(t, k.layers[0].hold(t.Context(), "test"))
		first = begin(func() error { return k.Close(b.ctx) })
		synctest.Wait()
		all := begin(func() error { return b.sp.Close(b.ctx) })
		synctest.Wait()
		require.Empty(t, first)
		require.Empty(t, all, "whoever closes all closes the Store next")
		k.layers[0].free()
		require.NoError(t, await(b, "a close", first))
		require.NoError(t, await(b, "the close of all", all))
	})
}
