package store

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/memory"
	"github.com/skepkv/skep/store/storetest"
)

// openKeeping is a slow store with a DRAM tier.
func openKeeping(t *testing.T, cache int64) *Store {
	return openSlow(t, 32<<20, func(o *Options) { o.CacheBytes = cache })
}

// loaded is a chain of which the engine computes nothing, so that all of it is loaded.
func loaded(sc skep.Scope, keys []skep.Key, weight float64) skep.Chain {
	return skep.Chain{Scope: sc, Keys: keys, Direction: skep.TailFirst, Compute: &skep.Compute{Cost: skep.RecomputeCost{PerToken: time.Second}, Weight: weight},
		Dest: skep.Destination{Memory: device.AlignedBuffer(len(keys) * modelBlock), Stride: modelBlock}}
}

// Two planned chains of a batch share a prefix, and one is loaded before the other begins to be: what the first has
// read is not read again. The same for chains of two sessions.
func TestAPrefixThatIsStillWantedIsReadOnce(t *testing.T) {
	t.Parallel()
	const n = 128
	for _, sessions := range []int{1, 2} {
		ctx := testContext(t)
		s, drive := openFaulty(t, 32<<20, func(o *Options) { o.CacheBytes = 32 << 20 })
		sc := openModel(t, s)
		r, keys := sharing(t, s, sc, n, false)
		s.cache.Drop(func(memory.ID) bool { return true })
		drive.MustInject(device.Rule{Action: device.Hold, Kinds: device.Reads}) // until both are wanted
		before := statsOf(t, s)
		r.Chains = []skep.Chain{loaded(sc, keys[0], 100), loaded(sc, keys[1], 1)}
		requests := []*skep.RestoreRequest{r}
		if sessions == 2 {
			requests = []*skep.RestoreRequest{{Chains: r.Chains[:1]}, {Chains: r.Chains[1:]}}
		}
		var all []skep.Session
		for _, r := range requests {
			ses, err := s.Restore(ctx, r)
			require.NoError(t, err)
			all = append(all, ses)
		}
		drive.Clear()
		drive.Release()
		for _, ses := range all {
			_, _, missed := collect(ctx, t, ses)
			require.Empty(t, missed)
			require.NoError(t, ses.Close(ctx))
		}
		for i, c := range r.Chains {
			for b, k := range keys[i] {
				require.True(t, bytes.Equal(content(k, skep.PartKV, 1, modelBlock), c.Dest.Memory[b*modelBlock:(b+1)*modelBlock]), "block %d of chain %d", b, i)
			}
		}
		after := statsOf(t, s)
		read := after.Devices[0].BytesRead - before.Devices[0].BytesRead
		t.Logf("%d sessions: of %d blocks asked for, %d different, %.1f were read, %d kept, %d joined", sessions, 2*n, n+4, float64(read)/modelBlock,
			after.KeptBytes/modelBlock, after.JoinedBytes/modelBlock)
		require.LessOrEqual(t, read, int64(n+4)*modelBlock+noise)
		require.Positive(t, after.KeptBytes)
		require.Zero(t, s.restores.State().Wanted, "nobody wants anything any more")
	}
}

// What nobody else wants is not kept, and without a DRAM tier nothing is.
func TestWhatNobodyElseWantsIsNotKept(t *testing.T) {
	t.Parallel()
	for _, cache := range []int64{32 << 20, -1} {
		ctx := testContext(t)
		s := openKeeping(t, cache)
		sc := openModel(t, s)
		_, keys := sharing(t, s, sc, 32, false)
		if s.cache != nil {
			s.cache.Drop(func(memory.ID) bool { return true })
		}
		for _, k := range keys { // one after the other: each is over before the next begins
			ses, err := s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{loaded(sc, k, 1)}})
			require.NoError(t, err)
			_, _, missed := collect(ctx, t, ses)
			require.Empty(t, missed)
			require.NoError(t, ses.Close(ctx))
		}
		require.Zero(t, statsOf(t, s).KeptBytes)
		require.Zero(t, s.restores.State().Wanted)
	}
}

