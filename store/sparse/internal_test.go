package sparse

import (
	"context"
	"encoding/binary"
	"math"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
)

// hooked is a Store that stops where a test wants it to.
type hooked struct {
	skep.Store
	restore, looked, put, read atomic.Pointer[func()] // read: a session is over, and what it brought is known
	puts                       atomic.Int64
	noLookup                   atomic.Pointer[error] // what every Lookup is refused with
	noDelete                   atomic.Pointer[error] // and every Delete
}

func (h *hooked) Delete(ctx context.Context, sc skep.Scope, keys []skep.Key) (int, error) {
	if err := h.noDelete.Load(); err != nil {
		return 0, *err
	}
	return h.Store.Delete(ctx, sc, keys)
}

func call(f *atomic.Pointer[func()]) {
	if f := f.Load(); f != nil {
		(*f)()
	}
}

func (h *hooked) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	call(&h.restore)
	ses, err := h.Store.Restore(ctx, r)
	if err != nil {
		return nil, err
	}
	return &hookedSession{ses, h}, nil
}

type hookedSession struct {
	skep.Session
	h *hooked
}

func (s *hookedSession) Close(ctx context.Context) error {
	call(&s.h.read)
	return s.Session.Close(ctx)
}

func (h *hooked) Lookup(ctx context.Context, r *skep.LookupRequest) (skep.LookupResult, error) {
	if err := h.noLookup.Load(); err != nil {
		return skep.LookupResult{}, *err
	}
	res, err := h.Store.Lookup(ctx, r)
	call(&h.looked)
	return res, err
}

func (h *hooked) Put(ctx context.Context, r *skep.PutRequest) ([]skep.PutResult, error) {
	h.puts.Add(1)
	call(&h.put)
	return h.Store.Put(ctx, r)
}

// stopAt makes the n-th next call of a hook stop: stopped is closed when it has, and it
// goes on once release is called. Other calls pass.
func stopAt(at *atomic.Pointer[func()], n int64) (stopped chan struct{}, release func()) {
	stopped, on := make(chan struct{}), make(chan struct{})
	var calls atomic.Int64
	f := func() {
		if calls.Add(1) == n {
			close(stopped)
			<-on
		}
	}
	at.Store(&f)
	return stopped, func() { close(on) }
}

const bedTokens = 64

var bedShape = skep.Shape{Kind: skep.Latent, Layers: 1, HeadDim: 8, Element: skep.F32, BlockTokens: 16}

// bed is a store with one chain and sparse contexts on it.
type bed struct {
	*testing.T
	ctx   context.Context
	st    *hooked
	sp    *Sparse
	scope skep.Scope
	keys  []skep.Key
	chain []skep.Block
}

func newBed(t *testing.T) *bed { return newBedOf(t, bedShape) }

func newBedOf(t *testing.T, shape skep.Shape) *bed {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	b := &bed{T: t, ctx: ctx, st: &hooked{Store: memstore.New(memstore.Options{})}}
	t.Cleanup(func() { require.NoError(t, b.st.Close()) })
	ns, err := b.st.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: shape, Chained: true})
	require.NoError(t, err)
	b.scope = skep.Scope{Namespace: ns.ID}
	var parent *skep.Key
	for i := range bedTokens / bedShape.BlockTokens {
		k := skep.ChainKey(parent, []uint32{uint32(i)})
		parent = &k
		b.keys = append(b.keys, k)
		var bytes []byte
		for t := range bedShape.BlockTokens {
			bytes = append(bytes, bedEntry(i*bedShape.BlockTokens+t)...)
		}
		bytes = slices.Repeat(bytes, shape.Layers)
		b.chain = append(b.chain, skep.Block{Key: k, Parts: []skep.Part{{Bytes: bytes}}})
	}
	b.putChain()
	b.sp, err = New(b.st, Options{Devices: 3, Window: 4, Cost: layout.ReadCost{Page: 1e-6, Least: 2e-6}, Alone: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.sp.Close(context.Background())) })
	return b
}

// putChain stores what is not stored of the chain.
func (b *bed) putChain() {
	b.Helper()
	_, err := b.st.Put(b.ctx, &skep.PutRequest{Scope: b.scope, Blocks: b.chain})
	require.NoError(b, err)
}

func bedEntry(e int) (b []byte) {
	for d := range bedShape.HeadDim {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(e*8+d)))
	}
	return b
}

