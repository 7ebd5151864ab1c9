package gpu_test

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/gpu/sim"
	"github.com/skepkv/skep/layout/elastic"
	"github.com/skepkv/skep/store/memstore"
)

// A lender that comes, gives more, takes back, falls silent and goes.
func TestAttach(t *testing.T) {
	t.Parallel()
	o := sim.H20()
	o.Devices, o.MemoryBytes = 2, 16<<20
	w, err := sim.New(o)
	require.NoError(t, err)
	arena, err := w.Device(1).Alloc(6 * 64 << 10)
	require.NoError(t, err)
	s, err := gpu.New(memstore.New(memstore.Options{}), gpu.Options{Device: w.Device(0), BlockBytes: 32 << 10})
	require.NoError(t, err)
	defer func() {
		require.NoError(t, s.Close())
		require.NoError(t, arena.Free())
		require.Zero(t, w.Left(), "memory and streams, also of what was refused")
	}()
	sc, keys := chains(t, s, 8)
	load(t, s, sc, keys)
	require.Zero(t, count(load(t, s, sc, keys)), "there is no GPU memory yet")

	usable := true
	unit := elastic.Unit{Bytes: 64 << 10, LenderBlock: 48 << 10, BorrowerBlock: 32 << 10, Lender: 1, Borrower: 2}
	lent := gpu.Lender{Device: w.Device(1), Unit: unit, Units: 6, Keep: 4, Memory: arena, Usable: func() bool { return usable }}
	id, err := s.Attach(lent)
	require.NoError(t, err)
	load(t, s, sc, keys)
	require.Equal(t, 4, s.Usage().Lent, "two units of two blocks")
	require.NoError(t, s.Reclaim(id, -2))
	load(t, s, sc, keys)
	require.Equal(t, 8, s.Usage().Lent)
	require.Equal(t, 8, count(load(t, s, sc, keys)))

	usable = false
	require.Zero(t, count(load(t, s, sc, keys)), "the lease has ended")
	usable = true
	require.NoError(t, s.Reclaim(id, 3))
	require.LessOrEqual(t, s.Usage().Lent, 2)
	require.NoError(t, s.Detach(id))
	require.Zero(t, s.Usage().Lent)
	require.ErrorIs(t, s.Detach(id), skep.Invalid)
	require.ErrorIs(t, s.Reclaim(id, 1), skep.Invalid)
	load(t, s, sc, keys)

	again, err := s.Attach(lent)
	require.NoError(t, err)
	require.Equal(t, id, again)
	lent.Units = 1 << 20
	_, err = s.Attach(lent)
	require.ErrorIs(t, err, skep.Invalid, "more than the memory has")
}

// landed is a Store whose sessions deliver only when every chunk has landed: those that landed
// before a Stop are delivered after it.
type landed struct{ skep.Store }

type landedSession struct {
	skep.Session
	ready []skep.Chunk
}

func (l landed) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	s := &landedSession{}
	var err error
	if s.Session, err = l.Store.Restore(ctx, r); err != nil {
		return nil, err
	}
	for into := make([]skep.Chunk, 8); err == nil; {
		var n int
		n, err = s.Session.Next(ctx, into)
		s.ready = append(s.ready, into[:n]...)
	}
	return s, nil
}

func (s *landedSession) Next(_ context.Context, into []skep.Chunk) (int, error) {
	n := copy(into, s.ready)
	if s.ready = s.ready[n:]; n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// Once Stop has returned the destination is the caller's: what it writes there is not kept for
// the block that landed before.
func TestStoppedMemoryIsNotKept(t *testing.T) {
	t.Parallel()
	o := sim.H20()
	o.Devices, o.MemoryBytes = 1, 16<<20
	w, err := sim.New(o)
	require.NoError(t, err)
	s, err := gpu.New(landed{memstore.New(memstore.Options{})}, gpu.Options{Device: w.Device(0), Local: 8, BlockBytes: 32 << 10})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	sc, keys := chains(t, s, 8)
	mem := make([]byte, len(keys)*32<<10)
	ctx := context.Background()
	ses, err := s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys, Dest: skep.Destination{Memory: mem}}}})
	require.NoError(t, err)
	into := make([]skep.Chunk, 1)
	_, err = ses.Next(ctx, into)
	require.NoError(t, err)
	require.NoError(t, ses.Stop(ctx, 0))
	clear(mem)
	for err == nil {
		_, err = ses.Next(ctx, into)
	}
	require.True(t, errors.Is(err, io.EOF))
	require.NoError(t, ses.Close(ctx))
	load(t, s, sc, keys) // compares every byte
	require.Equal(t, 8, count(load(t, s, sc, keys)))
}

// heard is a Store that tells what it was asked to restore, and does not.
type heard struct {
	skep.Store
	asked *skep.RestoreRequest
}

func (h *heard) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	if r.Chains[0].Compute == nil {
		return h.Store.Restore(ctx, r)
	}
	h.asked = r
	return nil, skep.Unsupported
}

// A chain that is computed too is the Store behind's, whatever is in GPU memory, and its boundary's
// number is that of the chains the Store behind is given.
func TestChainsThatAreComputedGoBehind(t *testing.T) {
	t.Parallel()
	o := sim.H20()
	o.Devices, o.MemoryBytes = 1, 16<<20
	w, err := sim.New(o)
	require.NoError(t, err)
	behind := &heard{Store: memstore.New(memstore.Options{})}
	s, err := gpu.New(behind, gpu.Options{Device: w.Device(0), Local: 8, BlockBytes: 32 << 10})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	sc, keys := chains(t, s, 4)
	load(t, s, sc, keys)
	require.Equal(t, 4, count(load(t, s, sc, keys)))
	cost := skep.RecomputeCost{PerToken: 1}
	compute := &skep.Compute{Cost: cost, Boundary: &skep.Boundary{Chain: 2, BytesPerToken: 1}}
	_, err = s.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{
		{Scope: sc, Keys: keys}, // all of it is in GPU memory
		{Scope: sc, Keys: keys, Direction: skep.TailFirst, Compute: compute},
		{Scope: sc, Keys: keys, Part: skep.Split{2}.BoundaryPart(1)},
	}})
	require.ErrorIs(t, err, skep.Unsupported)
	require.Len(t, behind.asked.Chains, 2)
	require.Equal(t, 4, len(behind.asked.Chains[0].Keys))
	require.Equal(t, &skep.Compute{Cost: cost, Boundary: &skep.Boundary{Chain: 1, BytesPerToken: 1}}, behind.asked.Chains[0].Compute)
	require.Equal(t, 2, compute.Boundary.Chain, "the caller's own stays as it is")
}
