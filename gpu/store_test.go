package gpu_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/gpu/gputest"
	"github.com/skepkv/skep/gpu/sim"
	"github.com/skepkv/skep/layout/elastic"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/tools/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// front puts a simulated server's GPUs in front of an in-memory Store: 3 blocks local, 8
// lent by each of two others.
func front(t *testing.T, o memstore.Options) (*gpu.Store, *sim.World) {
	w := world(t)
	return frontIn(t, w, memstore.New(o)), w
}

func world(t *testing.T) *sim.World {
	so := sim.H20()
	so.Devices, so.MemoryBytes = 3, 16<<20
	w, err := sim.New(so)
	require.NoError(t, err)
	return w
}

// frontOf is front of another Store.
func frontOf(t *testing.T, behind skep.Store) *gpu.Store { return frontIn(t, world(t), behind) }

func frontIn(t *testing.T, w *sim.World, behind skep.Store) *gpu.Store {
	unit := elastic.Unit{Bytes: 64 << 10, LenderBlock: 48 << 10, BorrowerBlock: 32 << 10, Lender: 1, Borrower: 2}
	s, err := gpu.New(behind, gpu.Options{Device: w.Device(0), Local: 3, BlockBytes: 32 << 10, Timeout: 10 * time.Second, PinnedBytes: 1 << 20,
		Lenders: []gpu.Lender{{Device: w.Device(1), Unit: unit, Units: 5, Keep: 1}, {Device: w.Device(2), Unit: unit, Units: 5, Keep: 1}}})
	require.NoError(t, err)
	return s
}

func open(t *testing.T, c storetest.Config) skep.Store {
	s, _ := front(t, memstore.Options{CapacityBytes: c.CapacityBytes, TenantLeaseBytes: c.TenantLeaseBytes, TenantPinBytes: c.TenantPinBytes, TenantNamespaces: c.TenantNamespaces})
	return s
}

func TestContract(t *testing.T) {
	t.Parallel()
	storetest.Test(t, open)
}

// What the Store behind can do is not lost in front of it.
func TestWrapper(t *testing.T) {
	t.Parallel()
	storetest.Wrapper(t, memstore.New(memstore.Options{}), func(t *testing.T, behind skep.Store) skep.Store { return frontOf(t, behind) })
}

func TestRandom(t *testing.T) {
	t.Parallel()
	storetest.Random(t, open, storetest.RandomOptions{})
}

var chains, load, count = gputest.Chain, gputest.Load, gputest.FromGPU

// What was restored once comes out of GPU memory, own and lent, as far as it goes; lent
// memory that is given back takes its blocks along and nothing else.
func TestTiers(t *testing.T) {
	t.Parallel()
	s, _ := front(t, memstore.Options{})
	defer func() { require.NoError(t, s.Close()) }()
	sc, keys := chains(t, s, 12)
	require.Zero(t, count(load(t, s, sc, keys)))
	u := s.Usage()
	require.Equal(t, 3, u.Local)
	require.Equal(t, 9, u.Lent)
	require.True(t, u.Simulated)
	require.Equal(t, 12, count(load(t, s, sc, keys)))
	res, err := s.Lookup(context.Background(), &skep.LookupRequest{Scope: sc, Keys: keys, Tiers: true, Lease: skep.NoLease})
	require.NoError(t, err)
	require.Equal(t, 12, count(res.Tiers))

	require.NoError(t, s.Reclaim(0, 4))
	require.ErrorIs(t, s.Reclaim(0, 1), skep.Invalid)
	require.ErrorIs(t, s.Reclaim(2, 1), skep.Invalid)
	require.LessOrEqual(t, s.Usage().Lent, 8)
	load(t, s, sc, keys)
	require.NoError(t, s.Reclaim(0, -4))
}