func (b *bed) last() skep.Key { return b.keys[len(b.keys)-1] }

func (b *bed) cluster() (*sparseContext, error) {
	c, err := b.sp.Cluster(b.ctx, &skep.ClusterRequest{Scope: b.scope, Keys: b.keys, QueryHeads: 2})
	if err != nil {
		return nil, err
	}
	return c.(*sparseContext), nil
}

func (b *bed) clustered() *sparseContext {
	b.Helper()
	c, err := b.cluster()
	require.NoError(b, err)
	return c
}

// fetch reads entries 0 to n-1 and compares them.
func (b *bed) fetch(c skep.SparseContext, n int) error {
	var entries []uint32
	var dst [][]byte
	for e := range n {
		entries, dst = append(entries, uint32(e)), append(dst, make([]byte, len(bedEntry(0))))
	}
	r, err := c.Fetch(b.ctx, 0, entries, dst)
	if err != nil {
		return err
	}
	assert.Empty(b, r.Missing)
	for e := range n {
		assert.Equal(b, bedEntry(e), dst[e], "entry %d", e)
	}
	return nil
}

// await fails the test when what should end does not.
func await[T any](b *bed, what string, done <-chan T) T {
	b.Helper()
	select {
	case v := <-done:
		return v
	case <-b.ctx.Done():
		require.FailNow(b, "it hangs", what)
		panic("not reached")
	}
}

func begin(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

// othersGoOn lets goroutines that can run do so.
func othersGoOn() {
	for range 1000 {
		runtime.Gosched()
	}
}

// A fetch that reads, one that has found its chain and does not read yet, and a drop: the
// drop waits for the first, and the second must not stand in the first one's way.
func TestFetchesAndADropDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	k := b.clustered()
	reading, read := stopAt(&b.st.restore, 1)
	first := begin(func() error { return b.fetch(k, 10) })
	await(b, "the first fetch begins", reading)

	k.mu.Lock()
	k.checked = time.Time{} // the next call looks for its chain
	k.mu.Unlock()
	found, goOn := stopAt(&b.st.looked, 1)
	second := begin(func() error { return b.fetch(k, 10) })
	await(b, "the second fetch finds the chain", found)

	dropped := begin(func() error { return b.sp.DropContext(b.ctx, b.scope, b.last()) })
	readers := k.layers[0].arranged().readers
	storetest.Eventually(t, "the drop waits", func() bool {
		free := readers.TryRLock()
		if free {
			readers.RUnlock()
		}
		return !free
	})
	goOn()
	require.ErrorIs(t, await(b, "the second fetch", second), skep.NotFound)
	read()
	require.NoError(t, await(b, "the first fetch", first))
	require.NoError(t, await(b, "the drop", dropped))
}

// However many ask for the same context at once, it is made once.
func TestAContextIsMadeOnce(t *testing.T) {
	t.Parallel()
	alone := newBed(t)
	alone.clustered()
	b := newBed(t)
	stopped, goOn := stopAt(&b.st.put, 1)
	const n = 4
	contexts := make([]*sparseContext, n)
	var done []<-chan error
	for i := range n {
		done = append(done, begin(func() (err error) {
			contexts[i], err = b.cluster()
			return err
		}))
	}
	await(b, "one begins", stopped)
	othersGoOn() // the others come as far as they may; they need not
	goOn()
	for i := range n {
		require.NoError(t, await(b, "a cluster", done[i]))
		require.Same(t, contexts[0], contexts[i])
	}
	require.Equal(t, alone.st.puts.Load(), b.st.puts.Load())
	require.NoError(t, b.fetch(contexts[0], bedTokens))
}

// An open that takes long does not bring back a state from before what others appended.
func TestAnOpenThatTakesLongForgetsNothing(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	require.NoError(t, b.clustered().Close(b.ctx))
	var reads atomic.Int64
	count := func() { reads.Add(1) }
	b.st.read.Store(&count)
	c, err := b.sp.OpenContext(b.ctx, b.scope, b.last())
	require.NoError(t, err)
	require.NoError(t, c.Close(b.ctx))
	stopped, goOn := stopAt(&b.st.read, reads.Load()) // the last: it has found no token
	opened := begin(func() error {
		_, err := b.sp.OpenContext(b.ctx, b.scope, b.last())
		return err
	})
	await(b, "the open begins", stopped)
	other := begin(func() error {
		c, err := b.sp.OpenContext(b.ctx, b.scope, b.last())
		if err != nil {
			return err
		}
		if _, err := c.Append(b.ctx, [][]byte{bedEntry(bedTokens)}); err != nil {
			return err
		}
		return c.Close(b.ctx)
	})
	othersGoOn() // it comes as far as it may; it need not
	goOn()
	require.NoError(t, await(b, "the open", opened))
	require.NoError(t, await(b, "the other", other))
	c, err = b.sp.OpenContext(b.ctx, b.scope, b.last())
	require.NoError(t, err)
	require.Equal(t, 1, c.Info().Appended)
	require.NoError(t, b.fetch(c, bedTokens+1))
}

