package store

import (
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
)

// turnsReadOnly has the catalog's file system take no changes while fixed is set, but for syncs, and counts those that
// it refused.
func turnsReadOnly(o *Options, fixed *atomic.Bool) *atomic.Int64 {
	refused := new(atomic.Int64)
	o.CatalogFS = errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		switch op.Kind {
		case errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo, errorfs.OpFileClose:
			return nil
		}
		if fixed.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			refused.Add(1)
			return syscall.EROFS
		}
		return nil
	}))
	return refused
}

// turning is a store whose catalog's file system takes no changes while fixed is set.
type turning struct {
	o       Options
	fixed   atomic.Bool
	refused *atomic.Int64
	s       *Store
	sc      skep.Scope
	keys    []skep.Key // a durable chain that it has
}

// beforeReadOnly opens such a store, whose file system is yet for writing.
func beforeReadOnly(t *testing.T, scarce time.Duration) *turning {
	t.Helper()
	w := &turning{o: small(tempRoot(t, "store")), keys: chainKeys(1, 5)}
	w.refused = turnsReadOnly(&w.o, &w.fixed)
	w.o.CacheBytes, w.o.catalogScarce = -1, scarce
	var err error
	w.s, err = Open(testContext(t), w.o)
	require.NoError(t, err)
	w.sc = openSpace(t, w.s, "n", skep.Durable, 1, true)
	requireOutcome(t, skep.Committed, putRun(t, w.s, w.sc, w.keys, 3000))
	return w
}

// The file system of the catalog is mounted for reading while the store serves, for longer than anything else is waited
// for: what is there is found and read, puts and deletions are refused as read-only, the state says why, and once it is
// mounted for writing all goes on, with what was acknowledged, without a restart.
func TestTheCatalogsFileSystemTurnsReadOnly(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	w := beforeReadOnly(t, time.Nanosecond)
	s, sc, keys := w.s, w.sc, w.keys

	w.fixed.Store(true)
	crew := storetest.NewCrew(t)
	crew.Go(func(t testing.TB) { // it is the first that meets it, and waits
		_, err := s.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "t", Name: "other", Shape: anySize})
		require.NoError(t, err)
	})
	eventually(t, "the state says it", func() bool {
		st, err := s.Stats(ctx)
		return err == nil && len(st.State) > 9 && st.State[:9] == "read-only"
	})
	for tries := int64(1); tries < 20; tries = w.refused.Load() { // more often than one is made that waits for space
		requireChain(t, s, sc, keys, 3000)
		for _, r := range putRun(t, s, sc, chainKeys(2, 2), 3000) {
			require.Equal(t, skep.PutResult{Outcome: skep.Declined, Reason: skep.ReadOnly}, r)
		}
		_, err := s.Delete(ctx, sc, keys)
		require.ErrorIs(t, err, skep.ReadOnly)
		require.ErrorContains(t, err, "file system")
	}
	st, err := s.Stats(ctx)
	require.NoError(t, err)
	require.Positive(t, st.PutDeclined[skep.ReadOnly.Error()])

	w.fixed.Store(false)
	crew.Wait()
	eventually(t, "it is well", func() bool { st, err := s.Stats(ctx); return err == nil && st.State == "ok" })
	requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(2, 2), 3000))
	require.NoError(t, s.Close())
	s, err = Open(ctx, w.o)
	require.NoError(t, err)
	requireChain(t, s, sc, keys, 3000)
	requireChain(t, s, sc, chainKeys(2, 2), 3000)
	require.NoError(t, s.Close())
}

// A store whose catalog waits for its file system closes all the same: it says that it did not end well, and the next
// open, which can write, finds what was acknowledged.
//
// The catalog has failed then and leaves goroutines behind, so this runs in a process of its own.
func TestCloseOnAReadOnlyFileSystem(t *testing.T) {
	t.Parallel()
	if !alone(t) {
		return
	}
	ctx := testContext(t)
	w := beforeReadOnly(t, 0)
	s, sc, keys := w.s, w.sc, w.keys

	w.fixed.Store(true)
	crew := storetest.NewCrew(t)
	crew.Go(func(t testing.TB) {
		_, err := s.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "t", Name: "other", Shape: anySize})
		require.Error(t, err)
	})
	eventually(t, "it is waited for", func() bool { return w.refused.Load() > 0 })
	require.ErrorIs(t, s.Close(), skep.Failed)
	crew.Wait()
	w.fixed.Store(false)
	s, err := Open(ctx, w.o)
	require.NoError(t, err)
	requireChain(t, s, sc, keys, 3000)
	require.NoError(t, s.Close())
}
