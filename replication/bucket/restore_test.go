package bucket

import (
	"bytes"
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
)

// A restore of later blocks brings those before them, too: a Store gives no block without what it continues.
func TestBlocksComeWithWhatTheyContinue(t *testing.T) {
	t.Parallel()
	n := newNode(t, options(newShelf()), 0)
	keys := chain(1, 16)
	n.put(keys)
	n.look()
	n.evict()
	ses, err := n.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{{Scope: n.scope(), Keys: keys,
		Blocks: skep.Only(10, 14)}}})
	require.NoError(t, err)
	blocks, err := drain(t.Context(), ses)
	require.NoError(t, err)
	require.Equal(t, 4, blocks)
	require.NoError(t, ses.Close(t.Context()))
}

// What is wrong with a request is said at once, wherever its blocks are.
func TestWhatIsWrongIsSaidAtOnce(t *testing.T) {
	t.Parallel()
	n := newNode(t, options(newShelf()), 0)
	keys := chain(1, 4)
	n.put(keys)
	n.look()
	_, err := n.own.Delete(t.Context(), n.scope(), keys[2:])
	require.NoError(t, err)
	mem := make([]byte, 4*blockSize)
	for name, dest := range map[string]skep.Destination{
		"stride": {Memory: mem, Stride: -1}, "memory": {Memory: mem[1:]}, "both": {Memory: mem, Paged: &skep.Paged{}},
	} {
		c := skep.Chain{Scope: n.scope(), Keys: keys, Dest: dest}
		_, err := n.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{c}})
		require.ErrorIs(t, err, skep.Invalid, name)
	}
}

// What the drives have comes before what is fetched, also into memory of which the Store chooses the stride.
func TestMemoryWithoutAStride(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n := newNode(t, options(b), 0)
	keys := chain(1, 16)
	n.put(keys)
	n.look()
	_, err := n.own.Delete(t.Context(), n.scope(), keys[8:])
	require.NoError(t, err)
	goOn := make(chan struct{})
	b.hold("", goOn)
	mem := make([]byte, 16*blockSize)
	ses, err := n.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{{Scope: n.scope(), Keys: keys,
		Dest: skep.Destination{Memory: mem}}}})
	require.NoError(t, err)
	into := make([]skep.Chunk, 8)
	for got := 0; got < 8; {
		k, err := ses.Next(t.Context(), into)
		require.NoError(t, err)
		for _, c := range into[:k] {
			require.NoError(t, c.Err)
		}
		got += k
	}
	close(goOn)
	blocks, err := drain(t.Context(), ses)
	require.NoError(t, err)
	require.Equal(t, 8, blocks)
	require.NoError(t, ses.Close(t.Context()))
	for i, k := range keys {
		require.True(t, bytes.Equal(storetest.Payload(k, skep.PartKV, blockSize), mem[i*blockSize:][:blockSize]), "block %d", i)
	}
}

// refuses is a Store that refuses restores from the second on.
type refuses struct {
	*memstore.Store
	restores atomic.Int64
}

func (r *refuses) Restore(ctx context.Context, q *skep.RestoreRequest) (skep.Session, error) {
	if r.restores.Add(1) > 1 {
		return nil, &skep.Error{Op: "restore", Kind: skep.NoMemory}
	}
	return r.Store.Restore(ctx, q)
}

// Where the Store refuses what was fetched, that is a miss, and what the drives had is there.
func TestARefusedSecondPartIsMisses(t *testing.T) {
	t.Parallel()
	b := newShelf()
	first := newNode(t, options(b), 0)
	keys := chain(1, 16)
	first.put(keys)
	first.look()
	own := &refuses{Store: memstore.New(memstore.Options{})}
	s, err := New(own, options(b))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	n := &node{Store: s, t: t, own: own.Store}
	_ = n.turn()
	n.open("n")
	n.put(keys[:4])
	require.Equal(t, 16, n.find(keys))
	ses := n.begin(keys)
	got, missed := map[int]bool{}, map[int]error{}
	require.NoError(t, skep.Drain(t.Context(), ses, func(c *skep.Chunk) error {
		if got[c.Block] = true; c.Err != nil {
			missed[c.Block] = c.Err
		}
		return nil
	}))
	require.NoError(t, ses.Close(t.Context()))
	require.Len(t, got, 16)
	require.Len(t, missed, 12)
	require.ErrorIs(t, missed[15], skep.NoMemory)
}

// Both parts of a session keep to one window: the second one begins when half of it came back.
func TestOneWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, options(newShelf()), 0)
		keys := chain(1, 16)
		n.put(keys)
		n.look()
		_, err := n.own.Delete(t.Context(), n.scope(), keys[4:])
		require.NoError(t, err)
		ses, err := n.Restore(t.Context(), &skep.RestoreRequest{Window: 4 * blockSize,
			Chains: []skep.Chain{{Scope: n.scope(), Keys: keys}}})
		require.NoError(t, err)
		var has []skep.Chunk
		into := make([]skep.Chunk, 4)
		for len(has) < 4 {
			k, err := ses.Next(t.Context(), into)
			require.NoError(t, err)
			has = append(has, into[:k]...)
		}
		late, cancel := context.WithTimeout(t.Context(), time.Hour)
		_, err = ses.Next(late, into)
		require.ErrorIs(t, err, skep.Deadline)
		cancel()
		for i := range has {
			has[i].Release()
		}
		blocks, err := drain(t.Context(), ses)
		require.NoError(t, err)
		require.Equal(t, 12, blocks)
		require.NoError(t, ses.Close(t.Context()))
	})
}

