package gputest

import (
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

// Chain puts a chain of n blocks into a new namespace.
func Chain(t testing.TB, s skep.Store, n int) (skep.Scope, []skep.Key) {
	ctx := context.Background()
	shape := skep.Shape{Kind: skep.Attention, Layers: 4, KVHeads: 2, HeadDim: 64, Element: skep.BF16, BlockTokens: 16}
	ns, err := s.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "t", Name: "n", Model: "m", Shape: shape, Copies: 1, Chained: true})
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
		b[j] = byte(j*7 + i + 1)
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

// front puts the machine's devices in front of a Store: 3 blocks local, 8 lent, of memory
// that the caller gives and keeps.
func front(m Machine, behind skep.Store, lent gpu.Memory, timeout time.Duration) (*gpu.Store, error) {
	return gpu.New(behind, gpu.Options{Device: m.Devices[0], Local: 3, BlockBytes: BlockBytes, Timeout: timeout,
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
				tt.fail(f, lent, round)
				require.Less(t, FromGPU(Load(t, s, sc, keys)), 11)
				Load(t, s, sc, keys)
				require.Equal(t, tt.ends, s.Usage().Failed != nil)
				require.NoError(t, s.Close())
				if tt.stuck {
					f.Fail(0) // so that the device can be closed
				}
				m.close(t)
			}
		})
	}
}

// A device without room refuses the tier, whichever allocation fails; what was taken is
// given back, and the Store behind is still the caller's.
func testNoRoom(t *testing.T, open Open, behind func() skep.Store) {
	for device := range 2 {
		m := open(t, Config{})
		m.faults(t).FailAlloc(device, 1)
		b := behind()
		_, err := front(m, b, nil, time.Minute)
		require.ErrorIs(t, err, skep.NoMemory)
		s, err := front(m, b, nil, time.Minute)
		require.NoError(t, err, "the next time there is room")
		sc, keys := Chain(t, s, 11)
		Load(t, s, sc, keys)
		require.Equal(t, 11, FromGPU(Load(t, s, sc, keys)))
		require.NoError(t, s.Close())
		m.close(t)
	}
}
