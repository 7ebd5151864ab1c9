package store

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
)

// boundarySize is the boundary activations of a block of model: 16 tokens of 256 bytes.
const boundarySize = 4096

// putStaged puts a chain of model whose blocks have the boundary activations of a split.
func putStaged(t testing.TB, s skep.Store, sc skep.Scope, keys []skep.Key, split skep.Split) []skep.PutResult {
	t.Helper()
	r := &skep.PutRequest{Scope: sc}
	for _, k := range keys {
		parts := []skep.Part{{Bytes: content(k, skep.PartKV, 1, modelBlock)}}
		for stage := 1; stage < split.Stages(); stage++ {
			name := split.BoundaryPart(stage)
			parts = append(parts, skep.Part{Name: name, Bytes: content(k, name, 1, boundarySize)})
		}
		r.Blocks = append(r.Blocks, skep.Block{Key: k, Parts: parts})
	}
	res, err := s.Put(testContext(t), r)
	require.NoError(t, err)
	return res
}

// staged is the request of one stage: its KV, and what brings its boundary activations.
func staged(sc skep.Scope, keys []skep.Key, split skep.Split, stage int, cost skep.RecomputeCost, dest []byte) *skep.RestoreRequest {
	r := &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys, Direction: skep.TailFirst, Layers: split.Layers(stage, model.Layers).Subset(),
		Dest: skep.Destination{Memory: dest, Stride: modelBlock}, Compute: &skep.Compute{Cost: cost}}}}
	if stage > 0 {
		r.Chains[0].Compute.Boundary = &skep.Boundary{Chain: 1, BytesPerToken: boundarySize / int64(model.BlockTokens)}
		r.Chains = append(r.Chains, skep.Chain{Scope: sc, Keys: keys, Part: split.BoundaryPart(stage)})
	}
	return r
}

// stageRun is what came of one stage's restore.
type stageRun struct {
	granted  []bool // blocks the engine computed
	loaded   []bool // blocks that landed
	boundary map[int]error
}

// runStage restores one stage beside an engine that takes perToken and computes only what
// it has the activations of.
func runStage(ctx context.Context, t testing.TB, s *Store, r *skep.RestoreRequest, perToken time.Duration) stageRun {
	t.Helper()
	ses, err := s.Restore(ctx, r)
	require.NoError(t, err)
	n := len(r.Chains[0].Keys)
	out := stageRun{make([]bool, n), make([]bool, n), map[int]error{}}
	here := make(chan int, n)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for pos, end := 0, n*model.BlockTokens; pos < end; {
			c, err := ses.Claim(ctx, 0, skep.Only(pos, end), skep.Idle)
			if err != nil || ctx.Err() != nil {
				return
			}
			if c.Granted.Len() == 0 && c.Next == pos {
				time.Sleep(200 * time.Microsecond)
				continue
			}
			if c.Granted.Len() > 0 {
				for b := c.Granted.From / model.BlockTokens; b < (c.Granted.To+model.BlockTokens-1)/model.BlockTokens; b++ {
					out.granted[b] = true
				}
				took := time.Duration(c.Granted.Len()) * perToken
				time.Sleep(took)
				_ = ses.Computed(ctx, 0, c.Granted, took, 0)
			}
			pos = c.Next
		}
	}()
	into := make([]skep.Chunk, 8)
	for {
		k, err := ses.Next(ctx, into)
		for _, ch := range into[:k] {
			switch {
			case ch.Chain == 1:
				if ch.Err == nil {
					key := r.Chains[1].Keys[ch.Block]
					require.True(t, bytes.Equal(content(key, r.Chains[1].Part, 1, boundarySize), bytes.Join(ch.Data, nil)), "activations of block %d", ch.Block)
					here <- ch.Block
				}
				out.boundary[ch.Block] = ch.Err
			case ch.Err == nil:
				out.loaded[ch.Block] = true
			}
			ch.Release()
		}
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
	}
	<-done
	require.NoError(t, ses.Close(ctx))
	return out
}

// Each stage restores on its own from its stored boundary activations: it loads its own layers
// and nothing of the others', computes only what it has the activations of, and needs all of a
// block once. The activations of what it does not compute are not read.
func TestStagesRestoreOnTheirOwn(t *testing.T) {
	t.Parallel() // it waits
	ctx := testContext(t)
	s := openSlow(t, 1<<20, nil)
	sc := openModel(t, s)
	keys := chainKeys(1, 128)
	split := skep.Split{2, 4}
	requireOutcome(t, skep.Committed, putStaged(t, s, sc, keys, split))
	requireChain(t, s, sc, keys[:8], modelBlock) // the store knows how slow its drive is
	allComputed := 0
	st, err := s.Stats(ctx)
	require.NoError(t, err)
	require.EqualValues(t, len(keys)*2*boundarySize, st.TwoPointers.BoundaryPut)
	for stage := range split.Stages() {
		layers := split.Layers(stage, model.Layers)
		dest := device.AlignedBuffer(len(keys) * modelBlock)
		for i := range dest {
			dest[i] = 0xA5
		}
		before, err := s.Stats(ctx)
		require.NoError(t, err)
		perToken := 10 * time.Microsecond // 20 ms; loading the KV of two layers: 1 s
		got := runStage(ctx, t, s, staged(sc, keys, split, stage, skep.RecomputeCost{PerToken: perToken}, dest), perToken)
		after, err := s.Stats(ctx)
		require.NoError(t, err)
		computed, loaded, activations := 0, 0, 0
		for b, k := range keys {
			require.True(t, got.granted[b] != got.loaded[b], "block %d is computed or loaded", b)
			block, want := dest[b*modelBlock:(b+1)*modelBlock], content(k, skep.PartKV, 1, modelBlock)
			for l := range model.Layers {
				at := skep.Range{From: l * modelBlock / model.Layers, To: (l + 1) * modelBlock / model.Layers}
				if got.loaded[b] && l >= layers.From && l < layers.To {
					require.True(t, bytes.Equal(want[at.From:at.To], block[at.From:at.To]), "layer %d of block %d", l, b)
				} else {
					require.EqualValues(t, 0xA5, block[at.From], "layer %d of block %d is not this stage's to load", l, b)
				}
			}
			if got.granted[b] {
				computed++
				if stage > 0 {
					require.Contains(t, got.boundary, b)
					require.NoError(t, got.boundary[b], "what is computed had its activations")
				}
			} else {
				loaded++
			}
			if err, ok := got.boundary[b]; ok && err == nil {
				activations++
			} else if ok {
				require.ErrorIs(t, err, skep.Stopped)
			}
		}
		allComputed += computed
		require.EqualValues(t, activations*boundarySize, after.TwoPointers.BoundaryBytes-before.TwoPointers.BoundaryBytes, "they are counted")
		t.Logf("stage %d, layers %v: %d blocks computed, %d loaded, activations of %d", stage, layers, computed, loaded, activations)
	}
	require.Positive(t, allComputed)
}

