package storetest

import (
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// Sparsely opens a Store with skep.Sparse on top. The second call of one test gets what the
// first has stored when kept says so; both are closed by the test.
type Sparsely func(t *testing.T) (st skep.Store, sp skep.Sparse, closeAll func())

var sparseShape = skep.Shape{Kind: skep.Attention, Layers: 2, KVHeads: 2, HeadDim: 16, Element: skep.F32, BlockTokens: 8}

const sparseQueryHeads = 4

// sparseEnv is a context over a chain whose bytes are known.
type sparseEnv struct {
	*testing.T
	ctx   context.Context
	open  Sparsely
	st    skep.Store
	sp    skep.Sparse
	close func()
	scope skep.Scope
	keys  []skep.Key
	c     skep.SparseContext
	n     int
}

// entryBytes is what entry e of a layer holds: numbers that name it.
func entryBytes(layer, e int) []byte {
	b := make([]byte, 0, 2*2*16*4)
	for kv := range 2 {
		for h := range 2 {
			for d := range 16 {
				v := float32(math.Sin(float64((layer*7919+e)*64+kv*32+h*16+d))) + float32(e%5)
				b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
			}
		}
	}
	return b
}

// sparseBlock is block i of the chain: [layer][K,V][head][token][dim], of valid tokens.
func sparseBlock(i int) []byte {
	s := sparseShape
	var b []byte
	for l := range s.Layers {
		for kv := range 2 {
			for h := range s.KVHeads {
				for t := range s.BlockTokens {
					e := entryBytes(l, i*s.BlockTokens+t)
					b = append(b, e[(kv*s.KVHeads+h)*s.HeadDim*4:][:s.HeadDim*4]...)
				}
			}
		}
	}
	return b
}

func startSparse(t *testing.T, open Sparsely, blocks int, dram int64) *sparseEnv {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	e := &sparseEnv{T: t, ctx: ctx, open: open}
	e.st, e.sp, e.close = open(t)
	t.Cleanup(func() { e.close() })
	ns, err := e.st.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "t", Name: "sparse", Model: "m", Shape: sparseShape, Class: skep.Durable, Chained: true})
	require.NoError(t, err)
	e.scope = skep.Scope{Namespace: ns.ID, Salt: "pepper"}
	var parent *skep.Key
	var put []skep.Block
	for i := range blocks {
		key := skep.ChainKey(parent, []uint32{uint32(i), 4711})
		parent = &key
		e.keys = append(e.keys, key)
		put = append(put, skep.Block{Key: key, Parts: []skep.Part{{Bytes: sparseBlock(i)}}})
	}
	_, err = e.st.Put(ctx, &skep.PutRequest{Scope: e.scope, Blocks: put})
	require.NoError(t, err)
	e.n = blocks * sparseShape.BlockTokens
	e.c, err = e.sp.Cluster(ctx, &skep.ClusterRequest{Scope: e.scope, Keys: e.keys, QueryHeads: sparseQueryHeads, DRAM: dram})
	require.NoError(t, err)
	return e
}

func (e *sparseEnv) last() skep.Key { return e.keys[len(e.keys)-1] }

// again closes everything and opens what is stored.
func (e *sparseEnv) again() {
	e.close()
	e.st, e.sp, e.close = e.open(e.T)
	var err error
	e.c, err = e.sp.OpenContext(e.ctx, e.scope, e.last())
	require.NoError(e, err)
}

// fetch reads entries of a layer and compares every byte.
func (e *sparseEnv) fetch(layer int, entries ...uint32) skep.FetchResult {
	e.Helper()
	dst := make([][]byte, len(entries))
	for i := range dst {
		dst[i] = make([]byte, e.c.Info().EntryBytes)
	}
	r, err := e.c.Fetch(e.ctx, layer, entries, dst)
	require.NoError(e, err)
	require.Empty(e, r.Missing)
	for i, n := range entries {
		require.Equal(e, entryBytes(layer, int(n)), dst[i], "layer %d, entry %d", layer, n)
	}
	return r
}

