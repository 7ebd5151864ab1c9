package replay_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/tools/internal/chat"
	"github.com/skepkv/skep/tools/internal/replay"
	"github.com/skepkv/skep/tools/internal/trace"
	"github.com/skepkv/skep/tools/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// list is a source of given requests.
type list struct{ r []trace.Request }

func (l *list) Next() (trace.Request, error) {
	if len(l.r) == 0 {
		return trace.Request{}, io.EOF
	}
	r := l.r[0]
	l.r = l.r[1:]
	return r, nil
}

func request(at time.Duration, ids ...uint64) trace.Request {
	return trace.Request{Time: at, InputTokens: len(ids) * 16, Blocks: ids, BlockTokens: 16}
}

func newStore(t *testing.T, o memstore.Options) skep.Store {
	st := memstore.New(o)
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	return st
}

func run(t *testing.T, st skep.Store, o replay.Options, r ...trace.Request) *replay.Result {
	res, err := replay.Run(t.Context(), st, &list{r}, o)
	require.NoError(t, err)
	return res
}

func TestHitsAreThoseOfThePrefixRule(t *testing.T) {
	t.Parallel()
	st := newStore(t, memstore.Options{})
	res := run(t, st, replay.Options{BlockBytes: 5000}, request(0, 1, 2, 3), request(0, 1, 2, 4, 5), request(0, 1, 2, 3), request(0, 9, 2))
	assert.Equal(t, 4, res.Requests)
	assert.EqualValues(t, 12, res.BlocksReferenced)
	assert.EqualValues(t, 2+3, res.BlocksHit, "9, 2: block 2 is stored under another parent and does not count")
	assert.EqualValues(t, 5*5000, res.BytesRestored)
	assert.EqualValues(t, 6*5000, res.BytesPut)
	assert.Zero(t, res.WrongBytes)
	assert.Zero(t, res.BrokenPromises)
	assert.False(t, res.Bad())
}

func TestHitRatioIsTheTracesOwn(t *testing.T) {
	t.Parallel()
	p := chat.Params{Requests: 300, Seed: 7}
	var want trace.Stats
	g, err := chat.New(p)
	require.NoError(t, err)
	for {
		r, err := g.Next()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		want.Add(r)
	}
	g, err = chat.New(p)
	require.NoError(t, err)
	st := newStore(t, memstore.Options{})
	// Regions of three blocks: nearly every request is restored and put in pieces.
	res, err := replay.Run(t.Context(), st, g, replay.Options{BlockBytes: 4096, RegionBytes: 3 * 4096})
	require.NoError(t, err)
	assert.EqualValues(t, want.BlockRefs, res.BlocksReferenced)
	assert.EqualValues(t, want.HitBlocks, res.BlocksHit)
	assert.InDelta(t, want.HitRatio(), res.HitRatio, 1e-9)
	assert.EqualValues(t, want.UniqueBlocks()*4096, res.BytesPut)
}

func TestASecondRunChecksWhatTheFirstLeft(t *testing.T) {
	t.Parallel()
	st := newStore(t, memstore.Options{})
	run(t, st, replay.Options{BlockBytes: 100}, request(0, 1, 2, 3))
	res := run(t, st, replay.Options{BlockBytes: 100}, request(0, 1, 2, 3))
	assert.Equal(t, 1.0, res.HitRatio)
	assert.Zero(t, res.BytesPut)
}

func TestPartialTailsKeepTheirValidTokens(t *testing.T) {
	t.Parallel()
	st := newStore(t, memstore.Options{})
	r := request(0, 1, 2)
	r.LastValidTokens = 7
	run(t, st, replay.Options{BlockBytes: 100}, r)
	ns, err := st.Namespaces(t.Context())
	require.NoError(t, err)
	require.Len(t, ns, 1)
	found, err := st.Lookup(t.Context(), &skep.LookupRequest{Scope: skep.Scope{Namespace: ns[0].ID}, Keys: []skep.Key{replay.Key("", 1), replay.Key("", 2)}, Lease: skep.NoLease})
	require.NoError(t, err)
	assert.Equal(t, 16+7, found.Tokens)
}

func TestModelsDoNotShareBlocks(t *testing.T) {
	t.Parallel()
	st := newStore(t, memstore.Options{})
	a, b := request(0, 1), request(0, 1)
	b.Model = "other"
	assert.Zero(t, run(t, st, replay.Options{BlockBytes: 100}, a, b).BlocksHit)
}

// bad wraps a store whose restores go wrong.
type bad struct {
	skep.Store
	flip int  // bytes to flip in what lands
	miss bool // deliver misses instead
}

type badSession struct {
	skep.Session
	b   *bad
	mem []byte
}

func (b *bad) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	s, err := b.Store.Restore(ctx, r)
	return &badSession{s, b, r.Chains[0].Dest.Memory}, err
}

