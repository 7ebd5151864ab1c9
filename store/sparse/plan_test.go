package sparse

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// join lets appended entries join a cluster now, those alone.
func (b *bed) join(k *sparseContext, entries ...uint32) {
	b.Helper()
	y := k.layers[0]
	y.mu.Lock()
	for _, e := range entries {
		y.mu.joined = append(y.mu.joined, joined{entry: e})
	}
	y.mu.Unlock()
	require.NoError(b, y.hold(b.ctx, "join"))
	defer y.free()
	require.NoError(b, y.overflow(b.ctx, true))
}

// interrupted leaves what a recluster leaves that was killed before the new arrangement came into
// force: a plan, and the records, of entries as at says.
func (b *bed) interrupted(k *sparseContext, at func(uint32) []byte) {
	b.Helper()
	a := k.layers[0].arranged()
	next, err := k.deal(a.gen+1, a.entries, a.clusters, nil)
	require.NoError(b, err)
	for _, slots := range next.at {
		for s, e := range slots {
			if e != layout.NoEntry && len(a.placement.Spots(e)) == 0 {
				slots[s] = layout.NoEntry
			}
		}
	}
	plan, _ := next.encode()
	require.NoError(b, k.putMeta(b.ctx, k.key("plan", 0), plan))
	_, err = k.writeRecords(b.ctx, 0, next, at, nil)
	require.NoError(b, err)
}

// observeGroups observes explorative steps, each of which activates entries 8 apart.
func (b *bed) observeGroups(k *sparseContext) {
	b.Helper()
	for t := range 200 {
		var on []uint32
		for e := t % 8; e < bedTokens; e += 8 {
			on = append(on, uint32(e))
		}
		require.NoError(b, k.Observe(b.ctx, skep.Observation{Entries: on, Explorative: true}))
	}
}

func otherText(uint32) []byte { return bedEntry(1000) }

// The description of a context is evicted while a recluster of it is interrupted, and the new
// context grows to the same size with another text: the old plan is not gone on with, and what
// was observed of the old text is not known of the new.
func TestAPlanOfAnotherTextIsNotResumed(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	k := b.clustered()
	require.NoError(t, k.Observe(b.ctx, skep.Observation{Entries: []uint32{1, 2}}))
	b.appendAs(k, 1000, 2)
	b.join(k, bedTokens, bedTokens+1)
	b.interrupted(k, func(e uint32) []byte {
		if e < bedTokens {
			return bedEntry(int(e))
		}
		return otherText(e)
	})
	require.NoError(t, k.Close(b.ctx))
	n, err := b.st.Delete(b.ctx, k.meta, []skep.Key{k.key("context")})
	require.NoError(t, err)
	require.Equal(t, 1, n)

	k = b.clustered()
	require.Zero(t, k.Info().PerLayer[0].Steps)
	for e := range 2 {
		b.appendAs(k, bedTokens+e, 1)
	}
	b.join(k, bedTokens, bedTokens+1)
	r, err := k.Recluster(b.ctx, 0)
	require.NoError(t, err)
	require.False(t, r.Resumed)
	require.NoError(t, b.fetch(k, bedTokens+2))
	require.NoError(t, k.Close(b.ctx))
	require.Zero(t, b.clustered().Info().PerLayer[0].Steps) // what is stored, too
}

// A plan is evicted and the records written for it are not: they are not taken for those of the
// next plan, be it interrupted too.
func TestRecordsOfAnEvictedPlanAreNotTaken(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	k := b.clustered()
	b.interrupted(k, otherText)
	n, err := b.st.Delete(b.ctx, k.meta, []skep.Key{k.key("plan", 0)})
	require.NoError(t, err)
	require.Equal(t, 1, n)

	b.observeGroups(k)
	killed, kill := context.WithCancel(b.ctx)
	defer kill()
	puts := 0
	second := func() {
		if puts++; puts == 2 { // the first is the plan's
			kill()
		}
	}
	b.st.put.Store(&second)
	_, err = k.Recluster(killed, 0)
	require.ErrorIs(t, err, context.Canceled)
	b.st.put.Store(nil)

	r, err := k.Recluster(b.ctx, 0)
	require.NoError(t, err)
	require.True(t, r.Resumed)
	require.NoError(t, b.fetch(k, bedTokens))
}

