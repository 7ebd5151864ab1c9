package sparse_test

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/sparse"
)

// failing is a Store that stops taking changes after so many of them, as a process that
// is killed does.
type failing struct {
	skep.Store
	left atomic.Int64
}

// PutSidecar and Sidecar are refused, as those of a Store over a network are.
func (*failing) PutSidecar(ctx context.Context, sc skep.Scope, key skep.Key, pieces []skep.SidecarPiece) error {
	return skep.UnsupportedStore{}.PutSidecar(ctx, sc, key, pieces)
}

func (*failing) Sidecar(ctx context.Context, sc skep.Scope, key skep.Key) ([]skep.SidecarPiece, error) {
	return skep.UnsupportedStore{}.Sidecar(ctx, sc, key)
}

var errKilled = errors.New("killed")

func (f *failing) Put(ctx context.Context, r *skep.PutRequest) ([]skep.PutResult, error) {
	if f.left.Add(-1) < 0 {
		return nil, errKilled
	}
	return f.Store.Put(ctx, r)
}

func (f *failing) Delete(ctx context.Context, s skep.Scope, keys []skep.Key) (int, error) {
	if f.left.Add(-1) < 0 {
		return 0, errKilled
	}
	return f.Store.Delete(ctx, s, keys)
}

var shape = skep.Shape{Kind: skep.Latent, Layers: 1, HeadDim: 8, Element: skep.F32, BlockTokens: 16}

func latent(e int) []byte {
	var b []byte
	for d := range 8 {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(e*8+d)))
	}
	return b
}

// world is a store with one chain of 640 tokens and what is known of it.
type world struct {
	t     *testing.T
	ctx   context.Context
	inner skep.Store
	scope skep.Scope
	keys  []skep.Key
}

const worldTokens = 640

func newWorld(t *testing.T) *world {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	w := &world{t: t, ctx: ctx, inner: memstore.New(memstore.Options{})}
	t.Cleanup(func() { require.NoError(t, w.inner.Close()) })
	ns, err := w.inner.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: shape, Chained: true})
	require.NoError(t, err)
	w.scope = skep.Scope{Namespace: ns.ID}
	w.putChain()
	return w
}

// putChain puts the chain the context is of.
func (w *world) putChain() {
	var parent *skep.Key
	var blocks []skep.Block
	for i := range worldTokens / 16 {
		k := skep.ChainKey(parent, []uint32{uint32(i)})
		parent = &k
		w.keys = append(w.keys, k)
		var b []byte
		for t := range 16 {
			b = append(b, latent(i*16+t)...)
		}
		blocks = append(blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: b}}})
	}
	_, err := w.inner.Put(w.ctx, &skep.PutRequest{Scope: w.scope, Blocks: blocks})
	require.NoError(w.t, err)
}

// open opens the context through a store that dies after so many changes.
func (w *world) open(changes int64) (*sparse.Sparse, skep.SparseContext, *failing) {
	f := &failing{Store: w.inner}
	f.left.Store(1 << 40)
	sp, err := sparse.New(f, sparse.Options{Devices: 3, Window: 4, Cost: told, Alone: true})
	require.NoError(w.t, err)
	c, err := sp.Cluster(w.ctx, &skep.ClusterRequest{Scope: w.scope, Keys: w.keys, QueryHeads: 2})
	require.NoError(w.t, err)
	f.left.Store(changes)
	return sp, c, f
}

// whole reads every entry and compares it.
func (w *world) whole(c skep.SparseContext, entries int) {
	w.t.Helper()
	require.Equal(w.t, entries, c.Info().Entries)
	var all []uint32
	var dst [][]byte
	for e := range entries {
		all, dst = append(all, uint32(e)), append(dst, make([]byte, 32))
	}
	r, err := c.Fetch(w.ctx, 0, all, dst)
	require.NoError(w.t, err)
	require.Empty(w.t, r.Missing)
	for e := range all {
		require.Equal(w.t, latent(e), dst[e], "entry %d", e)
	}
}

