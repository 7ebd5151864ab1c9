package sparse_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/sparse"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/tools/drawn"
)

// engine is a world on the engine, whose drives and catalog can be copied at any moment: what a
// process that is killed then leaves.
type engine struct {
	*world
	fs   *vfs.MemFS
	mu   sync.Mutex
	mems []*device.Memory
	hook func() // before each write of the catalog's file system; mu
	st   *store.Store
}

func (e *engine) options(fs vfs.FS) store.Options {
	return store.Options{Dir: e.t.TempDir(), DeviceCount: 3, CapacityBytes: 48 << 20, BlockBytes: 256 << 10, IOBytes: 16 << 20, CacheBytes: 4 << 20,
		CatalogFS: fs, CatalogDir: "/catalog", FlushInterval: time.Minute, OpenDevice: e.device}
}

func (e *engine) device(i int, _ string, create bool, size int64) (device.Device, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for len(e.mems) <= i {
		e.mems = append(e.mems, nil)
	}
	switch {
	case create:
		e.mems[i] = device.NewMemory(size)
	case e.mems[i] == nil:
		return nil, os.ErrNotExist
	default:
		e.mems[i] = e.mems[i].Clone()
	}
	return e.mems[i], nil
}

// MaybeError implements errorfs.Injector.
func (e *engine) MaybeError(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.hook != nil {
			e.hook()
		}
	}
	return nil
}

func (e *engine) String() string { return "engine" }

func newEngine(t *testing.T) *engine {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	e := &engine{world: &world{t: t, ctx: ctx}, fs: vfs.NewCrashableMem()}
	e.start(errorfs.Wrap(storetest.CrashFS(e.fs), e))
	ns, err := e.st.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: shape, Chained: true, Class: skep.Durable})
	require.NoError(t, err)
	e.scope = skep.Scope{Namespace: ns.ID, Salt: "pepper"}
	e.putChain()
	return e
}

func (e *engine) start(fs vfs.FS) {
	e.t.Helper()
	st, err := store.Open(e.ctx, e.options(fs))
	require.NoError(e.t, err)
	e.st, e.inner = st, st
}

// context opens the engine's context, or makes it.
func (e *engine) context() (*sparse.Sparse, skep.SparseContext) {
	e.t.Helper()
	sp, err := sparse.New(e.st, sparse.Options{Window: 4, Cost: told, Alone: true})
	require.NoError(e.t, err)
	c, err := sp.Cluster(e.ctx, &skep.ClusterRequest{Scope: e.scope, Keys: e.keys, QueryHeads: 2})
	require.NoError(e.t, err)
	return sp, c
}

func (e *engine) close(sp *sparse.Sparse) {
	require.NoError(e.t, sp.Close(e.ctx))
	require.NoError(e.t, e.st.Close())
}

// sound requires that the store is, with so many layers in rows and none that are stale.
func (e *engine) sound(layers int) {
	e.t.Helper()
	rep, err := store.Verify(e.ctx, e.options(e.fs), store.VerifyOptions{})
	require.NoError(e.t, err)
	require.True(e.t, rep.Sound, "%v", rep.Faults)
	require.Equal(e.t, [2]int{layers, 0}, [2]int{rep.Sides, rep.StaleSides})
}

// appendAll appends tokens, in clusters after a while, and gives how many there are then.
func (e *engine) appendAll(c skep.SparseContext, from, n int) int {
	for i := range n {
		_, err := c.Append(e.ctx, [][]byte{latent(from + i)})
		require.NoError(e.t, err)
		require.NoError(e.t, observe(e.world, c, 1, false))
	}
	return from + n
}

// Medoids and routes are rows of the catalog, which an open reads in place of the block, made
// anew where they are missing, and gone with their chain.
func TestArrangementsAreRows(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	sp, c := e.context()
	require.NoError(t, observe(e.world, c, 200, true))
	r, err := c.Recluster(e.ctx, 0)
	require.NoError(t, err)
	require.True(t, r.Kept)
	n := e.appendAll(c, worldTokens, 3*64)
	rows := c.Info().PerLayer[0].RowBytes
	require.Positive(t, rows)
	require.Greater(t, c.Info().PerLayer[0].Records, worldTokens, "some were written")
	before, err := c.Clusters(0)
	require.NoError(t, err)
	e.close(sp)
	e.sound(1)

	e.start(e.fs)
	sp, c = e.context()
	after, err := c.Clusters(0)
	require.NoError(t, err)
	require.Equal(t, before.Members, after.Members)
	require.Equal(t, rows, c.Info().PerLayer[0].RowBytes)
	e.whole(c, n)
	e.close(sp)

	_, err = store.Rebuild(e.ctx, e.options(e.fs), false, nil) // the devices alone
	require.NoError(t, err)
	e.start(e.fs)
	sp, c = e.context()
	require.Equal(t, rows, c.Info().PerLayer[0].RowBytes, "made anew from the block")
	e.whole(c, n)
	e.close(sp)
	e.sound(1)

	e.start(e.fs)
	sp, _ = e.context()
	require.NoError(t, sp.DropContext(e.ctx, e.scope, e.keys[len(e.keys)-1]))
	e.close(sp)
	e.sound(0)
}

