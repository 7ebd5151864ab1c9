package sparse

import (
	"cmp"
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// unreadable is a Store of which some blocks are on a drive that cannot be read: lookups end
// before them, and restores say so, unless the drive still reads.
type unreadable struct {
	skep.Store
	keys  []skep.Key
	reads bool      // as a drive does that gave wrong bytes: nothing is promised of it, and it is read
	kind  skep.Kind // of the error; 0: DeviceFailed
}

// PutSidecar and Sidecar are refused, as those of a Store over a network are.
func (*unreadable) PutSidecar(ctx context.Context, sc skep.Scope, key skep.Key, pieces []skep.SidecarPiece) error {
	return skep.UnsupportedStore{}.PutSidecar(ctx, sc, key, pieces)
}

func (*unreadable) Sidecar(ctx context.Context, sc skep.Scope, key skep.Key) ([]skep.SidecarPiece, error) {
	return skep.UnsupportedStore{}.Sidecar(ctx, sc, key)
}

func (u *unreadable) Lookup(ctx context.Context, r *skep.LookupRequest) (skep.LookupResult, error) {
	some := *r
	if i := slices.IndexFunc(r.Keys, func(k skep.Key) bool { return slices.Contains(u.keys, k) }); i >= 0 {
		some.Keys = r.Keys[:i]
	}
	return u.Store.Lookup(ctx, &some)
}

func (u *unreadable) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	ses, err := u.Store.Restore(ctx, r)
	if err != nil || u.reads {
		return ses, err
	}
	return &unreadableSession{ses, u, r}, nil
}

type unreadableSession struct {
	skep.Session
	u *unreadable
	r *skep.RestoreRequest
}

func (s *unreadableSession) Next(ctx context.Context, into []skep.Chunk) (int, error) {
	n, err := s.Session.Next(ctx, into)
	for i := range into[:n] {
		if c := &into[i]; slices.Contains(s.u.keys, s.r.Chains[c.Chain].Keys[c.Block]) {
			c.Release()
			c.Data, c.Err = nil, &skep.Error{Op: "restore", Kind: cmp.Or(s.u.kind, skep.DeviceFailed)}
		}
	}
	return n, err
}

// What cannot be read is not taken for gone: an open, and whatever begins things anew where none
// are, fails with the store's error, and all is as it was once it can be read again. A context
// that is open goes on.
func TestWhatCannotBeReadIsNotGone(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		key  func(b *bed, k *sparseContext) skep.Key
	}{
		{"the chain", func(b *bed, _ *sparseContext) skep.Key { return b.keys[1] }},
		{"the chain's end", func(b *bed, _ *sparseContext) skep.Key { return b.last() }},
		{"the description", func(_ *bed, k *sparseContext) skep.Key { return k.key("context") }},
		{"the arrangement", func(_ *bed, k *sparseContext) skep.Key { return k.key("arrangement", 0) }},
		{"the profile", func(_ *bed, k *sparseContext) skep.Key { return k.key("profile", 0) }},
		{"the recall", func(_ *bed, k *sparseContext) skep.Key { return k.key("recall", 0) }},
		{"a token", func(_ *bed, k *sparseContext) skep.Key { return k.key("token", bedTokens+1) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			u := &unreadable{Store: b.st.Store}
			b.st.Store = u
			k := b.clustered()
			require.NoError(t, k.Observe(b.ctx, skep.Observation{Entries: []uint32{1, 2}}))
			for e := range 3 {
				b.appendAs(k, bedTokens+e, 1)
			}
			require.NoError(t, k.Flush(b.ctx))
			u.keys = []skep.Key{tt.key(b, k)}
			k.mu.Lock()
			k.checked = k.checked.Add(-aliveEvery) // the next call looks for its chain
			k.mu.Unlock()
			b.appendAs(k, bedTokens+3, 1)
			require.NoError(t, b.fetch(k, bedTokens+4))
			require.NoError(t, k.Close(b.ctx))

			_, err := b.sp.OpenContext(b.ctx, b.scope, b.last())
			require.ErrorIs(t, err, skep.DeviceFailed)
			require.NotErrorIs(t, err, skep.NotFound)
			_, err = b.cluster()
			require.ErrorIs(t, err, skep.DeviceFailed)

			u.keys = nil
			c, err := b.sp.OpenContext(b.ctx, b.scope, b.last())
			require.NoError(t, err)
			require.Equal(t, 4, c.Info().Appended)
			require.Equal(t, 1, c.Info().PerLayer[0].Steps)
			require.NoError(t, b.fetch(c, bedTokens+4))
		})
	}
}