func (e *sparseEnv) some(rng *rand.Rand, k int) []uint32 {
	var out []uint32
	for _, v := range rng.Perm(e.c.Info().Entries)[:k] {
		out = append(out, uint32(v))
	}
	return out
}

// together observes steps in which groups of ten that are far apart in the text are
// activated together.
func (e *sparseEnv) together(rng *rand.Rand, steps int) {
	e.Helper()
	width := sparseQueryHeads * sparseShape.HeadDim
	groups := e.n / 10
	for range steps {
		var on []uint32
		q := make([]float32, width)
		for range 2 {
			g := rng.IntN(groups)
			for i := range 10 {
				on = append(on, uint32(g+i*groups))
			}
			q[g%width] += 1
			q[(g*7)%width] -= 1
		}
		slices.Sort(on)
		on = slices.Compact(on)
		for l := range sparseShape.Layers {
			require.NoError(e, e.c.Observe(e.ctx, skep.Observation{Layer: l, Entries: on, Queries: q, Explorative: true}))
		}
	}
}

// RunSparse is the contract of skep.Sparse.
func RunSparse(t *testing.T, open func(t *testing.T) Sparsely) {
	tests := map[string]func(*testing.T, Sparsely){
		"every entry comes back":                        sparseFetch,
		"aligned memory is read into":                   sparseAligned,
		"destinations do not run into each other":       sparsePacked,
		"what is fetched often stays in memory":         sparseHot,
		"choosing keeps to the budget":                  sparseSelect,
		"attention weighs":                              sparseWeights,
		"a context is found again":                      sparseReopen,
		"appended entries are there at once and later":  sparseAppend,
		"reclustering changes the layout, not the data": sparseRecluster,
		"a prefetch is joined":                          sparsePrefetch,
		"it lives as long as its chain":                 sparseChainGone,
		"dropping leaves nothing":                       sparseDrop,
		"a purge takes it along":                        sparsePurge,
		"bad input changes nothing":                     sparseBadInput,
	}
	for name, f := range tests {
		t.Run(name, func(t *testing.T) { f(t, open(t)) })
	}
}

func sparseFetch(t *testing.T, open Sparsely) {
	e := startSparse(t, open, 40, 0)
	i := e.c.Info()
	require.Equal(t, e.n, i.Entries)
	require.Equal(t, int64(2*2*16*4), i.EntryBytes)
	rng := rand.New(rand.NewPCG(1, 1))
	for l := range 2 {
		var all []uint32
		for n := range e.n {
			all = append(all, uint32(n))
		}
		r := e.fetch(l, all...)
		require.Less(t, r.Reads, e.n/4, "neighbours are read together")
		for range 5 {
			e.fetch(l, e.some(rng, 1+rng.IntN(60))...)
		}
	}
	e.fetch(0, 5, 7, 5, 5) // one of them three times
	e.fetch(1)
}

func sparseAligned(t *testing.T, open Sparsely) {
	e := startSparse(t, open, 8, 0)
	m, err := e.st.Alloc(e.ctx, 4*e.c.Info().RecordBytes)
	require.NoError(t, err)
	defer m.Release()
	rec := e.c.Info().RecordBytes
	var dst [][]byte
	for i := range int64(4) {
		dst = append(dst, m.Bytes()[i*rec:(i+1)*rec])
	}
	_, err = e.c.Fetch(e.ctx, 1, []uint32{9, 3, 60, 61}, dst)
	require.NoError(t, err)
	for i, n := range []int{9, 3, 60, 61} {
		require.Equal(t, entryBytes(1, n), dst[i][:e.c.Info().EntryBytes])
	}
}

