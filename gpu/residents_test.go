package gpu_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
)

// slow is a device whose next copy is done when somebody says so.
type slow struct {
	gpu.Device
	armed         atomic.Bool
	reached, done chan struct{}
}

type slowStream struct {
	gpu.Stream
	of *slow
}

func (d *slow) NewStream() (gpu.Stream, error) {
	s, err := d.Device.NewStream()
	return slowStream{s, d}, err
}

func (s slowStream) Sync(ctx context.Context) error {
	if s.of.armed.Swap(false) {
		close(s.of.reached)
		<-s.of.done
	}
	return s.Stream.Sync(ctx)
}

// What is in GPU memory is known while a copy out of it is under way: a look-up waits for no copy, and a restore begins.
func TestLookupsDoNotWaitForCopies(t *testing.T) {
	t.Parallel()
	d := &slow{Device: world(t).Device(0), reached: make(chan struct{}), done: make(chan struct{})}
	s, err := gpu.New(memstore.New(memstore.Options{}), gpu.Options{Device: d, Local: 3, BlockBytes: 32 << 10, Timeout: time.Minute})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	sc, keys := chains(t, s, 3)
	load(t, s, sc, keys)
	load(t, s, sc, keys)

	crew := storetest.NewCrew(t)
	d.armed.Store(true)
	crew.Go(func(t testing.TB) {
		ses, err := s.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys}}})
		require.NoError(t, err)
		var into [1]skep.Chunk
		_, err = ses.Next(t.Context(), into[:])
		require.NoError(t, err)
		into[0].Release()
		require.NoError(t, ses.Close(t.Context()))
	})
	<-d.reached // the copy is under way, and stays so
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	res, err := s.Lookup(ctx, &skep.LookupRequest{Scope: sc, Keys: keys, Tiers: true, Lease: skep.NoLease})
	require.NoError(t, err)
	require.Equal(t, 3, count(res.Tiers))
	ses, err := s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys}}})
	require.NoError(t, err)
	close(d.done)
	require.NoError(t, ses.Close(t.Context()))
	crew.Wait()
}
