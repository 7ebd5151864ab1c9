package sparse_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/sparse"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/tools/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// told is what reads cost in tests whose outcome may not depend on how fast memory is.
var told = layout.ReadCost{Page: layout.PageSize / 3e9, Least: 1 / 5e5}

func options() sparse.Options { return sparse.Options{Window: 40, Workers: 2, Cost: told} }

// What reads cost is measured when a context is opened, unless it is told.
func TestReadsAreMeasured(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sp, c, _ := w.open(1 << 40)
	require.InDelta(t, told.Page, c.Info().PageSeconds, 1e-12)
	require.NoError(t, sp.Close(w.ctx))
	sp, err := sparse.New(w.inner, sparse.Options{Devices: 3})
	require.NoError(t, err)
	c, err = sp.OpenContext(w.ctx, w.scope, w.keys[len(w.keys)-1])
	require.NoError(t, err)
	first := c.Info()
	require.Positive(t, first.PageSeconds)
	require.NotEqual(t, told.Page, first.PageSeconds)
	w.whole(c, worldTokens)
	require.NotEqual(t, first.PageSeconds, c.Info().PageSeconds, "a fetch refines it")
	require.NoError(t, sp.Close(w.ctx))
}

func TestContractOnTheEngine(t *testing.T) {
	t.Parallel()
	storetest.RunSparse(t, func(t *testing.T) storetest.Sparsely {
		dir := t.TempDir()
		return func(t *testing.T) (skep.Store, skep.Sparse, func()) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			st, err := store.Open(ctx, store.Options{Dir: dir, DeviceCount: 4, CapacityBytes: 256 << 20, BlockBytes: 256 << 10})
			require.NoError(t, err)
			return opened(t, st, true)
		}
	})
}

func TestContractOnTheReference(t *testing.T) {
	t.Parallel()
	storetest.RunSparse(t, func(t *testing.T) storetest.Sparsely {
		st := memstore.New(memstore.Options{})
		t.Cleanup(func() { require.NoError(t, st.Close()) })
		return func(t *testing.T) (skep.Store, skep.Sparse, func()) { return opened(t, st, false) }
	})
}

func opened(t *testing.T, st skep.Store, closes bool) (skep.Store, skep.Sparse, func()) {
	o := options()
	o.Devices = 3
	sp, err := sparse.New(st, o)
	require.NoError(t, err)
	done := false
	return st, sp, func() {
		if done {
			return
		}
		done = true
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(t, sp.Close(ctx))
		if closes {
			require.NoError(t, st.Close())
		}
	}
}
