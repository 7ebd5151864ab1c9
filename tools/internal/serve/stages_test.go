package serve

import (
	"bytes"
	"context"
	"errors"
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire"
)

// pipeline is a model of 6 layers over three stages, 16 tokens a block.
var (
	pipelineShape = skep.Shape{Kind: skep.Attention, Element: skep.BF16, Layers: 6, KVHeads: 2, HeadDim: 64, BlockTokens: 16}
	pipelineSplit = skep.Split{2, 4}
)

const (
	pipelineBlock = 6 * 2 * 2 * 16 * 64 * 2 // bytes
	activations   = 16 * 256
)

// putPipeline puts a chain whose blocks have the activations entering each stage.
func putPipeline(t *testing.T, c *wire.Client, n int) (skep.Scope, []skep.Key) {
	t.Helper()
	ns, err := c.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "default", Name: t.Name(), Shape: pipelineShape, Chained: true})
	require.NoError(t, err)
	put := &skep.PutRequest{Scope: skep.Scope{Namespace: ns.ID}}
	var keys []skep.Key
	var parent *skep.Key
	for i := range n {
		k := skep.ChainKey(parent, []uint32{uint32(i)})
		keys, parent = append(keys, k), &k
		b := skep.Block{Key: k, Parts: []skep.Part{{Bytes: storetest.Payload(k, skep.PartKV, pipelineBlock)}}}
		for stage := 1; stage < pipelineSplit.Stages(); stage++ {
			name := pipelineSplit.BoundaryPart(stage)
			b.Parts = append(b.Parts, skep.Part{Name: name, Bytes: storetest.Payload(k, name, activations)})
		}
		put.Blocks = append(put.Blocks, b)
	}
	res, err := c.Put(t.Context(), put)
	require.NoError(t, err)
	for _, r := range res {
		require.Equal(t, skep.Committed, r.Outcome)
	}
	return put.Scope, keys
}

// stageRequest is the restore of one stage: its KV, and what brings its activations.
func stageRequest(sc skep.Scope, keys []skep.Key, stage int) *skep.RestoreRequest {
	cost := skep.RecomputeCost{PerToken: 10 * time.Microsecond}
	r := &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys, Direction: skep.TailFirst,
		Layers: pipelineSplit.Layers(stage, pipelineShape.Layers).Subset(), Compute: &skep.Compute{Cost: cost}}}}
	if stage > 0 {
		r.Chains[0].Compute.Boundary = &skep.Boundary{Chain: 1, BytesPerToken: activations / 16}
		r.Chains = append(r.Chains, skep.Chain{Scope: sc, Keys: keys, Part: pipelineSplit.BoundaryPart(stage)})
	}
	return r
}

// stageResult is what became of each block.
type stageResult struct {
	computed, loaded []bool
	boundary         map[int]error
}

// restoreStage is an engine that computes one stage beside the server, as fast as it is let.
func restoreStage(ctx context.Context, t *testing.T, c *wire.Client, r *skep.RestoreRequest) stageResult {
	t.Helper()
	s, err := c.Restore(ctx, r)
	require.NoError(t, err)
	n := len(r.Chains[0].Keys)
	out := stageResult{make([]bool, n), make([]bool, n), map[int]error{}}
	engine := make(chan error, 1)
	go func() {
		for at := 0; at < 16*n; {
			cl, err := s.Claim(ctx, 0, skep.Only(at, 16*n), skep.Idle)
			if err != nil {
				engine <- err
				return
			}
			if cl.Granted.Len() == 0 && cl.Next == at {
				time.Sleep(100 * time.Microsecond) // until something has landed
				continue
			}
			for b := cl.Granted.From / 16; b < (cl.Granted.To+15)/16; b++ {
				out.computed[b] = true
			}
			if cl.Granted.Len() > 0 {
				_ = s.Computed(ctx, 0, cl.Granted, time.Duration(cl.Granted.Len())*10*time.Microsecond, 0)
			}
			at = cl.Next
		}
		engine <- nil
	}()
	var into [8]skep.Chunk
	for {
		k, err := s.Next(ctx, into[:])
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		for i := range k {
			x := &into[i]
			ch := &r.Chains[x.Chain]
			if x.Err == nil && ch.Dest.Memory == nil {
				want := storetest.Payload(ch.Keys[x.Block], skep.PartKV, pipelineBlock)[x.Layers.From*pipelineBlock/6 : x.Layers.To*pipelineBlock/6]
				if x.Chain == 1 {
					want = storetest.Payload(ch.Keys[x.Block], ch.Part, activations)
				}
				require.True(t, bytes.Equal(want, bytes.Join(x.Data, nil)), "block %d of chain %d", x.Block, x.Chain)
			}
			if x.Chain == 1 {
				out.boundary[x.Block] = x.Err
			} else if out.loaded[x.Block] = x.Err == nil; x.Err != nil {
				require.Contains(t, []skep.Kind{skep.Claimed, skep.Deadline}, skep.KindOf(x.Err))
			}
			x.Release()
		}
	}
	require.NoError(t, <-engine)
	require.NoError(t, s.Close(ctx))
	return out
}