// Where the window has room for all that is left, nothing has to come back first.
func TestAWindowForAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, options(newShelf()), 0)
		keys := chain(1, 16)
		n.put(keys)
		n.look()
		_, err := n.own.Delete(t.Context(), n.scope(), keys[12:])
		require.NoError(t, err)
		ses, err := n.Restore(t.Context(), &skep.RestoreRequest{Window: 16 * blockSize,
			Chains: []skep.Chain{{Scope: n.scope(), Keys: keys}}})
		require.NoError(t, err)
		var has []skep.Chunk
		into := make([]skep.Chunk, 4)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		for len(has) < 16 {
			k, err := ses.Next(ctx, into)
			require.NoError(t, err)
			has = append(has, into[:k]...)
		}
		for i := range has {
			has[i].Release()
		}
		require.NoError(t, ses.Close(t.Context()))
	})
}

// Of what is left that is what is asked for: a layer of each block, say.
func TestAWindowForALayerOfAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, options(newShelf()), 0)
		layered := skep.Shape{Kind: skep.Attention, BlockTokens: 16, Layers: 4, KVHeads: 1, HeadDim: 16, Element: skep.BF16}
		info, err := n.OpenNamespace(t.Context(),
			skep.NamespaceSpec{Tenant: "t", Name: "layers", Model: "m", Shape: layered, Chained: true})
		require.NoError(t, err)
		n.ns = info.ID
		keys := chain(1, 16)
		n.put(keys)
		n.look()
		_, err = n.own.Delete(t.Context(), n.scope(), keys[12:])
		require.NoError(t, err)
		ses, err := n.Restore(t.Context(), &skep.RestoreRequest{Window: 16 * blockSize / 4,
			Chains: []skep.Chain{{Scope: n.scope(), Keys: keys, Layers: skep.Only(0, 1)}}})
		require.NoError(t, err)
		blocks := 0
		var has []skep.Chunk
		into := make([]skep.Chunk, 4)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		for blocks < 16 {
			k, err := ses.Next(ctx, into)
			require.NoError(t, err)
			has = append(has, into[:k]...)
			blocks += k
		}
		for i := range has {
			require.NoError(t, has[i].Err)
			has[i].Release()
		}
		require.NoError(t, ses.Close(t.Context()))
	})
}

// A part of a session may wait for a drive, in a Stop: whoever asks something of the session meanwhile does not.
func TestNobodyWaitsForAPartOfASession(t *testing.T) {
	t.Parallel()
	x := &session{early: []int{0}}
	asked := false
	require.NoError(t, x.parts(t.Context(), 0, func(part, int) error {
		asked = x.mu.TryLock()
		return nil
	}))
	require.True(t, asked)
}

// waits is a Store whose restores from the second on begin when they are told to.
type waits struct {
	*memstore.Store
	restores      atomic.Int64
	entered, goOn chan struct{}
}

func (w *waits) Restore(ctx context.Context, q *skep.RestoreRequest) (skep.Session, error) {
	if w.restores.Add(1) > 1 {
		w.entered <- struct{}{}
		<-w.goOn
	}
	return w.Store.Restore(ctx, q)
}

// While the Store begins the second part, the first one answers, and who has to wait for the second does so no longer than
// their context; then all of it comes, and is closed.
func TestNobodyWaitsForTheSecondPartToBegin(t *testing.T) {
	t.Parallel()
	b := newShelf()
	first := newNode(t, options(b), 0)
	keys := chain(1, 16)
	first.put(keys)
	first.look()
	own := &waits{Store: memstore.New(memstore.Options{}), entered: make(chan struct{}), goOn: make(chan struct{})}
	s, err := New(own, options(b))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	n := &node{Store: s, t: t, own: own.Store}
	_ = n.turn()
	n.open("n")
	other := chain(2, 4)
	n.put(keys[:4])
	n.put(other)
	require.Equal(t, 16, n.find(keys))
	ses := n.begin(keys, other)
	type end struct {
		blocks int
		err    error
	}
	ended := make(chan end, 1)
	go func() {
		blocks, err := drain(context.Background(), ses)
		ended <- end{blocks, err}
	}()
	<-own.entered
	require.NoError(t, ses.Reprioritise(t.Context(), 1, 5, time.Time{}), "a chain of the first part")
	over, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, ses.Stop(over, 0), skep.Deadline)
	close(own.goOn)
	require.Equal(t, end{20, nil}, <-ended)
	require.NoError(t, ses.Close(t.Context()))
}