// A process is killed at any write of the catalog while a context is made, observed, appended to
// and reclustered: what was acknowledged is there, in one arrangement, and rows agree with it.
func TestRowsSurviveADeathAnywhere(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	type death struct {
		fs        *vfs.MemFS
		mems      []*device.Memory
		made      bool
		entries   int // acknowledged
		clustered uint64
	}
	var deaths []death
	now := death{entries: worldTokens}
	seed := drawn.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 2))
	e.hook = func() {
		if odds := 6; rng.IntN(odds) > 0 || len(deaths) > 60 {
			return
		}
		d := now
		d.fs = e.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng})
		for _, m := range e.mems {
			d.mems = append(d.mems, m.Clone())
		}
		deaths = append(deaths, d)
	}
	tell := func(f func()) {
		e.mu.Lock()
		defer e.mu.Unlock()
		f()
	}
	sp, c := e.context()
	tell(func() { now.made = true })
	require.NoError(t, observe(e.world, c, 200, true))
	require.NoError(t, c.Flush(e.ctx))
	for i := range 2 * 64 {
		_, err := c.Append(e.ctx, [][]byte{latent(worldTokens + i)})
		require.NoError(t, err)
		tell(func() { now.entries++ })
		require.NoError(t, observe(e.world, c, 1, true))
	}
	r, err := c.Recluster(e.ctx, 0)
	require.NoError(t, err)
	require.True(t, r.Kept)
	tell(func() { now.clustered = 2; e.hook = nil })
	e.close(sp)
	deaths = append(deaths, death{e.fs, e.mems, true, now.entries, 2})

	for i, d := range deaths {
		e.fs, e.mems = d.fs, d.mems
		e.start(e.fs)
		sp, err := sparse.New(e.st, sparse.Options{Window: 4, Cost: told, Alone: true})
		require.NoError(t, err)
		c, err := sp.OpenContext(e.ctx, e.scope, e.keys[len(e.keys)-1])
		if errors.Is(err, skep.NotFound) && !d.made {
			e.close(sp)
			continue
		}
		require.NoError(t, err, "death %d", i)
		require.GreaterOrEqual(t, c.Info().PerLayer[0].Generation, d.clustered)
		require.GreaterOrEqual(t, c.Info().Entries, d.entries, "death %d", i)
		require.LessOrEqual(t, c.Info().Entries, d.entries+1)
		require.Positive(t, c.Info().PerLayer[0].RowBytes)
		e.whole(c, c.Info().Entries)
		e.close(sp)
		e.sound(1)
	}
}

// A store without side rows, as one over a network, has arrangements as blocks alone.
func TestWithoutRows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, c, _ := w.open(1 << 40) // in a wrapper that hides them
	require.Zero(t, c.Info().PerLayer[0].RowBytes)
	w.whole(c, worldTokens)
	sp, err := sparse.New(w.inner, sparse.Options{Devices: 3, Window: 4, Cost: told, Alone: true})
	require.NoError(t, err)
	c, err = sp.OpenContext(w.ctx, w.scope, w.keys[len(w.keys)-1])
	require.NoError(t, err)
	require.Positive(t, c.Info().PerLayer[0].RowBytes, "filled in at an open")
	w.whole(c, worldTokens)
}

// refusing is a Store whose rows cannot be kept, or not be read.
type refusing struct {
	skep.Store
	skep.Sidecars
	put, get error
}

func (r *refusing) PutSidecar(ctx context.Context, s skep.Scope, k skep.Key, p []skep.SidecarPiece) error {
	if r.put != nil {
		return r.put
	}
	return r.Sidecars.PutSidecar(ctx, s, k, p)
}

func (r *refusing) Sidecar(ctx context.Context, s skep.Scope, k skep.Key) ([]skep.SidecarPiece, error) {
	if r.get != nil {
		return nil, r.get
	}
	return r.Sidecars.Sidecar(ctx, s, k)
}

// Rows that cannot be kept, or read, leave the block to say what they would.
func TestRowsThatAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := &refusing{Store: w.inner, Sidecars: w.inner.(skep.Sidecars), put: &skep.Error{Kind: skep.Full}}
	open := func() skep.SparseContext {
		sp, err := sparse.New(r, sparse.Options{Devices: 3, Window: 4, Cost: told, Alone: true})
		require.NoError(t, err)
		c, err := sp.Cluster(w.ctx, &skep.ClusterRequest{Scope: w.scope, Keys: w.keys, QueryHeads: 2})
		require.NoError(t, err)
		w.whole(c, worldTokens)
		return c
	}
	require.Zero(t, open().Info().PerLayer[0].RowBytes)
	require.Zero(t, open().Info().PerLayer[0].RowBytes)
	r.put = nil
	require.Positive(t, open().Info().PerLayer[0].RowBytes)
	r.get = &skep.Error{Kind: skep.Damaged}
	require.Positive(t, open().Info().PerLayer[0].RowBytes, "put again")
}