// sparsePacked: destinations side by side in one piece of memory, as an engine that gathers
// has them, some from memory and some from drives, do not write into each other.
func sparsePacked(t *testing.T, open Sparsely) {
	e := startSparse(t, open, 8, 32*4096)
	for range 3 {
		e.fetch(0, 1, 2, 3)
	}
	m, err := e.st.Alloc(e.ctx, 64<<10)
	require.NoError(t, err)
	defer m.Release()
	size := e.c.Info().EntryBytes
	entries := []uint32{40, 1, 2, 41, 3, 9}
	var dst [][]byte
	for i := range int64(len(entries)) {
		dst = append(dst, m.Bytes()[i*size:(i+1)*size])
	}
	after := m.Bytes()[int64(len(entries))*size:][:4096]
	for i := range after {
		after[i] = 0xa5
	}
	r, err := e.c.Fetch(e.ctx, 0, entries, dst)
	require.NoError(t, err)
	require.Positive(t, r.DRAM)
	for i, n := range entries {
		require.Equal(t, entryBytes(0, int(n)), dst[i], "entry %d", n)
	}
	for _, b := range after {
		require.Equal(t, byte(0xa5), b, "what is behind is not ours")
	}
}

func sparseHot(t *testing.T, open Sparsely) {
	e := startSparse(t, open, 40, 32*4096)
	for range 4 {
		e.fetch(0, 1, 2, 3)
	}
	r := e.fetch(0, 1, 2, 3)
	require.Equal(t, 3, r.DRAM)
	require.Zero(t, r.Reads)
	require.LessOrEqual(t, e.c.Info().PerLayer[0].Resident, 32)
}

func sparseSelect(t *testing.T, open Sparsely) {
	e := startSparse(t, open, 40, 0)
	rng := rand.New(rand.NewPCG(2, 1))
	q := make([]float32, 3*sparseQueryHeads*sparseShape.HeadDim)
	for i := range q {
		q[i] = float32(rng.NormFloat64())
	}
	s, err := e.c.Select(e.ctx, 0, q, skep.Choice{Budget: 50})
	require.NoError(t, err)
	require.False(t, s.Learned, "nothing was observed: clusters of keys")
	require.NotEmpty(t, s.Clusters)
	require.LessOrEqual(t, len(s.Entries), 50)
	over, err := e.c.Select(e.ctx, 0, q, skep.Choice{Budget: 50, Overshoot: true})
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(over.Entries), 50)
	require.Subset(t, over.Entries, s.Entries)

	e.together(rng, 80)
	one := make([]float32, sparseQueryHeads*sparseShape.HeadDim)
	one[3], one[21] = 1, -1 // what group 3 was activated by
	s, err = e.c.Select(e.ctx, 0, one, skep.Choice{Budget: 10})
	require.NoError(t, err)
	require.True(t, s.Learned)
	var group []uint32
	for i := range 10 {
		group = append(group, uint32(3+i*e.n/10))
	}
	require.Equal(t, group, s.Entries)
	e.fetch(0, s.Entries...)
}

// sparseWeights: of entries that were activated equally often, those with most attention
// are chosen and kept in memory.
func sparseWeights(t *testing.T, open Sparsely) {
	const hot = 32
	e := startSparse(t, open, 40, hot*4096)
	rng := rand.New(rand.NewPCG(12, 1))
	q := make([]float32, sparseQueryHeads*sparseShape.HeadDim)
	on, weights := make([]uint32, 0, e.n), make([]float32, 0, e.n)
	for n := range e.n {
		on, weights = append(on, uint32(n)), append(weights, 1)
	}
	var heavy []uint32
	for n := range uint32(10) {
		heavy = append(heavy, n*31)
		weights[n*31] = 100
	}
	for range 80 {
		for i := range q {
			q[i] = float32(rng.NormFloat64())
		}
		require.NoError(t, e.c.Observe(e.ctx, skep.Observation{Layer: 1, Entries: on, Queries: q, Weights: weights}))
	}
	s, err := e.c.Select(e.ctx, 1, q, skep.Choice{Budget: 5})
	require.NoError(t, err)
	require.Len(t, s.Entries, 5)
	require.Subset(t, heavy, s.Entries)
	require.NoError(t, e.c.Close(e.ctx))
	e.again() // memory is set up by what was observed
	e.fetch(1, heavy...)
	r := e.fetch(1, heavy...)
	require.Positive(t, r.DRAM)
}