// An entry that joins after a later one does not change how many there are: a plan from before it
// has no place for it, and is not gone on with.
func TestAPlanWithoutAnEntryThatJoinedSinceIsNotResumed(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	k := b.clustered()
	for e := range 2 {
		b.appendAs(k, bedTokens+e, 1)
	}
	b.join(k, bedTokens+1)
	before := k.layers[0].arranged().entries
	b.interrupted(k, func(e uint32) []byte { return bedEntry(int(e)) })
	b.join(k, bedTokens)
	require.Equal(t, before, k.layers[0].arranged().entries)

	r, err := k.Recluster(b.ctx, 0)
	require.NoError(t, err)
	require.False(t, r.Resumed)
	require.NoError(t, b.fetch(k, bedTokens+2))
}

// Dropping a context whose arrangement is gone deletes the records of its plan too.
func TestADropWithoutAnArrangementDeletesWhatWasPlanned(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	k := b.clustered()
	b.interrupted(k, otherText)
	planned, err := k.layers[0].planned(b.ctx)
	require.NoError(t, err)
	require.NotEmpty(t, planned)
	require.NoError(t, k.Close(b.ctx))
	_, err = b.st.Delete(b.ctx, k.meta, []skep.Key{k.key("arrangement", 0)})
	require.NoError(t, err)
	_, err = b.sp.OpenContext(b.ctx, b.scope, b.last())
	require.ErrorIs(t, err, skep.NotFound)
	n, err := b.st.Delete(b.ctx, k.records, planned)
	require.NoError(t, err)
	require.Zero(t, n)
}

// A plan that cannot be read is neither replaced nor forgotten.
func TestAPlanThatCannotBeReadIsKept(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	u := &unreadable{Store: b.st.Store}
	b.st.Store = u
	k := b.clustered()
	b.interrupted(k, func(e uint32) []byte { return bedEntry(int(e)) })
	u.keys = []skep.Key{k.key("plan", 0)}
	_, err := k.Recluster(b.ctx, 0)
	require.ErrorIs(t, err, skep.DeviceFailed)
	require.ErrorIs(t, b.sp.DropContext(b.ctx, b.scope, b.last()), skep.DeviceFailed)

	u.keys = nil
	planned, err := k.layers[0].planned(b.ctx)
	require.NoError(t, err)
	_, err = b.sp.OpenContext(b.ctx, b.scope, b.last())
	require.ErrorIs(t, err, skep.NotFound) // and the drop is finished
	n, err := b.st.Delete(b.ctx, k.records, planned)
	require.NoError(t, err)
	require.Zero(t, n)
}

// A token whose entries are all on their drives, and whose block could not be deleted then, is deleted with the next,
// also after the context was closed in between, and by a drop.
func TestATokenThatCouldNotBeDeletedIsDeletedLater(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"by the next", "after an open", "by a drop"} {
		b := newBed(t)
		k := b.clustered()
		b.appendAs(k, bedTokens, 2)
		y := k.layers[0]
		y.mu.Lock()
		y.mu.joined = append(y.mu.joined, joined{entry: bedTokens})
		y.mu.Unlock()
		away := error(&skep.Error{Op: "delete", Kind: skep.DeviceFailed})
		b.st.noDelete.Store(&away)
		require.NoError(t, y.hold(b.ctx, "test"))
		require.ErrorIs(t, y.overflow(b.ctx, true), skep.DeviceFailed)
		y.free()
		b.st.noDelete.Store(nil)
		switch how {
		case "by a drop":
			require.NoError(t, b.sp.DropContext(b.ctx, b.scope, b.last()))
			b.nothingStored(how)
			continue
		case "after an open":
			require.NoError(t, k.Close(b.ctx))
			k = b.clustered()
		}
		b.join(k, bedTokens+1)
		for e := range uint64(2) {
			text, err := k.getMeta(b.ctx, k.key("token", bedTokens+e))
			require.NoError(t, err)
			require.Nil(t, text, "%s: token %d", how, e)
		}
		require.Empty(t, k.tokens)
		require.NoError(t, b.fetch(k, bedTokens))
	}
}