// Close waits for the Append under way: who opens the context next counts on from it.
func TestCloseWaitsForAnAppend(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	k := b.clustered()
	stopped, goOn := stopAt(&b.st.put, 1)
	appended := begin(func() error {
		_, err := k.Append(b.ctx, [][]byte{bedEntry(bedTokens)})
		return err
	})
	await(b, "the append begins", stopped)
	next := make(chan error, 1)
	var id uint32
	go func() {
		next <- func() error {
			if err := k.Close(b.ctx); err != nil {
				return err
			}
			c, err := b.sp.OpenContext(b.ctx, b.scope, b.last())
			if err != nil {
				return err
			}
			id, err = c.Append(b.ctx, [][]byte{bedEntry(bedTokens + 1)})
			return err
		}()
	}()
	othersGoOn() // it comes as far as it may; it need not
	goOn()
	require.NoError(t, await(b, "the append", appended))
	require.NoError(t, await(b, "the next", next))
	require.EqualValues(t, bedTokens+1, id)
	c, err := b.sp.OpenContext(b.ctx, b.scope, b.last())
	require.NoError(t, err)
	require.NoError(t, b.fetch(c, bedTokens+2))
}

// The caller's list of keys is the caller's again once Cluster has returned.
func TestClusterKeepsItsOwnKeys(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	k := b.clustered()
	clear(b.keys)
	k.mu.Lock()
	k.checked = time.Time{}
	k.mu.Unlock()
	require.NoError(t, b.fetch(k, 10))
}

// A choice made while others append, and are observed to, is of the entries it knows.
func TestSelectWhileTheContextGrows(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	k := b.clustered()
	q := make([]float32, k.heads.QueryWidth())
	q[3] = 1
	for range learnedSteps {
		require.NoError(t, k.Observe(b.ctx, skep.Observation{Entries: []uint32{2, 9, 17}, Queries: q}))
	}
	k.layers[0].mu.recall.Grow(bedTokens + 5) // as Observe does for a token that came since
	s, err := k.Select(b.ctx, 0, q, skep.Choice{Budget: 3})
	require.NoError(t, err)
	require.True(t, s.Learned)
	require.Equal(t, []uint32{2, 9, 17}, s.Entries)
}

// Entries that were appended, joined a cluster and were never activated have no steps.
func TestClustersOfEntriesNothingActivated(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	k := b.clustered()
	for e := range 3 * slotsPerBlock {
		_, err := k.Append(b.ctx, [][]byte{bedEntry(bedTokens + e)})
		require.NoError(t, err)
	}
	for range 6 {
		require.NoError(t, k.Observe(b.ctx, skep.Observation{Entries: []uint32{1, 2}}))
	}
	require.Greater(t, k.layers[0].arranged().entries, bedTokens, "some have joined")
	c, err := k.Clusters(0)
	require.NoError(t, err)
	require.Len(t, c.Radii, len(c.Sizes))
	require.Zero(t, c.Together(1, uint32(k.layers[0].arranged().entries-1)))
}

// A context whose arrangement is gone, as a drop that was cut off leaves it, is made anew
// when its chain has come back.
func TestAContextWithoutAnArrangementIsMadeAnew(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	k := b.clustered()
	require.NoError(t, k.Close(b.ctx))
	n, err := b.st.Delete(b.ctx, k.meta, []skep.Key{k.key("arrangement", 0)})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	_, err = b.sp.OpenContext(b.ctx, b.scope, b.last())
	require.ErrorIs(t, err, skep.NotFound)
	require.NoError(t, b.fetch(b.clustered(), bedTokens))
}

