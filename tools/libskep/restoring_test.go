package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu/slots"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/memstore"
)

// engine is a paged cache of three blocks, which are stored, with pinned memory that they land in.
type engine struct {
	*opened
	skep.Scope
	keys     []skep.Key
	geometry layout.Geometry
	target   *target

	given, lost, hung atomic.Int32 // pieces of pinned memory
	copyFails         error        // of each copy
	queueFails        error
}

func newEngine(t *testing.T) *engine {
	t.Helper()
	e := &engine{opened: &opened{Store: memstore.New(memstore.Options{}), spaces: map[skep.NamespaceID]spaceSpec{}}}
	e.life, e.end = context.WithCancel(context.Background())
	t.Cleanup(func() { require.NoError(t, e.close()) })
	shape := skep.Shape{Kind: skep.Attention, Layers: 2, KVHeads: 1, HeadDim: 8, Element: skep.BF16, BlockTokens: 2}
	spec := skep.NamespaceSpec{Tenant: "t", Name: "n", Model: "m", Chained: true, Shape: shape}
	n, err := e.openNamespace(t.Context(), spaceSpec{NamespaceSpec: spec})
	require.NoError(t, err)
	e.Scope = skep.Scope{Namespace: n.ID}
	e.geometry, err = layout.Of(shape)
	require.NoError(t, err)
	blocks := make([]place, 3)
	for i := range blocks {
		e.keys = append(e.keys, skep.Key{byte(i + 1)})
		blocks[i] = place{make([]byte, e.geometry.PartBytes())}
		for j := range blocks[i][0] {
			blocks[i][0][j] = byte(1 + 31*i + j)
		}
	}
	stored := make([]skep.PutResult, len(blocks))
	require.NoError(t, e.save(t.Context(), skep.PutRequest{Scope: e.Scope}, e.keys, blocks, stored))
	const page = 2 * 8 * 2 // bytes of a block's tokens, in one plane
	e.target = &target{Pages: slots.Pages{Tokens: 2, Stride: page, Bytes: 3 * page}, slots: []int64{0, 1, 2, 3, 4, 5}}
	e.target.write = func(int, bool, []byte, []slots.Run) error { return e.copyFails }
	e.target.take = func(_ context.Context, n int64) (*room, error) {
		return &room{bytes: make([]byte, n), queued: func() error { return e.queueFails },
			back: func() { e.given.Add(1) }, lose: func() { e.lost.Add(1) }, hung: func() { e.hung.Add(1) }}, nil
	}
	return e
}

func (e *engine) restore(ctx context.Context) (int, error) {
	return e.opened.restore(ctx, e.Scope, e.keys, skep.Range{To: 3}, e.geometry, e.target)
}

func (e *engine) begin(word *atomic.Uint64) (*restoring, error) {
	c := skep.Chain{Scope: e.Scope, Keys: e.keys, Blocks: skep.Only(0, 3)}
	return e.opened.begin(c, skep.Range{To: 3}, e.geometry, e.target, word, time.Minute)
}

// ended polls a restore under way until no block waits.
func ended(t *testing.T, r *restoring) (states []blockState, err error) {
	t.Helper()
	states = make([]blockState, 3)
	require.Eventually(t, func() bool {
		var n int
		n, err = r.poll(time.Minute, states)
		return n == 0
	}, time.Minute, time.Millisecond)
	return states, err
}

// Some layers of blocks go where they go with all of them, and nothing else does, whether they land in pinned memory or
// in the Store's.
func TestSomeLayersOfAPagedCache(t *testing.T) {
	t.Parallel()
	for _, pinned := range []bool{true, false} {
		e := newEngine(t)
		if !pinned {
			e.target.take = nil
		}
		type plane struct {
			layer int
			v     bool
		}
		restored := func(only skep.Subset) map[plane][]byte {
			planes := map[plane][]byte{}
			e.target.only = only
			e.target.write = func(layer int, v bool, block []byte, runs []slots.Run) error {
				at := plane{layer, v}
				if planes[at] == nil {
					planes[at] = make([]byte, e.target.Bytes)
				}
				for _, r := range runs {
					copy(planes[at][r.To:r.To+r.Len], block[r.From:r.From+r.Len])
				}
				return nil
			}
			n, err := e.restore(t.Context())
			require.NoError(t, err)
			require.Equal(t, 3, n)
			return planes
		}
		all := restored(skep.All)
		require.Len(t, all, 4)
		require.NotEqual(t, all[plane{0, true}], all[plane{1, true}])
		some := map[plane][]byte{{1, false}: all[plane{1, false}], {1, true}: all[plane{1, true}]}
		require.Equal(t, some, restored(skep.Only(1, 2)))
	}
}

