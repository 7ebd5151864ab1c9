package gpu_test

import (
	"bytes"
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/gpu/gputest"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
)

// A prompt's blocks stay its own while they are being stored.
func TestAPromptIsClosedWhenItIsStored(t *testing.T) {
	t.Parallel()
	w := world(t)
	g := &putGate{Store: memstore.New(memstore.Options{}), reached: make(chan struct{}), opens: make(chan struct{})}
	s, err := gpu.New(g, gpu.Options{Device: w.Device(0), Local: 3, BlockBytes: 32 << 10, Layers: 4, Timeout: time.Minute})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	sc, keys := chains(t, s, 1)
	p, err := s.Prefill(t.Context(), &gpu.PrefillRequest{Scope: sc, Keys: keys})
	require.NoError(t, err)
	on, err := w.Device(0).NewStream()
	require.NoError(t, err)
	require.NoError(t, p.Step(1))
	for n := range 4 {
		p.Loaded(n, on)
		p.Written(n, on)
		p.Read(n, on)
	}
	g.armed.Store(true)
	crew := storetest.NewCrew(t)
	crew.Go(func(t testing.TB) {
		_, err := p.Commit(t.Context())
		require.NoError(t, err)
	})
	<-g.reached
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, p.Close(ended), skep.NotReleased)
	require.Equal(t, 1, s.Usage().Held)
	close(g.opens)
	crew.Wait()
	require.NoError(t, p.Close(t.Context()))
	require.Zero(t, s.Usage().Held)
	_, err = p.Commit(t.Context())
	require.ErrorIs(t, err, skep.Closed)
	require.NoError(t, on.Close())
}

// What is computed anew after the Store behind has lost it takes its name from the old bytes.
func TestAPromptComputedAnewTakesItsName(t *testing.T) {
	t.Parallel()
	w := world(t)
	behind := memstore.New(memstore.Options{})
	s, err := gpu.New(behind, gpu.Options{Device: w.Device(0), Local: 6, BlockBytes: 32 << 10, Layers: 4, Timeout: time.Minute})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	sc, keys := chains(t, s, 2)
	load(t, s, sc, keys)
	n, err := behind.Delete(t.Context(), sc, keys)
	require.NoError(t, err)
	require.Equal(t, 2, n, "behind GPU memory's back, as an eviction is")
	p, err := s.Prefill(t.Context(), &gpu.PrefillRequest{Scope: sc, Keys: keys})
	require.NoError(t, err)
	on, err := w.Device(0).NewStream()
	require.NoError(t, err)
	size := int64(gputest.BlockBytes)
	for i := range keys { // all in own memory: each whole block is in one place
		on.CopyIn(p.Place(i, 0), bytes.Repeat([]byte{byte(0xa0 + i)}, int(size)))
	}
	require.NoError(t, p.Step(2))
	for n := range 4 {
		p.Loaded(n, on)
		p.Written(n, on)
		p.Read(n, on)
	}
	res, err := p.Commit(t.Context())
	require.NoError(t, err)
	require.Equal(t, skep.Committed, res[1].Outcome)
	require.NoError(t, p.Close(t.Context()))
	mem := make([]byte, len(keys)*int(size))
	tiers := map[skep.Tier]int{}
	require.NoError(t, skep.Load(t.Context(), s, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys, Dest: skep.Destination{Memory: mem}}}},
		func(c *skep.Chunk) error {
			tiers[c.Tier]++
			return c.Err
		}))
	require.Equal(t, map[skep.Tier]int{skep.TierGPU: 2}, tiers)
	for i := range keys {
		want := bytes.Repeat([]byte{byte(0xa0 + i)}, int(size))
		require.True(t, bytes.Equal(want, mem[i*int(size):(i+1)*int(size)]), "block %d has its old bytes", i)
	}
	require.NoError(t, on.Close())
}

// putGate is a Store that stores its next blocks when somebody says so.
type putGate struct {
	skep.Store
	armed          atomic.Bool
	reached, opens chan struct{}
}

func (g *putGate) Put(ctx context.Context, r *skep.PutRequest) ([]skep.PutResult, error) {
	if g.armed.Swap(false) {
		close(g.reached)
		<-g.opens
	}
	return g.Store.Put(ctx, r)
}
