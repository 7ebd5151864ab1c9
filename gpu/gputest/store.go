package gputest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/layout/elastic"
)

// BlockBytes is the size of Chain's blocks.
const BlockBytes = 32 << 10

// ChainShape is the shape of what Chain puts.
var ChainShape = skep.Shape{Kind: skep.Attention, Layers: 4, KVHeads: 2, HeadDim: 64, Element: skep.BF16, BlockTokens: 16}

// Chain puts a chain of n blocks into a new namespace.
func Chain(t testing.TB, s skep.Store, n int) (skep.Scope, []skep.Key) {
	return chainNamed(t, s, "n", n)
}

func chainNamed(t testing.TB, s skep.Store, name string, n int) (skep.Scope, []skep.Key) {
	ctx := context.Background()
	ns, err := s.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "t", Name: name, Model: "m", Shape: ChainShape, Copies: 1, Chained: true})
	require.NoError(t, err)
	r := &skep.PutRequest{Scope: skep.Scope{Namespace: ns.ID}}
	var keys []skep.Key
	for i := range n {
		keys = append(keys, skep.KeyOf([]byte{byte(i)}))
		r.Blocks = append(r.Blocks, skep.Block{Key: keys[i], Parts: []skep.Part{{Bytes: content(i)}}})
	}
	res, err := s.Put(ctx, r)
	require.NoError(t, err)
	for _, x := range res {
		require.Equal(t, skep.Committed, x.Outcome)
	}
	return r.Scope, keys
}

func content(i int) []byte {
	b := make([]byte, BlockBytes)
	for j := range b {
		b[j] = byte(j*7 + j>>8*31 + i + 1) // no two layers are alike
	}
	return b
}

// Load restores what Chain put, checks every byte, and says where the blocks came from.
func Load(t testing.TB, s skep.Store, sc skep.Scope, keys []skep.Key) (tiers []skep.Tier) {
	t.Helper()
	ctx := context.Background()
	mem := make([]byte, len(keys)*BlockBytes)
	ses, err := s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys, Dest: skep.Destination{Memory: mem}}}})
	require.NoError(t, err)
	tiers = make([]skep.Tier, len(keys))
	for into := make([]skep.Chunk, 4); ; {
		n, err := ses.Next(ctx, into)
		for _, c := range into[:n] {
			require.NoError(t, c.Err)
			tiers[c.Block] = c.Tier
			c.Release()
		}
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
	}
	require.NoError(t, ses.Close(ctx))
	for i := range keys {
		require.Equal(t, content(i), mem[i*BlockBytes:(i+1)*BlockBytes], "block %d", i)
	}
	return tiers
}

// FromGPU is how many of Load's blocks came out of GPU memory.
func FromGPU(tiers []skep.Tier) (n int) {
	for _, x := range tiers {
		if x == skep.TierGPU {
			n++
		}
	}
	return n
}

const lentUnits = 5

var unit = elastic.Unit{Bytes: 64 << 10, LenderBlock: 48 << 10, BorrowerBlock: BlockBytes, Lender: 1, Borrower: 2}

// pinnedBytes is room for the whole chain, and no more.
const pinnedBytes = 11 * BlockBytes

// front puts the machine's devices in front of a Store: 3 blocks local, 8 lent, of memory
// that the caller gives and keeps. What a restore brings no memory for lands in pinned memory.
func front(m Machine, behind skep.Store, lent gpu.Memory, timeout time.Duration) (*gpu.Store, error) {
	pinned := int64(0)
	if _, ok := m.Devices[0].(gpu.Pinner); ok {
		pinned = pinnedBytes
	}
	return gpu.New(behind, gpu.Options{Device: m.Devices[0], Local: 3, BlockBytes: BlockBytes, Timeout: timeout, PinnedBytes: pinned, DirectBytes: BlockBytes,
		Lenders: []gpu.Lender{{Device: m.Devices[1], Unit: unit, Units: lentUnits, Keep: 1, Memory: lent}}})
}

