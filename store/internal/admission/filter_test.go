package admission

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/internal/namespaces"
)

type block struct {
	key    byte
	leased bool // a promise protects it
}

func (b *block) Waits() index.WaitingBlock {
	return index.WaitingBlock{FP: index.Fingerprint{b.key}, Bytes: 1 << 20}
}

// host is a store of one drive that writes what it is told to.
type host struct {
	gone            map[byte]bool // deleted before they wait
	landed          int
	dropped, stored []byte
	withdrawn       []*block
	written         int64
	accepted        atomic.Int64
}

func (h *host) Now() time.Time     { return time.Now() }
func (h *host) Written() int64     { return h.written }
func (h *host) Writable() int64    { return 1 }
func (h *host) Take(b *block) bool { return !h.gone[b.key] }
func (h *host) Land(list []*block) { h.landed += len(list) }
func (h *host) Behind(f func())    { f() }

func (h *host) Accept() (end func()) {
	h.accepted.Add(1)
	return func() { h.accepted.Add(-1) }
}

func (h *host) OnDrives(fp index.Fingerprint) bool { return false }

func (h *host) Withdraw(_ *namespaces.Namespace, b *block) bool {
	if b.leased {
		return false
	}
	h.dropped, h.withdrawn = append(h.dropped, b.key), append(h.withdrawn, b)
	return true
}

func (h *host) Write(_ context.Context, _ *namespaces.Namespace, list []*block) {
	for _, b := range list {
		h.stored = append(h.stored, b.key)
		h.written += b.Waits().Bytes
	}
}

// What was used goes to the drives, what was not is dropped and remembered, what is promised is written all the same,
// and what is gone before it waits is withdrawn at once.
func TestWhatIsWorthWriting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &host{gone: map[byte]bool{4: true}}
		f, err := New(h, Config{Policy: Budget, Ghosts: 1 << 10, CacheBytes: 64 << 20, WriteBudget: 8 << 30,
			BatchBytes: 4 << 20, BatchBlocks: 8})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		go f.Run(ctx)
		defer synctest.Wait()
		defer cancel()
		ns := &namespaces.Namespace{}
		f.Add(ns, []*block{{key: 1}, {key: 2}, {key: 3, leased: true}, {key: 4}})
		require.Equal(t, 4, h.landed)
		require.Equal(t, []byte{4}, h.dropped, "it is gone")
		require.EqualValues(t, 3, f.Stats().WaitingBlocks, "there is no budget at first")
		f.Use(index.Fingerprint{1})

		time.Sleep(20 * time.Second) // a budget is saved up, and what was used is written without being asked for
		synctest.Wait()
		require.Equal(t, []byte{1}, h.stored)
		f.Flush()
		synctest.Wait()
		require.Equal(t, []byte{1, 3}, h.stored)
		require.Equal(t, []byte{4, 2}, h.dropped)
		require.Zero(t, f.Len())
		require.Zero(t, h.accepted.Load(), "a Flush would wait for nothing")
		require.EqualValues(t, 1, f.Stats().PromisedBlocks)

		time.Sleep(20 * time.Second)
		_, declined := f.Judge([]*block{{key: 2}, {key: 9}})
		require.Len(t, declined, 1, "the first was refused before: it is asked for again")
		require.EqualValues(t, 9, declined[0].key)
		require.EqualValues(t, 1, f.Stats().RefusedHits)
	})
}

// A block that waited was deleted, and its key is put again: who waited before is withdrawn, once, and the other waits.
func TestWhoIsDisplacedIsWithdrawn(t *testing.T) {
	t.Parallel()
	h := &host{}
	f, err := New(h, Config{Policy: Budget, Ghosts: 1 << 10, CacheBytes: 64 << 20, WriteBudget: 8 << 30,
		BatchBytes: 4 << 20, BatchBlocks: 8})
	require.NoError(t, err)
	ns, first, second := &namespaces.Namespace{}, &block{key: 1}, &block{key: 1}
	f.Add(ns, []*block{first})
	require.Empty(t, h.withdrawn)
	f.Add(ns, []*block{second})
	require.Equal(t, []*block{first}, h.withdrawn)
	require.Equal(t, 1, f.Len())
	f.Flush()
	require.Equal(t, []*block{first, second}, h.withdrawn, "nobody has used it")
}

// Without a filter everything is admitted, and nothing is counted.
func TestNoFilter(t *testing.T) {
	t.Parallel()
	var f *Filter[*block]
	require.False(t, f.Filters(&namespaces.Namespace{}))
	f.Use(index.Fingerprint{1})
	f.Flush()
	require.Zero(t, f.Memory())
	require.Equal(t, skep.AdmissionStats{Policy: All}, f.Stats())
	require.Positive(t, Cap(1<<10, 64<<20))
}