func observe(w *world, c skep.SparseContext, steps int, explorative bool) error {
	rng := rand.New(rand.NewPCG(uint64(steps), 5))
	for range steps {
		var on []uint32
		for range 2 {
			g := rng.IntN(64)
			for i := range 10 {
				on = append(on, uint32(g+i*64))
			}
		}
		slices.Sort(on)
		on = slices.Compact(on)
		if err := c.Observe(w.ctx, skep.Observation{Entries: on, Explorative: explorative}); err != nil {
			return err
		}
	}
	return nil
}

// A process killed between any two changes of a recluster leaves all entries readable,
// and the next recluster goes on to the same end.
func TestReclusterSurvivesADeathAnywhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, c, _ := w.open(1 << 40)
	require.NoError(t, observe(w, c, 200, true))
	require.NoError(t, c.Flush(w.ctx))

	resumed, finished := 0, false
	for n := int64(0); !finished; n++ {
		require.Less(t, n, int64(100))
		_, c, f := w.open(n)
		r, err := c.Recluster(w.ctx, 0)
		if finished = err == nil; !finished {
			require.ErrorIs(t, err, errKilled)
		}
		if r.Resumed {
			resumed++
		}
		f.left.Store(1 << 40)
		_, c, _ = w.open(1 << 40) // what another process finds
		w.whole(c, worldTokens)
	}
	require.Positive(t, resumed)
	_, c, _ = w.open(1 << 40)
	require.GreaterOrEqual(t, c.Info().PerLayer[0].Generation, uint64(2))
	w.whole(c, worldTokens)

	// One that was never cut off leaves as many blocks.
	once := newWorld(t)
	_, c, _ = once.open(1 << 40)
	require.NoError(t, observe(once, c, 200, true))
	require.NoError(t, c.Flush(once.ctx))
	r, err := c.Recluster(once.ctx, 0)
	require.NoError(t, err)
	require.True(t, r.Kept)
	require.Equal(t, once.blocks(), w.blocks())
}

func (w *world) blocks() int64 {
	s, err := w.inner.Stats(w.ctx)
	require.NoError(w.t, err)
	return s.Blocks
}

// The same for appended entries on their way from the window to the drives: an
// acknowledged one is always found.
func TestAppendSurvivesADeathAnywhere(t *testing.T) {
	t.Parallel()
	step := int64(9)
	if testing.Short() {
		step = 153
	}
	for n := int64(1); n < 461; n += step {
		w := newWorld(t)
		_, c, f := w.open(n)
		acknowledged := worldTokens
		for {
			if _, err := c.Append(w.ctx, [][]byte{latent(acknowledged)}); err != nil {
				require.ErrorIs(t, err, errKilled)
				break
			}
			acknowledged++
			if err := observe(w, c, 1, false); err != nil {
				require.ErrorIs(t, err, errKilled)
				break
			}
		}
		f.left.Store(0)
		_, c, _ = w.open(1 << 40)
		w.whole(c, acknowledged)
		if n > 400 {
			require.Greater(t, c.Info().PerLayer[0].Records, worldTokens, "some had reached the drives")
		}
	}
}

// A process killed between any two changes of a drop leaves a context that is whole, or
// one that is not found again and then leaves nothing but its chain without the end.
func TestDropSurvivesADeathAnywhere(t *testing.T) {
	t.Parallel()
	for n, finished := int64(0), false; !finished; n++ {
		require.Less(t, n, int64(100))
		w := newWorld(t)
		sp, c, f := w.open(1 << 40)
		for e := range 3 {
			_, err := c.Append(w.ctx, [][]byte{latent(worldTokens + e)})
			require.NoError(t, err)
		}
		f.left.Store(n)
		last := w.keys[len(w.keys)-1]
		err := sp.DropContext(w.ctx, w.scope, last)
		if finished = err == nil; !finished {
			require.ErrorIs(t, err, errKilled)
		}
		after, err := sparse.New(w.inner, sparse.Options{Devices: 3, Window: 4, Cost: told, Alone: true})
		require.NoError(t, err)
		c, err = after.OpenContext(w.ctx, w.scope, last)
		if n == 0 {
			require.NoError(t, err)
			w.whole(c, worldTokens+3)
			continue
		}
		require.ErrorIs(t, err, skep.NotFound)
		require.Equal(t, int64(len(w.keys)-1), w.blocks(), "killed after %d changes", n)
	}
}