// appendAs appends entries that say what, as of another text than bedEntry's.
func (b *bed) appendAs(c skep.SparseContext, what, n int) {
	b.Helper()
	for range n {
		_, err := c.Append(b.ctx, [][]byte{bedEntry(what)})
		require.NoError(b, err)
	}
}

// What a store evicts of a context: some tokens, or the description, but not the tokens
// that were appended later. None of those may pass for the text that is appended next.
func TestTokensOfAnotherTextAreNotTaken(t *testing.T) {
	t.Parallel()
	const old, fresh = 1000, 2000
	for _, tt := range []struct {
		name              string
		appended, evicted int // the first so many of those
		description       bool
		then              int // appended to the new text
	}{
		{"the first token", 3, 1, false, 1},
		{"nothing is appended after", 3, 1, false, 0},
		{"the old ones are all overwritten", 3, 1, false, 3},
		{"a long gap", 2*clearChunk + 2, 2*clearChunk + 1, false, 2*clearChunk + 1},
		{"the description", 3, 0, true, 0},
		{"the description, a long gap", clearChunk + 2, clearChunk + 1, true, clearChunk + 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			k := b.clustered()
			b.appendAs(k, old, tt.appended)
			require.NoError(t, k.Close(b.ctx))
			var gone []skep.Key
			for e := range tt.evicted {
				gone = append(gone, k.key("token", uint64(bedTokens+e)))
			}
			if tt.description {
				gone = append(gone, k.key("context"))
			}
			n, err := b.st.Delete(b.ctx, k.meta, gone)
			require.NoError(t, err)
			require.Len(t, gone, n)

			c := b.clustered()
			require.Zero(t, c.Info().Appended)
			b.appendAs(c, fresh, tt.then)
			require.NoError(t, c.Close(b.ctx))
			c = b.clustered()
			require.Equal(t, tt.then, c.Info().Appended)
			for e := range tt.then {
				dst := [][]byte{make([]byte, len(bedEntry(0)))}
				r, err := c.Fetch(b.ctx, 0, []uint32{uint32(bedTokens + e)}, dst)
				require.NoError(t, err)
				require.Empty(t, r.Missing)
				require.Equal(t, bedEntry(fresh), dst[0], "entry %d", bedTokens+e)
			}
		})
	}
}

// Who appends and observes nothing has entries placed by their keys: what waits in memory is limited.
func TestEntriesWithoutStepsLeaveTheWindow(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	k := b.clustered()
	const more = maxUnjoined + 500
	for e := range more {
		_, err := k.Append(b.ctx, [][]byte{bedEntry(bedTokens + e)})
		require.NoError(t, err)
		k.layers[0].mu.Lock()
		waits := len(k.layers[0].mu.window)
		k.layers[0].mu.Unlock()
		require.LessOrEqual(t, waits, maxUnjoined)
	}
	require.Equal(t, more, k.Info().Appended)
	require.NoError(t, b.fetch(k, bedTokens+more))
	require.NoError(t, k.Close(b.ctx))
	k = b.clustered()
	require.Equal(t, more, k.Info().Appended)
	require.NoError(t, b.fetch(k, bedTokens+more))
}

// Entries of which no arithmetic is known join no clusters: they stay in memory, and there
// is an end to that. All that were taken are there still, also after an open.
func TestEntriesThatNeverJoinAreLimited(t *testing.T) {
	t.Parallel()
	for _, element := range []skep.ElementType{skep.FP8, skep.I8} {
		t.Run(element.String(), func(t *testing.T) {
			shape := bedShape // as many bytes
			shape.HeadDim, shape.Element = 4*bedShape.HeadDim, element
			b := newBedOf(t, shape)
			k := b.clustered()
			for e := range maxUnjoined {
				_, err := k.Append(b.ctx, [][]byte{bedEntry(bedTokens + e)})
				require.NoError(t, err)
			}
			for range 2 {
				_, err := k.Append(b.ctx, [][]byte{bedEntry(0)})
				var refused *skep.Error
				require.ErrorIs(t, err, skep.Invalid)
				require.ErrorAs(t, err, &refused)
				require.Equal(t, "appended entries in memory", refused.Field)
				require.Equal(t, maxUnjoined, refused.Value)
				require.Contains(t, refused.Limit, element.String())
				require.Equal(t, maxUnjoined, k.Info().Appended)
				require.NoError(t, b.fetch(k, bedTokens+maxUnjoined))

				require.NoError(t, k.Close(b.ctx))
				k = b.clustered()
			}
		})
	}
}