// Boundary activations of another split are refused with a typed error; the stage then loads all it has.
func TestStagesOfAnotherSplit(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s := openSlow(t, 1<<30, nil)
	sc := openModel(t, s)
	keys := chainKeys(1, 32)
	requireOutcome(t, skep.Committed, putStaged(t, s, sc, keys, skep.Split{2, 4}))
	dest := device.AlignedBuffer(len(keys) * modelBlock)
	other := skep.Split{4}
	got := runStage(ctx, t, s, staged(sc, keys, other, 1, skep.RecomputeCost{PerToken: 10 * time.Microsecond}, dest), 10*time.Microsecond)
	refused := 0
	for b := range keys {
		require.True(t, got.loaded[b], "block %d", b)
		require.Error(t, got.boundary[b])
		if skep.KindOf(got.boundary[b]) == skep.Conflict {
			refused++
			var e *skep.Error
			require.ErrorAs(t, got.boundary[b], &e)
			require.Equal(t, other, e.Value)
			require.Equal(t, skep.Split{2, 4}, e.Limit)
		}
	}
	require.Positive(t, refused)
}

// A stage whose KV does not come computes it, and is brought the activations for that.
func TestStagesComputeWhatDoesNotCome(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s := openSlow(t, 1<<30, nil)
	sc := openModel(t, s)
	keys := chainKeys(1, 32)
	split := skep.Split{4}
	requireOutcome(t, skep.Committed, putStaged(t, s, sc, keys, split))
	r := staged(sc, keys, split, 1, skep.RecomputeCost{PerToken: 10 * time.Microsecond}, device.AlignedBuffer(len(keys)*modelBlock))
	r.Chains[0].Deadline = time.Now().Add(-time.Second)
	got := runStage(ctx, t, s, r, 10*time.Microsecond)
	for b := range keys {
		require.False(t, got.loaded[b])
		require.True(t, got.granted[b], "block %d is the engine's", b)
		require.NoError(t, got.boundary[b], "activations of block %d", b)
	}
}

func TestStagesRefuseWhatDoesNotFit(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s := openSlow(t, 1<<30, nil)
	sc := openModel(t, s)
	keys := chainKeys(1, 4)
	split := skep.Split{2, 4}
	for name, change := range map[string]func(r *skep.RestoreRequest){
		"no such chain":          func(r *skep.RestoreRequest) { r.Chains[0].Compute.Boundary.Chain = 2 },
		"itself":                 func(r *skep.RestoreRequest) { r.Chains[0].Compute.Boundary.Chain = 0 },
		"no boundary part":       func(r *skep.RestoreRequest) { r.Chains[1].Part = "state" },
		"other keys":             func(r *skep.RestoreRequest) { r.Chains[1].Keys = chainKeys(2, 4) },
		"other blocks":           func(r *skep.RestoreRequest) { r.Chains[1].Blocks = skep.Only(1, 4) },
		"another's salt":         func(r *skep.RestoreRequest) { r.Chains[1].Salt = skep.Salt("s") },
		"another stage's layers": func(r *skep.RestoreRequest) { r.Chains[0].Layers = skep.Only(4, 8) },
		"all layers":             func(r *skep.RestoreRequest) { r.Chains[0].Layers = skep.All },
		"tail first":             func(r *skep.RestoreRequest) { r.Chains[1].Direction = skep.TailFirst },
		"by layers":              func(r *skep.RestoreRequest) { r.Chains[0].Direction = skep.LayersDown },
		"only loaded":            func(r *skep.RestoreRequest) { r.Chains[0].Compute.LoadOnly = true },
		"no size":                func(r *skep.RestoreRequest) { r.Chains[0].Compute.Boundary.BytesPerToken = 0 },
		"tied twice": func(r *skep.RestoreRequest) {
			r.Chains = append(r.Chains, r.Chains[0])
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := staged(sc, keys, split, 1, skep.RecomputeCost{PerToken: 1}, nil)
			r.Chains[0].Dest = skep.Destination{}
			change(r)
			_, err := s.Restore(ctx, r)
			requireKind(t, skep.Invalid, err)
		})
	}
}