// A drop that is cut off anywhere, and then the same chain is put again: its context is whole,
// be it the one the drop had left alone or a new one.
func TestAChainComesBackAfterADropThatWasCutOff(t *testing.T) {
	t.Parallel()
	for n, finished := int64(0), false; !finished; n++ {
		require.Less(t, n, int64(100))
		w := newWorld(t)
		sp, c, f := w.open(1 << 40)
		for e := range 3 {
			_, err := c.Append(w.ctx, [][]byte{latent(worldTokens + e)})
			require.NoError(t, err)
		}
		f.left.Store(n)
		last := len(w.keys) - 1
		err := sp.DropContext(w.ctx, w.scope, w.keys[last])
		if finished = err == nil; !finished {
			require.ErrorIs(t, err, errKilled)
		}
		var data []byte
		for e := range 16 {
			data = append(data, latent(last*16+e)...)
		}
		_, err = w.inner.Put(w.ctx, &skep.PutRequest{Scope: w.scope, Parent: &w.keys[last-1], Depth: last,
			Blocks: []skep.Block{{Key: w.keys[last], Parts: []skep.Part{{Bytes: data}}}}})
		require.NoError(t, err)
		_, c, _ = w.open(1 << 40)
		if n < 2 { // killed before the description says that it is dropped
			w.whole(c, worldTokens+3)
		} else {
			w.whole(c, worldTokens)
		}
	}
}

// A store that takes nothing more lets go of a context for all that.
func TestADropNeedsNoRoom(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	full := &fullStore{Store: w.inner}
	sp, err := sparse.New(full, sparse.Options{Devices: 3, Window: 4, Cost: told, Alone: true})
	require.NoError(t, err)
	_, err = sp.Cluster(w.ctx, &skep.ClusterRequest{Scope: w.scope, Keys: w.keys, QueryHeads: 2})
	require.NoError(t, err)
	full.now.Store(true)
	require.NoError(t, sp.DropContext(w.ctx, w.scope, w.keys[len(w.keys)-1]))
	require.True(t, full.asked.Load())
	require.Equal(t, int64(len(w.keys)-1), w.blocks())
}

// fullStore declines puts once it is full.
type fullStore struct {
	skep.Store
	now, asked atomic.Bool
}

func (f *fullStore) Put(ctx context.Context, r *skep.PutRequest) ([]skep.PutResult, error) {
	if !f.now.Load() {
		return f.Store.Put(ctx, r)
	}
	f.asked.Store(true)
	out := make([]skep.PutResult, len(r.Blocks))
	for i := range out {
		out[i] = skep.PutResult{Outcome: skep.Declined, Reason: skep.Full}
	}
	return out, nil
}

// deaf loses blocks: a record that cannot be read comes from its other copy, or is named.
func TestLostRecordsAreNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, c, _ := w.open(1 << 40)
	all, err := w.inner.Namespaces(w.ctx)
	require.NoError(t, err)
	var records skep.NamespaceID
	for _, n := range all {
		if n.Shape.Layers == 64 {
			records = n.ID
		}
	}
	require.NotZero(t, records)
	require.NoError(t, w.inner.Purge(w.ctx, skep.Purge{Namespace: records}))
	dst := [][]byte{make([]byte, 32), make([]byte, 32)}
	r, err := c.Fetch(w.ctx, 0, []uint32{9, 4}, dst)
	require.NoError(t, err)
	require.Equal(t, []uint32{4, 9}, r.Missing)
}