// Pinned memory that a drive may write to yet is lent again once it does not, and not before. The engine's own memory
// is not such a drive's.
func TestPinnedMemoryIsLentAgainOnceItIsReleased(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	c := &clinging{Store: e.Store}
	e.Store = c
	_, err := e.restore(t.Context())
	require.Equal(t, skep.Unavailable, skep.KindOf(err))
	require.Zero(t, e.given.Load())
	require.Eventually(t, func() bool { return e.hung.Load() == 1 }, time.Minute, time.Millisecond)
	c.letGo.Store(true)
	require.Eventually(t, func() bool { return e.given.Load() == 1 }, time.Minute, time.Millisecond)
	require.Equal(t, int32(1), e.hung.Load(), "once")
	n, err := e.restore(t.Context())
	require.NoError(t, err)
	require.Equal(t, 3, n)
	require.Equal(t, int32(2), e.given.Load())
	require.Zero(t, e.lost.Load())
}

// A restore by two pointers that did not begin gives its pinned memory back as one that did. Where no session is left
// that says when, nobody is lent it again.
func TestPinnedMemoryOfARestoreThatDidNotBegin(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	c := &clinging{Store: e.Store}
	e.Store = c
	_, err := e.begin(new(atomic.Uint64)) // memstore has no words
	require.ErrorIs(t, err, skep.Unsupported)
	require.Equal(t, skep.NotReleased, skep.KindOf(err), "the word may be written to")
	require.Zero(t, e.given.Load())
	c.letGo.Store(true)
	require.Eventually(t, func() bool { return e.given.Load() == 1 }, time.Minute, time.Millisecond)

	e.Store = refusing{c.Store, &skep.Error{Op: op, Kind: skep.NotReleased}}
	_, err = e.begin(nil)
	require.Equal(t, skep.Unavailable, skep.KindOf(err))
	_, err = e.restore(t.Context())
	require.Equal(t, skep.Unavailable, skep.KindOf(err))
	require.Equal(t, int32(2), e.lost.Load())
	e.Store = refusing{c.Store, skep.NotFound}
	_, err = e.begin(nil)
	require.ErrorIs(t, err, skep.NotFound)
	require.Equal(t, int32(2), e.given.Load())
	e.Store = c.Store
}

// A session that does not close, whatever it says, keeps the pinned memory and the word of a restore that did not
// begin.
func TestPinnedMemoryOfASessionThatFailsToCloseIsNotLentAgain(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	w := &failingToClose{Store: e.Store, times: 3}
	e.Store = w
	_, err := e.begin(new(atomic.Uint64)) // memstore has no words
	require.Equal(t, skep.NotReleased, skep.KindOf(err))
	require.ErrorIs(t, err, skep.Failed)
	require.Eventually(t, func() bool { return e.given.Load() == 1 }, time.Minute, time.Millisecond)
	require.Zero(t, w.left(), "only once it is closed")
	e.Store = w.Store
}

// failingToClose is a Store whose sessions fail to close so many times.
type failingToClose struct {
	skep.Store
	mu    sync.Mutex
	times int
}

type failingSession struct {
	skep.Session
	of *failingToClose
}

func (f *failingToClose) left() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.times
}

func (f *failingToClose) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	s, err := f.Store.Restore(ctx, r)
	return &failingSession{s, f}, err
}

func (s *failingSession) Close(ctx context.Context) error {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if s.of.times == 0 {
		return s.Session.Close(ctx)
	}
	s.of.times--
	return &skep.Error{Op: "close", Kind: skep.Failed}
}

// A restore that begins while its store is being closed is ended, and the caller is told where that is not sure.
func TestARestoreOfAStoreThatIsBeingClosedIsEnded(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	for letGo, kind := range map[bool]skep.Kind{true: skep.Closed, false: skep.NotReleased} {
		c := &clinging{Store: e.opened.Store}
		c.letGo.Store(letGo)
		chain := skep.Chain{Scope: e.Scope, Keys: e.keys, Blocks: skep.Only(0, 3)}
		closing := &opened{Store: c, closing: true}
		r, err := closing.begin(chain, skep.Range{To: 3}, e.geometry, e.target, nil, time.Minute)
		require.NoError(t, err)
		_, err = r.number()
		require.ErrorIs(t, err, skep.Closed)
		require.Equal(t, kind, skep.KindOf(err))
		select {
		case <-r.over:
		default:
			t.Fatal("it writes to the caller's memory yet")
		}
	}
}

// A restore whose copies did not get to the stream, and that did not come whole besides, says that the GPU failed.
func TestARestoreSaysFirstThatTheGPUFailed(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	e.copyFails = &skep.Error{Op: op, Kind: skep.NoMemory}
	e.queueFails = &skep.Error{Op: op, Kind: skep.DeviceFailed}
	_, err := e.restore(t.Context())
	require.Equal(t, skep.DeviceFailed, skep.KindOf(err))
	st := e.Store
	e.Store = refusing{st, &skep.Error{Op: op, Kind: skep.NotFound}}
	_, err = e.begin(nil)
	require.Equal(t, skep.DeviceFailed, skep.KindOf(err))
	e.Store = st
	_, err = e.begin(new(atomic.Uint64)) // memstore has no words
	require.Equal(t, skep.DeviceFailed, skep.KindOf(err))
}