// A drop that cannot read what it needs is one: the context does not come back with its chain, and what is left of it
// goes when that can be read. What the context has learned a drop does not need.
func TestADropThatCannotReadIsADrop(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		key   func(k *sparseContext) skep.Key
		needs bool
	}{
		{"the profile", func(k *sparseContext) skep.Key { return k.key("profile", 0) }, false},
		{"the recall", func(k *sparseContext) skep.Key { return k.key("recall", 0) }, false},
		{"the arrangement", func(k *sparseContext) skep.Key { return k.key("arrangement", 0) }, true},
		{"a token", func(k *sparseContext) skep.Key { return k.key("token", bedTokens+1) }, true},
	} {
		for _, cutOff := range []bool{false, true} { // the drop; one that began before is met
			b := newBed(t)
			u := &unreadable{Store: b.st.Store}
			b.st.Store = u
			k := b.clustered()
			require.NoError(t, k.Observe(b.ctx, skep.Observation{Entries: []uint32{1, 2}}))
			b.appendAs(k, bedTokens, 3)
			require.NoError(t, k.Close(b.ctx))
			u.keys = []skep.Key{tt.key(k)}
			if cutOff {
				k.markDropped(b.ctx)
			}
			var err error
			if cutOff {
				_, err = b.sp.OpenContext(b.ctx, b.scope, b.last())
			} else {
				err = b.sp.DropContext(b.ctx, b.scope, b.last())
			}
			switch {
			case tt.needs:
				require.ErrorIs(t, err, skep.DeviceFailed, tt.name)
			case cutOff:
				require.ErrorIs(t, err, skep.NotFound, tt.name)
			default:
				require.NoError(t, err, tt.name)
			}
			b.putChain()
			u.keys = nil
			_, err = b.sp.OpenContext(b.ctx, b.scope, b.last())
			require.ErrorIs(t, err, skep.NotFound, tt.name)
			b.nothingStored(tt.name)
		}
	}
}

// Nor is a chain gone of which a block is on a drive that no lookup relies on, while a restore
// brings that block: whoever looks for the chain leaves the context as it is, with what was
// appended to it.
func TestAChainThatNoLookupFindsIsNotGone(t *testing.T) {
	t.Parallel()
	for _, at := range []int{0, 1, bedTokens/bedShape.BlockTokens - 1} {
		b := newBed(t)
		u := &unreadable{Store: b.st.Store, reads: true}
		b.st.Store = u
		k := b.clustered()
		for e := range 3 {
			b.appendAs(k, bedTokens+e, 1)
		}
		u.keys = b.keys[at : at+1]
		b.sp.lookAfter(b.ctx, []place{k.place}) // an event tells of it
		k.mu.Lock()
		k.checked = k.checked.Add(-aliveEvery) // the next call looks for its chain
		k.mu.Unlock()
		b.appendAs(k, bedTokens+3, 1)
		require.NoError(t, b.fetch(k, bedTokens+4))
		require.NoError(t, k.Close(b.ctx))

		b.sp.lookAfter(b.ctx, []place{k.place})
		_, err := b.sp.OpenContext(b.ctx, b.scope, b.last())
		require.ErrorIs(t, err, skep.DeviceFailed)
		require.NotErrorIs(t, err, skep.NotFound)

		u.keys = nil
		c, err := b.sp.OpenContext(b.ctx, b.scope, b.last())
		require.NoError(t, err)
		require.Equal(t, 4, c.Info().Appended)
		require.NoError(t, b.fetch(c, bedTokens+4))
	}
}

// What is damaged of what a layer has learned is learned anew: the context can be opened, and one that was never opened
// can be dropped with all its records.
func TestWhatWasLearnedAndIsDamagedIsLearnedAnew(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"profile", "recall"} {
		for _, unsound := range []bool{false, true} { // the Store finds it out; only who reads it does
			b := newBedOf(t, threeLayers())
			u := &unreadable{Store: b.st.Store, kind: skep.Damaged}
			b.st.Store = u
			k := b.clustered()
			b.observed(k)
			require.NoError(t, k.Close(b.ctx))
			if unsound {
				require.NoError(t, k.putMeta(b.ctx, k.key(what, 0), []byte("no "+what)))
			} else {
				u.keys = []skep.Key{k.key(what, 0)}
			}
			c, err := b.sp.OpenContext(b.ctx, b.scope, b.last())
			require.NoError(t, err, what)
			require.NoError(t, b.fetch(c, bedTokens))
			if what == "profile" {
				require.Zero(t, c.Info().PerLayer[0].Steps)
			}
			require.NoError(t, c.Close(b.ctx))
			require.NoError(t, b.sp.DropContext(b.ctx, b.scope, b.last()))
			b.nothingStored(what)
		}
	}
}

// ended is a Store that was closed.
type ended struct{ skep.Store }

func (ended) Lookup(context.Context, *skep.LookupRequest) (skep.LookupResult, error) {
	return skep.LookupResult{}, &skep.Error{Op: "lookup", Kind: skep.Closed}
}

// A context is open, and the Store below was closed: it is not given to who opens it again.
func TestAnOpenOnAClosedStoreIsRefused(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	k := b.clustered()
	open := b.st.Store
	b.st.Store = ended{open}
	k.mu.Lock()
	k.checked = k.checked.Add(-aliveEvery) // the next call looks for its chain
	k.mu.Unlock()
	_, err := b.sp.OpenContext(b.ctx, b.scope, b.last())
	require.ErrorIs(t, err, skep.Closed)
	b.st.Store = open
}
