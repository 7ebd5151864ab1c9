package sparse

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
)

// observed has a context learn something that a Flush would store.
func (b *bed) observed(k *sparseContext) {
	b.Helper()
	for e := range uint32(5) {
		require.NoError(b, k.Observe(b.ctx, skep.Observation{Entries: []uint32{e, e + 20}}))
	}
}

// nothingLearnt requires that nothing is stored that a context learnt.
func (b *bed) nothingLearnt(k *sparseContext) {
	b.Helper()
	for _, what := range []string{"profile", "recall"} {
		text, err := k.getMeta(b.ctx, k.key(what, 0))
		require.NoError(b, err)
		require.Nil(b, text, what)
	}
}

// A Flush of a context that was dropped stores nothing: it would pass for what the next context of the place learnt.
func TestAFlushAfterADropStoresNothing(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	k := b.clustered()
	b.observed(k)
	require.NoError(t, b.sp.DropContext(b.ctx, b.scope, b.last()))
	require.ErrorIs(t, k.Flush(b.ctx), skep.Closed)
	b.nothingLearnt(k)
	require.NoError(t, k.Close(b.ctx))
}

// A drop has what a Flush under way stores deleted, too.
func TestADropWaitsForAFlush(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	k := b.clustered()
	b.observed(k)
	crew := storetest.NewCrew(t)
	stopped, release := stopAt(&b.st.put, 2)
	crew.Go(func(t testing.TB) { require.NoError(t, k.Flush(b.ctx)) })
	<-stopped
	crew.Go(func(t testing.TB) { require.NoError(t, b.sp.DropContext(b.ctx, b.scope, b.last())) })
	require.Eventually(t, func() bool { return k.ended("test") != nil }, time.Minute, time.Millisecond)
	release()
	crew.Wait()
	b.nothingLearnt(k)
}

// A context whose chain could not be looked for is not taken to be there: the next call looks again.
func TestAChainThatWasNotFoundOutIsLookedForAgain(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	k := b.clustered()
	away := error(&skep.Error{Op: "lookup", Kind: skep.Unavailable})
	b.st.noLookup.Store(&away)
	k.mu.Lock()
	k.checked = time.Time{} // long ago
	k.mu.Unlock()
	for range 2 {
		_, err := k.Append(b.ctx, [][]byte{bedEntry(bedTokens)})
		require.ErrorIs(t, err, skep.Unavailable)
	}
	b.st.noLookup.Store(nil)
	_, err := k.Append(b.ctx, [][]byte{bedEntry(bedTokens)})
	require.NoError(t, err)
}