func sparseReopen(t *testing.T, open Sparsely) {
	e := startSparse(t, open, 40, 0)
	e.together(rand.New(rand.NewPCG(3, 1)), 70)
	before := e.c.Info()
	require.NoError(t, e.c.Close(e.ctx))
	_, err := e.c.Fetch(e.ctx, 0, nil, nil)
	require.ErrorIs(t, err, skep.Closed)
	e.again()
	after := e.c.Info()
	require.Equal(t, before.Entries, after.Entries)
	require.Equal(t, 70, after.PerLayer[1].Steps)
	require.Equal(t, before.PerLayer[0].Records, after.PerLayer[0].Records)
	e.fetch(0, e.some(rand.New(rand.NewPCG(4, 1)), 90)...)
	again, err := e.sp.Cluster(e.ctx, &skep.ClusterRequest{Scope: e.scope, Keys: e.keys, QueryHeads: sparseQueryHeads})
	require.NoError(t, err)
	require.Equal(t, after.PerLayer[0].Generation, again.Info().PerLayer[0].Generation, "opened as it is")
}

func sparseAppend(t *testing.T, open Sparsely) {
	e := startSparse(t, open, 20, 0)
	rng := rand.New(rand.NewPCG(5, 1))
	const appended = 400 // enough to fill a block of some drive
	window := e.c.Info().Window
	var fresh []uint32
	for i := range appended {
		n := e.n + i
		id, err := e.c.Append(e.ctx, [][]byte{entryBytes(0, n), entryBytes(1, n)})
		require.NoError(t, err)
		require.Equal(t, uint32(n), id)
		fresh = append(fresh, id)
	}
	require.Equal(t, appended, e.c.Info().Appended)
	r := e.fetch(0, fresh...)
	require.Equal(t, appended, r.DRAM, "they wait in the window")

	// A crash: nothing is closed in order, and nothing acknowledged is lost.
	require.NoError(t, e.c.Flush(e.ctx))
	e.again()
	require.Equal(t, appended, e.c.Info().Appended)
	e.fetch(1, fresh...)

	// They join, and go to drives when they fill blocks.
	for range window + 1 {
		on := e.some(rng, 30)
		slices.Sort(on)
		for l := range 2 {
			require.NoError(t, e.c.Observe(e.ctx, skep.Observation{Layer: l, Entries: on}))
		}
	}
	r = e.fetch(0, fresh...)
	require.Less(t, r.DRAM, appended, "some have left the window: %+v", e.c.Info())
	require.Greater(t, r.Records, 0)
	for l := range 2 {
		e.fetch(l, e.some(rng, 100)...)
	}
	e.again()
	require.Equal(t, appended, e.c.Info().Appended)
	for l := range 2 {
		e.fetch(l, fresh...)
		e.fetch(l, e.some(rng, 100)...)
	}
	id, err := e.c.Append(e.ctx, [][]byte{entryBytes(0, e.n+appended), entryBytes(1, e.n+appended)})
	require.NoError(t, err)
	require.Equal(t, uint32(e.n+appended), id, "numbers go on")
}

func sparseRecluster(t *testing.T, open Sparsely) {
	e := startSparse(t, open, 50, 0)
	rng := rand.New(rand.NewPCG(6, 1))
	r, err := e.c.Recluster(e.ctx, 0)
	require.NoError(t, err)
	require.False(t, r.Kept)
	require.Contains(t, r.Reason, "explorative", "nothing to judge by")
	e.together(rng, 200)

	stop, done := make(chan struct{}), make(chan error, 1)
	go func() { // reads go on
		rng := rand.New(rand.NewPCG(7, 1))
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			want := e.some(rng, 40)
			dst := make([][]byte, len(want))
			for i := range dst {
				dst[i] = make([]byte, 256)
			}
			r, err := e.c.Fetch(e.ctx, 0, want, dst)
			if err == nil && len(r.Missing) > 0 {
				err = &skep.Error{Op: "test", Kind: skep.Evicted, Value: r.Missing}
			}
			for i, n := range want {
				if err == nil && !slices.Equal(dst[i], entryBytes(0, int(n))) {
					err = &skep.Error{Op: "test", Kind: skep.Damaged, Value: n}
				}
			}
			if err != nil {
				done <- err
				return
			}
		}
	}()
	r, err = e.c.Recluster(e.ctx, 0)
	close(stop)
	require.NoError(t, <-done)
	require.NoError(t, err)
	require.True(t, r.Kept, "%+v", r)
	require.Less(t, r.After, r.Before)
	require.Equal(t, uint64(2), e.c.Info().PerLayer[0].Generation)
	require.Equal(t, uint64(1), e.c.Info().PerLayer[1].Generation)
	e.fetch(0, e.some(rng, 200)...)
	c, err := e.c.Clusters(0)
	require.NoError(t, err)
	require.Len(t, c.Radii, len(c.Sizes))
	require.Greater(t, c.Copies, 1.0)
	require.Positive(t, c.Together(c.Members[0][0], c.Members[0][1]))
	e.again()
	require.Equal(t, uint64(2), e.c.Info().PerLayer[0].Generation)
	e.fetch(0, e.some(rng, 200)...)
}