// Whatever happens to a GPU costs time: every byte comes right, from behind if need be.
func testFailures(t *testing.T, open Open, behind func() skep.Store) {
	for _, tt := range []struct {
		name  string
		fail  func(f Faults, lent gpu.Memory, round int)
		ends  bool // the tier is out of use
		stuck bool // and its devices never end their work
		times int
	}{
		{name: "own device gone", fail: func(f Faults, _ gpu.Memory, _ int) { f.Fail(0) }, ends: true, times: 1},
		{name: "lender gone", fail: func(f Faults, _ gpu.Memory, _ int) { f.Fail(1) }, ends: true, times: 1},
		{name: "a bit flips", fail: func(f Faults, _ gpu.Memory, _ int) { f.Flip(0) }, times: 4},
		{name: "lent memory revoked in mid-copy", fail: func(f Faults, lent gpu.Memory, round int) { f.Revoke(lent, round) }, ends: true, times: 12},
		{name: "hangs", fail: func(f Faults, _ gpu.Memory, _ int) { f.Hang(0) }, ends: true, stuck: true, times: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			times := tt.times
			if testing.Short() {
				times = min(times, 4)
			}
			for round := range times {
				m := open(t, Config{Seed: uint64(round)})
				f := m.faults(t)
				lent := alloc(t, m.Devices[1], lentUnits*unit.Bytes)
				timeout := time.Minute
				if tt.stuck {
					timeout = 20 * time.Millisecond
				}
				s, err := front(m, behind(), lent, timeout)
				require.NoError(t, err)
				sc, keys := Chain(t, s, 11)
				Load(t, s, sc, keys)
				if !tt.stuck { // else a slow machine may have ended it
					require.Equal(t, 11, FromGPU(Load(t, s, sc, keys)))
				}
				lend(t, s, sc, keys)
				tt.fail(f, lent, round)
				if tt.ends && round%2 == 1 {
					lend(t, s, sc, keys)
				}
				require.Less(t, FromGPU(Load(t, s, sc, keys)), 11)
				Load(t, s, sc, keys)
				require.Equal(t, tt.ends, s.Usage().Failed != nil)
				lend(t, s, sc, keys)
				require.NoError(t, s.Close())
				if m.Pinned != nil && !tt.stuck { // else a copy may still write there: the device's end gives it back
					require.Zero(t, m.Pinned(), "pinned memory that nobody gave back")
				}
				if tt.stuck {
					f.Fail(0) // so that the device can be closed
				}
				m.close(t)
			}
		})
	}
}

// lend restores the chain into memory the Store lends, compares it, and gives it back in another
// order, some of it after the session.
func lend(t testing.TB, s *gpu.Store, sc skep.Scope, keys []skep.Key) (pinned int64) {
	t.Helper()
	ctx := context.Background()
	ses, err := s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys}}})
	require.NoError(t, err)
	var held []skep.Chunk
	for into := make([]skep.Chunk, 4); ; {
		n, err := ses.Next(ctx, into)
		held = append(held, into[:n]...)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
	}
	require.Len(t, held, len(keys))
	for i := range held {
		require.NoError(t, held[i].Err)
		require.Equal(t, content(held[i].Block), bytes.Join(held[i].Data, nil), "block %d", held[i].Block)
		if i%2 == 0 {
			held[i].Release()
		}
	}
	pinned = s.Usage().Landing
	require.NoError(t, ses.Close(ctx))
	for i := range held {
		held[i].Release()
	}
	require.Zero(t, s.Usage().Landing, "all of it is back")
	return pinned
}

// A device without room refuses the tier, whichever allocation fails; what was taken is
// given back, and the Store behind is still the caller's.
func testNoRoom(t *testing.T, open Open, behind func() skep.Store) {
	type fault struct {
		name string
		set  func(f Faults, nth int)
	}
	for _, what := range []fault{
		{"own memory", func(f Faults, nth int) { f.FailAlloc(0, nth) }},
		{"a lender's memory", func(f Faults, nth int) { f.FailAlloc(1, nth) }},
		{"pinned memory", func(f Faults, nth int) { f.FailPin(0, nth) }},
	} {
		t.Run(what.name, func(t *testing.T) {
			refused := 0
			for nth := 1; ; nth++ {
				m := open(t, Config{})
				f := m.faults(t)
				b := behind()
				what.set(f, nth)
				s, err := front(m, b, nil, time.Minute)
				if err != nil {
					require.ErrorIs(t, err, skep.NoMemory)
					if m.Pinned != nil {
						require.Zero(t, m.Pinned())
					}
					refused++
					s, err = front(m, b, nil, time.Minute)
					require.NoError(t, err, "the next time there is room")
				} else {
					require.Equal(t, nth-1, refused, "every allocation but none after the last")
				}
				sc, keys := Chain(t, s, 11)
				lend(t, s, sc, keys)
				Load(t, s, sc, keys)
				require.Equal(t, 11, FromGPU(Load(t, s, sc, keys)))
				lend(t, s, sc, keys)
				require.NoError(t, s.Close())
				if m.Pinned != nil {
					require.Zero(t, m.Pinned())
				}
				m.close(t)
				if refused < nth {
					return
				}
			}
		})
	}
}