func (r *stageResult) require(t *testing.T, stage int) (computed int) {
	t.Helper()
	for b := range r.computed {
		require.True(t, r.computed[b] != r.loaded[b], "block %d is computed or loaded", b)
		if r.computed[b] {
			computed++
			if stage > 0 {
				require.Contains(t, r.boundary, b)
				require.NoError(t, r.boundary[b], "what is computed had its activations")
			}
		}
	}
	for b, err := range r.boundary {
		if err != nil {
			require.ErrorIs(t, err, skep.Stopped, "block %d", b)
		}
	}
	return computed
}

// Each stage of a pipeline restores on its own over a connection: its layers are loaded or
// computed, each block once, and what is computed had its activations before.
func TestStagesOverAConnection(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c, _, stop := traced(t)
	defer stop()
	sc, keys := putPipeline(t, c, 64)
	for stage := range pipelineSplit.Stages() {
		got := restoreStage(ctx, t, c, stageRequest(sc, keys, stage))
		t.Logf("stage %d: %d of %d blocks computed", stage, got.require(t, stage), len(keys))

		late := stageRequest(sc, keys, stage) // nothing of the KV comes: all is computed, from activations that do
		late.Chains[0].Deadline = time.Now().Add(-time.Second)
		got = restoreStage(ctx, t, c, late)
		require.Equal(t, len(keys), got.require(t, stage), "stage %d", stage)
	}
}

// The same with all of it landing in memory shared with the server.
func TestStagesInSharedMemory(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("no memfd on this system")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c, _, stop := traced(t, func(o *wire.Options) { o.SharedMemory = 32 << 20 })
	defer stop()
	sc, keys := putPipeline(t, c, 64)
	for stage := range pipelineSplit.Stages() {
		r := stageRequest(sc, keys, stage)
		for i, size := range []int{pipelineBlock, activations}[:len(r.Chains)] {
			mem, err := c.Alloc(ctx, int64(len(keys)*size))
			require.NoError(t, err)
			defer mem.Release()
			r.Chains[i].Dest = skep.Destination{Memory: mem.Bytes(), Stride: int64(size)}
		}
		got := restoreStage(ctx, t, c, r)
		t.Logf("stage %d: %d of %d blocks computed", stage, got.require(t, stage), len(keys))
		for b, k := range keys {
			at := pipelineSplit.Layers(stage, pipelineShape.Layers)
			if kv := r.Chains[0].Dest.Memory[b*pipelineBlock:]; got.loaded[b] {
				require.True(t, bytes.Equal(storetest.Payload(k, skep.PartKV, pipelineBlock)[at.From*pipelineBlock/6:at.To*pipelineBlock/6],
					kv[at.From*pipelineBlock/6:at.To*pipelineBlock/6]), "block %d", b)
			}
			if err, ok := got.boundary[b]; ok && err == nil {
				require.True(t, bytes.Equal(storetest.Payload(k, r.Chains[1].Part, activations), r.Chains[1].Dest.Memory[b*activations:(b+1)*activations]), "activations of block %d", b)
			}
		}
	}
	st, err := c.Stats(ctx)
	require.NoError(t, err)
	require.Positive(t, st.RestoredBytes)
}

// Activations of another split say so, and the stage loads all.
func TestStagesOfAnotherSplitOverAConnection(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c, _, stop := traced(t)
	defer stop()
	sc, keys := putPipeline(t, c, 16)
	r := stageRequest(sc, keys, 1)
	r.Chains[0].Layers, r.Chains[1].Part = skep.Split{4}.Layers(1, 6).Subset(), skep.Split{4}.BoundaryPart(1)
	got := restoreStage(ctx, t, c, r)
	conflicts := 0
	for b := range keys {
		require.True(t, got.loaded[b], "block %d", b)
		if skep.KindOf(got.boundary[b]) == skep.Conflict {
			conflicts++
		}
	}
	require.Positive(t, conflicts)

	r.Chains[1].Keys = keys[1:]
	_, err := c.Restore(ctx, r)
	require.ErrorIs(t, err, skep.Invalid, "activations of other blocks")
}