func sparsePrefetch(t *testing.T, open Sparsely) {
	e := startSparse(t, open, 40, 0)
	e.together(rand.New(rand.NewPCG(8, 1)), 80)
	one := make([]float32, sparseQueryHeads*sparseShape.HeadDim)
	one[3], one[21] = 1, -1
	require.NoError(t, e.c.Prefetch(e.ctx, 1, one, skep.Choice{Budget: 10}))
	var group []uint32
	for i := range 10 {
		group = append(group, uint32(3+i*e.n/10))
	}
	r := e.fetch(1, append(group, 4)...)
	require.Equal(t, 10, r.Joined)
	require.Equal(t, 1, r.Records, "only what was not on its way is read")
	i := e.c.Info().PerLayer[1]
	require.Equal(t, int64(10), i.PrefetchRead)
	require.Equal(t, int64(10), i.PrefetchJoined)
	require.NoError(t, e.c.Close(e.ctx))
}

func sparseChainGone(t *testing.T, open Sparsely) {
	e := startSparse(t, open, 10, 0)
	require.NoError(t, e.c.Close(e.ctx))
	_, err := e.st.Delete(e.ctx, e.scope, e.keys[9:])
	require.NoError(t, err)
	_, err = e.sp.OpenContext(e.ctx, e.scope, e.last())
	require.ErrorIs(t, err, skep.NotFound)
	require.Equal(t, int64(9), e.blocks(), "nothing but the rest of the chain")
	_, err = e.sp.Cluster(e.ctx, &skep.ClusterRequest{Scope: e.scope, Keys: e.keys, QueryHeads: sparseQueryHeads})
	require.ErrorIs(t, err, skep.NotFound)
}

func sparseDrop(t *testing.T, open Sparsely) {
	e := startSparse(t, open, 10, 0)
	_, err := e.c.Append(e.ctx, [][]byte{entryBytes(0, e.n), entryBytes(1, e.n)})
	require.NoError(t, err)
	require.NoError(t, e.st.Flush(e.ctx))
	require.NoError(t, e.sp.DropContext(e.ctx, e.scope, e.last()))
	_, err = e.c.Fetch(e.ctx, 0, []uint32{0}, [][]byte{make([]byte, 256)})
	require.ErrorIs(t, err, skep.Closed)
	_, err = e.sp.OpenContext(e.ctx, e.scope, e.last())
	require.ErrorIs(t, err, skep.NotFound)
	require.ErrorIs(t, e.sp.DropContext(e.ctx, e.scope, e.last()), skep.NotFound)
	require.Equal(t, int64(9), e.blocks(), "the chain without its end, and nothing else")
	found, err := e.st.Lookup(e.ctx, &skep.LookupRequest{Scope: e.scope, Keys: e.keys, Lease: skep.NoLease})
	require.NoError(t, err)
	require.Equal(t, 9, found.Blocks)
	// Another user of the namespace never saw it.
	other := e.scope
	other.Salt = "sugar"
	_, err = e.sp.OpenContext(e.ctx, other, e.last())
	require.ErrorIs(t, err, skep.NotFound)
}

func (e *sparseEnv) blocks() int64 {
	e.Helper()
	require.NoError(e, e.st.Flush(e.ctx))
	s, err := e.st.Stats(e.ctx)
	require.NoError(e, err)
	return s.Blocks
}