func (s *badSession) Next(ctx context.Context, into []skep.Chunk) (int, error) {
	n, err := s.Session.Next(ctx, into)
	for i := range into[:n] {
		for k := range s.b.flip {
			s.mem[k] ^= 1
		}
		s.b.flip = 0
		if s.b.miss {
			into[i].Err = &skep.Error{Op: "restore", Kind: skep.Evicted}
		}
	}
	return n, err
}

func TestWrongBytesAreCountedAndNoHit(t *testing.T) {
	t.Parallel()
	st := &bad{Store: newStore(t, memstore.Options{}), flip: 3}
	res := run(t, st, replay.Options{BlockBytes: 4096}, request(0, 1, 2), request(0, 1, 2))
	assert.EqualValues(t, 3, res.WrongBytes)
	assert.True(t, res.Bad())
	assert.Zero(t, res.BlocksHit, "the first block is wrong, so none of the prefix counts")
}

func TestPromisedBlocksThatDoNotComeAreBrokenPromises(t *testing.T) {
	t.Parallel()
	st := &bad{Store: newStore(t, memstore.Options{}), miss: true}
	res := run(t, st, replay.Options{BlockBytes: 4096}, request(0, 1, 2), request(0, 1, 2))
	assert.EqualValues(t, 2, res.BrokenPromises)
	assert.EqualValues(t, map[string]int64{skep.Evicted.Error(): 2}, res.Misses)
	assert.Zero(t, res.BlocksHit)
	assert.EqualValues(t, 2, res.PutExists, "what did not come is put again")
}

func TestDeclinedBlocksAreCountedByReason(t *testing.T) {
	t.Parallel()
	st := newStore(t, memstore.Options{CapacityBytes: 3 * 4096, DeclineWhenFull: true})
	res := run(t, st, replay.Options{BlockBytes: 4096, RegionBytes: 2 * 4096}, request(0, 1, 2, 3, 4, 5, 6, 7))
	assert.EqualValues(t, 3*4096, res.BytesPut)
	assert.EqualValues(t, map[string]int64{skep.Full.Error(): 1, "after a declined block": 3}, res.Declined)
}

func TestACancelledRunKeepsWhatWasDone(t *testing.T) {
	t.Parallel()
	st := newStore(t, memstore.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	many := make([]trace.Request, 100)
	for i := range many {
		many[i] = request(0, uint64(i))
	}
	res, err := replay.Run(ctx, st, &list{many}, replay.Options{BlockBytes: 100, Done: func(s replay.Step) {
		if s.Request == 10 {
			cancel()
		}
	}})
	require.NoError(t, err)
	assert.True(t, res.Interrupted)
	assert.Equal(t, 10, res.Requests)
	assert.EqualValues(t, 1000, res.BytesPut)
}

func TestAPacedRunWaits(t *testing.T) {
	t.Parallel()
	st := newStore(t, memstore.Options{})
	// However slow the machine is at the first request, with a gap long enough it has to wait.
	res := &replay.Result{}
	for gap := 500 * time.Millisecond; res.PaceSeconds == 0; gap *= 4 {
		require.Less(t, gap, 30*time.Minute, "it never waits")
		res = run(t, st, replay.Options{BlockBytes: 100, Speed: 10}, request(0, 1), request(gap, 2))
	}
	// Cancelling ends the wait.
	ctx, cancel := context.WithCancel(t.Context())
	res, err := replay.Run(ctx, st, &cancelling{list{[]trace.Request{request(time.Hour, 1)}}, cancel}, replay.Options{BlockBytes: 100, Speed: 1})
	require.NoError(t, err)
	assert.True(t, res.Interrupted)
	assert.Zero(t, res.Requests)
}

// cancelling ends the run soon after its request is read.
type cancelling struct {
	list
	cancel func()
}

func (c *cancelling) Next() (trace.Request, error) {
	time.AfterFunc(time.Millisecond, c.cancel)
	return c.list.Next()
}

func TestADamagedSourceEndsTheRunWithWhatWasDone(t *testing.T) {
	t.Parallel()
	src, err := trace.NewReader("t", bytes.NewReader([]byte(`{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]}
{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": "x"}
`)))
	require.NoError(t, err)
	defer src.Close()
	res, err := replay.Run(t.Context(), newStore(t, memstore.Options{}), src, replay.Options{BlockBytes: 100})
	var format *trace.FormatError
	require.True(t, errors.As(err, &format), "%v", err)
	assert.Equal(t, 2, format.Line)
	assert.Equal(t, 1, res.Requests)
}

func TestBadOptions(t *testing.T) {
	t.Parallel()
	st := newStore(t, memstore.Options{})
	for _, o := range []replay.Options{{BlockBytes: 0}, {BlockBytes: skep.MaxPartBytes + 1}, {BlockBytes: 1, Speed: -1}} {
		_, err := replay.Run(t.Context(), st, &list{}, o)
		assert.ErrorIs(t, err, skep.Invalid, "%+v", o)
	}
	ns, err := st.Namespaces(t.Context())
	require.NoError(t, err)
	assert.Empty(t, slices.Clone(ns))
}
