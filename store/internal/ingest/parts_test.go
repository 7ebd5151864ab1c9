package ingest

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/crypt"
	"github.com/skepkv/skep/store/internal/gate"
	"github.com/skepkv/skep/store/internal/keybook"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/pieces"
	"github.com/skepkv/skep/store/segment"
)

// newOpener is a writer that opens blocks in namespaces 1 of tenant t and 2 of tenant u, and stores none.
func newOpener(t *testing.T, openBytes int64) *Writer {
	t.Helper()
	keys, err := crypt.NewKeys(segment.StoreID{1}, nil)
	require.NoError(t, err)
	names := namespaces.NewTable(segment.Secret{1})
	for i, tenant := range []string{"t", "u"} {
		spec := skep.NamespaceSpec{Tenant: tenant, Name: "n", Model: "m", Class: skep.Cache, Copies: 1, Chained: true,
			Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 16}}
		_, err := names.Add(skep.NamespaceInfo{ID: skep.NamespaceID(i + 1), NamespaceSpec: spec}, uint32(i+1))
		require.NoError(t, err)
	}
	return New(Config{Gate: gate.New(false, func() error { return nil }), Names: names,
		Keys: keybook.New(keybook.Config{Keys: keys}), OpenBytes: openBytes})
}

func begin(t *testing.T, w *Writer, ns skep.NamespaceID, key byte, size int64) (skep.BlockWriter, error) {
	return w.Begin(t.Context(), &skep.BeginRequest{Scope: skep.Scope{Namespace: ns}, Key: skep.Key{key}, ValidTokens: 16,
		Manifest: skep.Manifest{{Name: skep.PartKV, Size: size}}})
}

// A block whose time runs out while its Commit waits for a write is not committed: some of
// its bytes are not there.
func TestCommitOfABlockThatEnded(t *testing.T) {
	t.Parallel()
	w := newOpener(t, 1<<20)
	for i := range 20 {
		bw, err := begin(t, w, 1, byte(i), 5000)
		require.NoError(t, err)
		b := bw.(*open)
		b.mu.Lock()
		b.inFlight++ // a Write that copies
		b.mu.Unlock()
		done := make(chan error, 1)
		go func() {
			_, err := b.Commit(t.Context(), skep.AckCommitted) // it has nothing to store by
			done <- err
		}()
		for range 1000 { // for it to come as far as it can
			runtime.Gosched()
		}
		b.end()
		b.mu.Lock()
		b.inFlight--
		b.idle.Broadcast()
		b.mu.Unlock()
		require.Equal(t, skep.Closed, skep.KindOf(<-done))
		require.Zero(t, w.Open.Used())
	}
}

// Open blocks are bounded by what they take, also when they have hardly a byte; and who opens all it
// can leaves room for others.
func TestSmallOpenBlocksAreBounded(t *testing.T) {
	t.Parallel()
	const fit = 8
	w := newOpener(t, fit*(openState+4<<10))
	var list []skep.BlockWriter
	one := func(ns skep.NamespaceID) error {
		b, err := begin(t, w, ns, byte(len(list)), 1)
		if err == nil {
			list = append(list, b)
		}
		return err
	}
	for one(1) == nil {
	}
	require.Len(t, list, fit*pieces.Share/(pieces.Share+1))
	require.Equal(t, skep.Quota, skep.KindOf(one(1)))
	require.NoError(t, one(2))
	require.Equal(t, skep.Quota, skep.KindOf(one(1)))
	require.Equal(t, skep.NoMemory, skep.KindOf(w.Open.Take("begin", 9, 2*(openState+4<<10), w.OpenBytes)))
	for _, b := range list {
		require.NoError(t, b.Abort(t.Context()))
	}
	require.Zero(t, w.Open.Used())
}

// What a list of pieces takes beside them is given back with the block.
func TestWhatPiecesTakeIsGivenBack(t *testing.T) {
	t.Parallel()
	w := newOpener(t, 1<<20)
	b, err := begin(t, w, 1, 1, 64<<10)
	require.NoError(t, err)
	before := w.Open.Used()
	for at := int64(0); at < 64<<10; at += 2 {
		require.NoError(t, b.Write(t.Context(), skep.PartKV, at, []byte{1}))
	}
	require.Greater(t, w.Open.Used(), before)
	require.NoError(t, b.Abort(t.Context()))
	require.Zero(t, w.Open.Used())
}