// sparsePurge: what is purged with the chain's namespace, or with its salt, is neither
// served by an open context nor found again, and leaves nothing.
func sparsePurge(t *testing.T, open Sparsely) {
	for _, what := range []string{"namespace", "salt"} {
		e := startSparse(t, open, 10, 32*4096)
		e.fetch(0, 1, 2, 3)
		p := skep.Purge{Namespace: e.scope.Namespace}
		if what == "salt" {
			p = skep.Purge{Salt: &e.scope}
		}
		require.NoError(t, e.st.Purge(e.ctx, p), what)
		dst := [][]byte{make([]byte, 256)}
		for { // a Store that does not say where blocks are is asked once a second
			r, err := e.c.Fetch(e.ctx, 0, []uint32{50}, dst)
			if err != nil {
				require.ErrorIs(t, err, skep.NotFound, what)
				break
			}
			require.Equal(t, []uint32{50}, r.Missing, what)
		}
		_, err := e.sp.OpenContext(e.ctx, e.scope, e.last())
		require.ErrorIs(t, err, skep.NotFound, what)
		all, err := e.st.Namespaces(e.ctx)
		require.NoError(t, err)
		for _, n := range all { // not by number of blocks: a purge may count until it is swept
			found, err := e.st.Lookup(e.ctx, &skep.LookupRequest{Scope: skep.Scope{Namespace: n.ID, Salt: e.scope.Salt}, Keys: e.keys[:1], Lease: skep.NoLease})
			require.NoError(t, err)
			require.Zero(t, found.Blocks, n.Name)
		}
		e.close()
	}
}

func sparseBadInput(t *testing.T, open Sparsely) {
	e := startSparse(t, open, 4, 0)
	dst := [][]byte{make([]byte, 256)}
	q := make([]float32, sparseQueryHeads*sparseShape.HeadDim)
	for name, f := range map[string]func() error{
		"layer":        func() error { _, err := e.c.Fetch(e.ctx, 2, []uint32{0}, dst); return err },
		"entry":        func() error { _, err := e.c.Fetch(e.ctx, 0, []uint32{32}, dst); return err },
		"destinations": func() error { _, err := e.c.Fetch(e.ctx, 0, []uint32{0, 1}, dst); return err },
		"small":        func() error { _, err := e.c.Fetch(e.ctx, 0, []uint32{0}, [][]byte{make([]byte, 255)}); return err },
		"overlapping": func() error {
			_, err := e.c.Fetch(e.ctx, 0, []uint32{0, 1}, [][]byte{dst[0], dst[0]})
			return err
		},
		"query":    func() error { _, err := e.c.Select(e.ctx, 0, q[1:], skep.Choice{Budget: 1}); return err },
		"budget":   func() error { _, err := e.c.Select(e.ctx, 0, q, skep.Choice{Budget: -1}); return err },
		"observed": func() error { return e.c.Observe(e.ctx, skep.Observation{Entries: []uint32{32}}) },
		"weights": func() error {
			return e.c.Observe(e.ctx, skep.Observation{Entries: []uint32{3, 4}, Weights: []float32{1}})
		},
		"weight": func() error {
			return e.c.Observe(e.ctx, skep.Observation{Entries: []uint32{3}, Weights: []float32{-1}})
		},
		"not ascending": func() error { return e.c.Observe(e.ctx, skep.Observation{Entries: []uint32{3, 3}}) },
		"layers":        func() error { _, err := e.c.Append(e.ctx, dst); return err },
		"entry bytes":   func() error { _, err := e.c.Append(e.ctx, [][]byte{dst[0], dst[0][:9]}); return err },
		"keys": func() error {
			_, err := e.sp.Cluster(e.ctx, &skep.ClusterRequest{Scope: e.scope, QueryHeads: 4})
			return err
		},
		"recluster": func() error { _, err := e.c.Recluster(e.ctx, -1); return err },
	} {
		require.ErrorIs(t, f(), skep.Invalid, name)
	}
	require.Equal(t, e.n, e.c.Info().Entries)
	require.Zero(t, e.c.Info().PerLayer[0].Steps)
	e.fetch(0, 0, 31)
}