// refusing is a Store that begins no restore.
type refusing struct {
	skep.Store
	why error
}

func (r refusing) Restore(context.Context, *skep.RestoreRequest) (skep.Session, error) {
	return nil, r.why
}

// A restore by two pointers keeps its pinned memory until nothing writes there: that is when its end says so.
func TestPinnedMemoryOfARestoreUnderWayIsLentAgainWithItsEnd(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	c := &clinging{Store: e.Store}
	e.Store = stuck{c}
	r, err := e.begin(nil)
	require.NoError(t, err)
	_, err = ended(t, r)
	require.NoError(t, err, "it is late, and what waited is missed")
	require.ErrorIs(t, r.end(t.Context()), skep.NotReleased)
	require.Zero(t, e.given.Load())
	c.letGo.Store(true)
	require.NoError(t, r.end(t.Context()))
	require.NoError(t, r.end(t.Context()))
	require.Equal(t, int32(1), e.given.Load(), "once")
	e.Store = c.Store
}

// late is a Store whose sessions end late.
type late struct{ skep.Store }

type sessionInTime struct{ skep.Session }

func (s late) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	ses, err := s.Store.Restore(ctx, r)
	return sessionInTime{ses}, err
}

func (sessionInTime) Next(context.Context, []skep.Chunk) (int, error) {
	return 0, &skep.Error{Op: "next", Kind: skep.Deadline}
}

// stuck is a Store whose sessions end late, with drives that do not stop.
type stuck struct{ *clinging }

type stuckSession struct{ skep.Session }

func (s stuck) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	ses, err := s.clinging.Restore(ctx, r)
	return stuckSession{ses}, err
}

func (stuckSession) Next(context.Context, []skep.Chunk) (int, error) {
	return 0, &skep.Error{Op: "next", Kind: skep.Deadline}
}

func (stuckSession) Stop(context.Context, int) error {
	return &skep.Error{Op: "stop", Kind: skep.NotReleased}
}

// Who polls a restore under way is told what ended it, with how blocks stand. A block that is missed is no error.
func TestAPollSaysWhatEndedARestore(t *testing.T) {
	t.Parallel()
	failed := &skep.Error{Op: op, Kind: skep.DeviceFailed, Err: errors.New("CUDA error 719")}
	full := &skep.Error{Op: op, Kind: skep.NoMemory, Err: errors.New("CUDA error 2")}
	for name, tt := range map[string]struct {
		prepare func(e *engine)
		state   blockState
		kind    skep.Kind
	}{
		"all landed":           {func(*engine) {}, landed, skep.Other},
		"all missed":           {func(e *engine) { e.keys = make([]skep.Key, 3) }, missed, skep.Other},
		"its time is over":     {func(e *engine) { e.Store = late{e.Store} }, missed, skep.Other},
		"a copy fails":         {func(e *engine) { e.copyFails = full }, missed, skep.NoMemory},
		"the stream has ended": {func(e *engine) { e.queueFails = failed }, landed, skep.DeviceFailed},
		"a copy fails, and the GPU": {func(e *engine) { e.copyFails, e.queueFails = full, failed }, missed,
			skep.DeviceFailed},
		"its time is over, and the GPU fails": {func(e *engine) { e.Store, e.queueFails = late{e.Store}, failed }, missed,
			skep.DeviceFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEngine(t)
			tt.prepare(e)
			r, err := e.begin(nil)
			require.NoError(t, err)
			for range 2 { // again and again
				states, err := ended(t, r)
				require.Equal(t, []blockState{tt.state, tt.state, tt.state}, states)
				require.Equal(t, tt.kind, skep.KindOf(err))
			}
			require.NoError(t, r.end(t.Context()))
			require.Equal(t, int32(1), e.given.Load())
		})
	}
}

// Where the copy of the last block fails, and the GPU has failed, the latter is said with it.
func TestAPollSaysFirstThatTheGPUFailed(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	e.queueFails = &skep.Error{Op: op, Kind: skep.DeviceFailed}
	planes := 0
	e.target.write = func(int, bool, []byte, []slots.Run) error {
		if planes++; planes > 2*e.geometry.Layers()*2 { // K and V of each layer of the first two
			return &skep.Error{Op: op, Kind: skep.NoMemory}
		}
		return nil
	}
	r, err := e.begin(nil)
	require.NoError(t, err)
	states, err := ended(t, r)
	require.ElementsMatch(t, []blockState{landed, landed, missed}, states)
	require.ErrorIs(t, err, skep.NoMemory)
	require.Equal(t, skep.DeviceFailed, skep.KindOf(err))
	require.NoError(t, r.end(t.Context()))
}