// testLanding: restores that bring no memory of their own land in pinned memory, as far as there
// is any, and all of it comes back whatever becomes of the session.
func testLanding(t *testing.T, open Open, behind func() skep.Store) {
	m := open(t, Config{Seed: 17})
	if _, ok := m.Devices[0].(gpu.Pinner); !ok {
		t.Skip("no pinned memory")
	}
	s, err := front(m, behind(), nil, time.Minute)
	require.NoError(t, err)
	sc, keys := Chain(t, s, 11)
	u := s.Usage()
	require.EqualValues(t, pinnedBytes, u.Pinned)
	require.Zero(t, u.Landing)
	require.EqualValues(t, pinnedBytes, lend(t, s, sc, keys), "from behind: one piece, till the last chunk of it is back")
	require.EqualValues(t, 5*BlockBytes, lend(t, s, sc, keys), "out of GPU memory: block by block")
	require.EqualValues(t, pinnedBytes, s.Usage().MostLanding)
	require.Zero(t, s.Usage().Unpinned)

	ctx := context.Background()
	restore := func(window int64, from int) skep.Session {
		ses, err := s.Restore(ctx, &skep.RestoreRequest{Window: window, Chains: []skep.Chain{{Scope: sc, Keys: keys, Blocks: skep.Only(from, 11)}}})
		require.NoError(t, err)
		return ses
	}
	read := func(ses skep.Session, n int) (held []skep.Chunk) {
		for chunks := make([]skep.Chunk, n); len(held) < n; {
			k, err := ses.Next(ctx, chunks[:n-len(held)])
			require.NoError(t, err)
			held = append(held, chunks[:k]...)
		}
		return held
	}
	a := restore(0, 0) // all in GPU memory
	require.Zero(t, s.Usage().Landing, "nothing is copied before it is asked for")
	held := read(a, 11) // it takes all there is
	require.EqualValues(t, pinnedBytes, s.Usage().Landing)
	lendHeap := restore(0, 3)
	held = append(held, read(lendHeap, 8)...)
	require.EqualValues(t, 8, s.Usage().Unpinned, "no room: on the heap")
	require.NoError(t, lendHeap.Close(ctx))
	require.NoError(t, a.Close(ctx), "while it lends all")
	for i := range held {
		held[i].Release()
	}
	require.Zero(t, s.Usage().Landing)

	require.NoError(t, s.Reclaim(0, lentUnits-1)) // what is left is in own memory
	_, err = s.Delete(ctx, sc, keys[3:])
	require.NoError(t, err)
	b := restore(BlockBytes, 0)
	into := make([]skep.Chunk, 11)
	_, err = b.Next(ctx, into)
	require.NoError(t, err)
	require.NoError(t, b.Close(ctx), "in the middle")
	for i := range into {
		into[i].Release()
	}
	require.Zero(t, s.Usage().Landing)

	last := restore(0, 0)
	n, err := last.Next(ctx, into)
	require.NoError(t, err)
	require.NoError(t, last.Close(ctx))
	require.NoError(t, s.Close(), "while chunks lend it")
	if m.Pinned != nil && n > 0 && into[0].Err == nil {
		require.NotZero(t, m.Pinned(), "it stays as long as they do")
	}
	for i := range into[:n] {
		into[i].Release()
	}
	if m.Pinned != nil {
		require.Zero(t, m.Pinned())
	}
	m.close(t)
}