// A block that was deleted and put again with other bytes is never served as it was.
func TestDeletedBlocksAreNotServed(t *testing.T) {
	t.Parallel()
	s, _ := front(t, memstore.Options{})
	defer func() { require.NoError(t, s.Close()) }()
	sc, keys := chains(t, s, 2)
	load(t, s, sc, keys)
	require.Equal(t, 2, count(load(t, s, sc, keys)))
	n, err := s.Delete(context.Background(), sc, keys[:1])
	require.NoError(t, err)
	require.Equal(t, 1, n)
	ses, err := s.Restore(context.Background(), &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys}}})
	require.NoError(t, err)
	into := make([]skep.Chunk, 4)
	for got := 0; got < 2; {
		n, err := ses.Next(context.Background(), into)
		require.NoError(t, err)
		for _, c := range into[:n] {
			require.ErrorIs(t, c.Err, skep.NotFound, "its child is hidden too")
		}
		got += n
	}
	require.NoError(t, ses.Close(context.Background()))
	require.NoError(t, s.Purge(context.Background(), skep.Purge{Tenant: "t"}))
	require.Zero(t, s.Usage().Local)
}

func TestBadOptions(t *testing.T) {
	t.Parallel()
	w, err := sim.New(sim.H20())
	require.NoError(t, err)
	unit := elastic.Unit{Bytes: 4096, LenderBlock: 1, BorrowerBlock: 10, Lender: 1, Borrower: 1}
	for name, o := range map[string]gpu.Options{
		"no device": {BlockBytes: 1}, "no block": {Device: w.Device(0)}, "negative": {Device: w.Device(0), BlockBytes: 1, Local: -1},
		"timeout":             {Device: w.Device(0), BlockBytes: 1, Timeout: -1},
		"layers":              {Device: w.Device(0), BlockBytes: 1, Layers: 2},
		"blocks do not fit":   {Device: w.Device(0), BlockBytes: 11, Lenders: []gpu.Lender{{Device: w.Device(1), Unit: unit, Units: 1}}},
		"no units":            {Device: w.Device(0), BlockBytes: 10, Lenders: []gpu.Lender{{Device: w.Device(1), Unit: unit}}},
		"a lender without it": {Device: w.Device(0), BlockBytes: 10, Lenders: []gpu.Lender{{Unit: unit, Units: 1}}},
	} {
		_, err := gpu.New(memstore.New(memstore.Options{}), o)
		require.ErrorIs(t, err, skep.Invalid, name)
	}
}

// Claims on a chain whose head came out of GPU memory: that is loaded, the rest is the Store
// behind's to grant.
func TestClaims(t *testing.T) {
	t.Parallel()
	s, _ := front(t, memstore.Options{})
	defer func() { require.NoError(t, s.Close()) }()
	ctx := context.Background()
	sc, keys := chains(t, s, 8)
	load(t, s, sc, keys[:4])
	claim := func(d skep.Direction, blocks, r skep.Subset) (c skep.Claim) {
		ses, err := s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys, Blocks: blocks, Direction: d}}})
		require.NoError(t, err)
		_, err = ses.Claim(ctx, 0, skep.Only(0, 1000), skep.Idle)
		require.ErrorIs(t, err, skep.Invalid)
		_, err = ses.Claim(ctx, 1, r, skep.Idle)
		require.ErrorIs(t, err, skep.Invalid)
		c, err = ses.Claim(ctx, 0, r, skep.Idle)
		require.NoError(t, err)
		require.NoError(t, ses.Stop(ctx, 0))
		_, err = ses.Claim(ctx, 0, r, skep.Idle)
		require.ErrorIs(t, err, skep.Stopped)
		require.NoError(t, ses.Close(ctx))
		_, err = ses.Claim(ctx, 0, r, skep.Idle)
		require.Error(t, err)
		return c
	}
	whole, some := skep.All, skep.Only(1, 4)
	c := claim(skep.HeadFirst, whole, skep.Only(0, 32))
	require.Zero(t, c.Granted.Len())
	require.Equal(t, 64, c.Next)
	require.Equal(t, skep.Claim{Granted: skep.Range{From: 0, To: 16}, Next: 64}, claim(skep.TailFirst, some, skep.Only(0, 32)))
	require.Equal(t, skep.Claim{Granted: skep.Range{From: 70, To: 80}, Next: 80}, claim(skep.TailFirst, some, skep.Only(70, 80)))
	require.Equal(t, skep.Claim{Granted: skep.Range{From: 0, To: 16}, Next: 64}, claim(skep.HeadFirst, some, skep.Only(0, 16)))
	require.Equal(t, 4, claim(skep.LayersUp, some, skep.Only(1, 2)).Next)
}
