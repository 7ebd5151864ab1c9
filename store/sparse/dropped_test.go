package sparse

import (
	"encoding/json"
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

// A context that is to be dropped before another can take its place, and cannot be dropped now, is not overwritten.
func TestAContextThatCannotBeDroppedKeepsItsPlace(t *testing.T) {
	t.Parallel()
	for name, left := range map[string]func(b *bed, k *sparseContext){
		"a drop was cut off": func(b *bed, k *sparseContext) { k.markDropped(b.ctx) },
		"an arrangement is gone": func(b *bed, k *sparseContext) {
			_, err := b.st.Delete(b.ctx, k.meta, []skep.Key{k.key("arrangement", 1)})
			require.NoError(t, err)
		},
		"the chain is shorter": func(b *bed, k *sparseContext) {
			h := k.head
			h.Entries++
			text, err := json.Marshal(h)
			require.NoError(t, err)
			require.NoError(t, k.putMeta(b.ctx, k.key("context"), text))
		},
	} {
		b := newBedOf(t, threeLayers())
		k := b.clustered()
		require.NoError(t, k.Close(b.ctx), name)
		left(b, k)
		puts, away := b.st.puts.Load(), error(&skep.Error{Op: "delete", Kind: skep.DeviceFailed})
		b.st.noDelete.Store(&away)
		for _, again := range []func() error{
			func() error { _, err := b.cluster(); return err },
			func() error { _, err := b.sp.OpenContext(b.ctx, b.scope, b.last()); return err },
		} {
			err := again()
			require.ErrorIs(t, err, skep.DeviceFailed, name)
			require.NotErrorIs(t, err, skep.NotFound, name)
			require.LessOrEqual(t, b.st.puts.Load(), puts+2, "%s: no more than that it is dropped", name)
		}
		b.st.noDelete.Store(nil)
		require.NoError(t, b.fetch(b.clustered(), bedTokens), name)
	}
}
