package errand

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

type key struct{}

// A call has its caller's values and not its end; it ends with all. Of those that nobody waits for there are so many.
func TestSoManyAreLeftBehind(t *testing.T) {
	t.Parallel()
	all, end := context.WithCancel(t.Context())
	caller, gone := context.WithCancel(context.WithValue(t.Context(), key{}, "the caller's"))
	gone()
	var wait sync.WaitGroup
	start := func(f func()) bool { wait.Go(f); return true }
	var b Behind
	values := make(chan any, 4*Most)
	stay := func(ctx context.Context) {
		of, cancel := context.WithCancel(ctx)
		defer cancel()
		values <- of.Value(key{})
		<-of.Done()
	}
	for range 2 * Most {
		require.NotNil(t, b.Run(start, all, caller, stay), "they are waited for")
	}
	for i := range 2 * Most {
		e := b.Run(start, all, caller, stay)
		require.Equal(t, i < Most, e != nil)
		e.Left()
		e.Left()
		require.Equal(t, i+1 >= Most, b.Full())
	}
	end()
	wait.Wait()
	require.Zero(t, b.n.Load())
	require.Len(t, values, 3*Most)
	require.Equal(t, "the caller's", <-values)
	require.Nil(t, b.Run(func(func()) bool { return false }, all, caller, stay))
}

// Keys that were copied are as they were, whatever becomes of the caller's.
func TestKeysAreCopied(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 100, mostPooled + 1} {
		mine := make([]skep.Key, n)
		for i := range mine {
			mine[i] = skep.KeyOf([]byte{byte(i), byte(i >> 8)})
		}
		want := slices.Clone(mine)
		runs := [][]skep.Key{mine[:n/2], mine[n/2:]}
		lent := Copy(runs)
		clear(mine)
		require.Equal(t, want, slices.Concat(runs...))
		GiveBack(lent)
	}
}