// Batches of prompts that share prefixes, some computed in part, some stopped, in a DRAM tier too small for them:
// every byte that is delivered is right, and nothing is wanted or held at the end.
func TestKeptBytesAreRight(t *testing.T) {
	t.Parallel()
	const seed = 20261124
	t.Logf("seed %d", seed)
	ctx := testContext(t)
	s := openSlow(t, 256<<20, func(o *Options) { o.CacheBytes = 2 << 20 })
	sc := openModel(t, s)
	_, keys := sharing(t, s, sc, 96, false)
	rng := rand.New(rand.NewPCG(seed, 0))
	rounds := 12
	if testing.Short() {
		rounds = 4
	}
	for range rounds {
		var wg sync.WaitGroup
		for range 2 + rng.IntN(3) {
			mine := rand.New(rand.NewPCG(seed, rng.Uint64()))
			r := &skep.RestoreRequest{}
			for range 1 + mine.IntN(3) {
				k := keys[mine.IntN(2)]
				c := loaded(sc, k[:1+mine.IntN(len(k))], 1+9*mine.Float64())
				switch mine.IntN(4) {
				case 0:
					c.Compute.Cost, c.Compute.LoadOnly = skep.RecomputeCost{PerToken: time.Microsecond}, true // declined: nobody computes here
				case 1:
					c.Compute, c.Direction = nil, skep.Direction(mine.IntN(4))
				case 2:
					c.Direction = skep.LayersDown
				}
				r.Chains = append(r.Chains, c)
			}
			ses, err := s.Restore(ctx, r)
			require.NoError(t, err)
			wg.Go(func() {
				into := make([]skep.Chunk, 8)
				for {
					n, err := ses.Next(ctx, into)
					for _, x := range into[:n] {
						if x.Err != nil {
							continue
						}
						c := &r.Chains[x.Chain]
						from, to := x.Layers.From*modelBlock/model.Layers, x.Layers.To*modelBlock/model.Layers
						want := content(c.Keys[x.Block], skep.PartKV, 1, modelBlock)[from:to]
						if !bytes.Equal(want, c.Dest.Memory[x.Block*modelBlock+from:x.Block*modelBlock+to]) {
							t.Errorf("block %d of chain %d, %v", x.Block, x.Chain, c.Direction)
						}
					}
					if err != nil {
						break
					}
					switch i := mine.IntN(len(r.Chains)); mine.IntN(20) {
					case 0:
						assert.NoError(t, ses.Stop(ctx, i))
					case 1:
						if c := &r.Chains[i]; c.Compute != nil && c.Direction == skep.TailFirst {
							_, _ = ses.Claim(ctx, i, skep.Only(0, model.BlockTokens*len(c.Keys)), skep.Idle) // stopped ones refuse
						}
					}
				}
				assert.NoError(t, ses.Close(ctx))
			})
		}
		wg.Wait()
	}
	require.Zero(t, s.restores.State().Wanted)
	t.Logf("%d KiB kept, %d KiB joined", statsOf(t, s).KeptBytes>>10, statsOf(t, s).JoinedBytes>>10)
}

// Values that are replaced while restores that want them go on: nobody gets a version older than the last that was
// committed before it began.
func TestKeptBytesAreNotStale(t *testing.T) {
	t.Parallel()
	const seed, n = 20261125, 24
	t.Logf("seed %d", seed)
	ctx := testContext(t)
	s := openKeeping(t, 8<<20)
	ns, err := s.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "t", Name: "v", Model: "v", Shape: skep.Shape{BlockTokens: 1, Bytes: modelBlock}})
	require.NoError(t, err)
	sc := skep.Scope{Namespace: ns.ID}
	keys := chainKeys(1, n)
	var mu sync.Mutex
	done := make([]uint64, n)
	put := func(t testing.TB, i int, version uint64) {
		b := bytes.Repeat(binary.LittleEndian.AppendUint64(nil, version<<8|uint64(i)), modelBlock/8)
		res, err := s.Put(ctx, &skep.PutRequest{Scope: sc, Blocks: []skep.Block{{Key: keys[i], Parts: []skep.Part{{Bytes: b}}}}})
		require.NoError(t, err)
		requireOutcome(t, skep.Committed, res)
		mu.Lock()
		done[i] = max(done[i], version)
		mu.Unlock()
	}
	for i := range n {
		put(t, i, 1)
	}
	wg := storetest.NewCrew(t)
	over := make(chan struct{})
	wg.Go(func(t testing.TB) {
		rng := rand.New(rand.NewPCG(seed, 1))
		for v := uint64(2); ; v++ {
			select {
			case <-over:
				return
			default:
				put(t, rng.IntN(n), v)
			}
		}
	})
	readers := storetest.NewCrew(t)
	for range 3 {
		readers.Go(func(t testing.TB) {
			for range 20 {
				mu.Lock()
				least := append([]uint64(nil), done...)
				mu.Unlock()
				r := &skep.RestoreRequest{Chains: []skep.Chain{loaded(sc, keys, 100), loaded(sc, keys, 1)}}
				ses, err := s.Restore(ctx, r)
				require.NoError(t, err)
				into := make([]skep.Chunk, 8)
				for {
					k, err := ses.Next(ctx, into)
					for _, x := range into[:k] {
						if x.Err != nil {
							continue // replaced under its feet
						}
						mem := r.Chains[x.Chain].Dest.Memory[x.Block*modelBlock:][:modelBlock]
						v := binary.LittleEndian.Uint64(mem)
						if v&0xff != uint64(x.Block) || v>>8 < least[x.Block] || !bytes.Equal(mem, bytes.Repeat(mem[:8], modelBlock/8)) {
							t.Errorf("block %d: version %d of %d, at least %d", x.Block, v>>8, v&0xff, least[x.Block])
						}
					}
					if err != nil {
						break
					}
				}
				require.NoError(t, ses.Close(ctx))
			}
		})
	}
	readers.Wait()
	close(over)
	wg.Wait()
	t.Logf("%d KiB kept", statsOf(t, s).KeptBytes>>10)
	require.Zero(t, s.restores.State().Wanted)
}
