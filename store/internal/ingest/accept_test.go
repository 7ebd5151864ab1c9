package ingest

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/internal/puts"
	"github.com/skepkv/skep/store/internal/watermark"
	"github.com/skepkv/skep/store/memory"
)

// A delete takes a block out of the index, and comes late to forget its copy: by then the next put of the key may have
// put its own there. Whatever others do with the memory, that put's bytes stay as long as it writes from them; and a
// block whose copy went before it was shown is not shown.
func TestACopyThatIsForgottenOnTheWay(t *testing.T) {
	t.Parallel()
	const size = 8 << 10
	w := newOpener(t, 1<<20)
	var err error
	w.Index, err = index.New(index.Config{})
	require.NoError(t, err)
	w.Arena, err = memory.New(memory.Options{IO: 1 << 20, Cache: 1 << 20})
	require.NoError(t, err)
	w.Cache, err = memory.NewCache(w.Arena, memory.CacheOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		w.Cache.Close()
		require.NoError(t, w.Arena.Close(t.Context()), "no buffer is in use")
	})
	w.CacheBytes, w.Puts, w.Root = 1<<20, puts.New(), watermark.New(nil)
	w.Rows = commit.New(slog.New(slog.DiscardHandler))
	w.Rows.Open(commit.Parts{Names: w.Names, Events: observe.NewEvents(1, 16, time.Now)})
	ns := w.Names.Get(1)

	in := &Block{}
	in.Result = &skep.PutResult{}
	require.NoError(t, w.Describe("put", ns, namespaces.Tag{}, in, &skep.BeginRequest{Scope: skep.Scope{Namespace: 1},
		Key: skep.Key{1}, ValidTokens: 16, Manifest: skep.Manifest{{Name: skep.PartKV, Size: size},
			{Name: "x", Size: size}}}))
	for i, name := range []string{skep.PartKV, "x"} {
		in.Parts = append(in.Parts, skep.Part{Name: name, Bytes: bytes.Repeat([]byte{byte(1 + i)}, size)})
	}
	given := in.Parts
	// forget is the late delete, after which others take the memory, if they can.
	forget := func() {
		w.Cache.Forget(memory.KeyOf(in.FP), func() bool { return false })
		require.EqualValues(t, 2, w.Arena.Stats().Buffers, "the put has them yet")
		var others []*memory.Buffer
		for range 2 {
			b, err := w.Arena.TryAlloc(size, memory.BudgetCache)
			require.NoError(t, err)
			copy(b.Bytes(), bytes.Repeat([]byte{0xee}, size))
			others = append(others, b)
		}
		memory.ReleaseAll(others)
	}
	w.hoarded = forget
	require.False(t, w.Hold(ns, in), "it goes the way through the drives")
	require.Equal(t, given, in.Parts)
	require.False(t, in.Accepted)
	_, shown := w.Index.Resolve(in.FP)
	require.False(t, shown, "with its bytes nowhere")
	require.Zero(t, w.Puts.Records.Len())
	require.Zero(t, w.Arena.Stats().Buffers)

	w.hoarded = nil
	require.True(t, w.Hold(ns, in))
	forget()
	require.Equal(t, given, in.Parts, "from where it is written")
	w.discard(in)
	in.unshare()
	require.Zero(t, w.Arena.Stats().Buffers)
}
