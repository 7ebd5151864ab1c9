package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/storetest"
)

// Chains are restored by two pointers while reads fail and bring wrong bytes, blocks are deleted and put anew, and
// engines claim, stop, promote, give up waiting and close whenever they like. What lands is right, each chunk is
// answered once, and nothing is left: no session, no read that others could join, no memory, no block that is pinned.
func TestTwoPointersUnderFaults(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, drive := openFaulty(t, 1<<30, func(o *Options) { o.CacheBytes = 8 << 20 })
	sc := openModel(t, s)
	const n = 32
	chains := [][]skep.Key{chainKeys(1, n), chainKeys(2, n)}
	seed := testSeed(t)
	rounds := 12
	if testing.Short() {
		rounds = 4
	}
	for round := range rounds {
		for _, keys := range chains {
			putRun(t, s, sc, keys, modelBlock)
		}
		if round%2 == 1 {
			drive.MustInject(device.Rule{Action: device.FlipBit, Kinds: device.Reads, Probability: 0.02})
			drive.MustInject(device.Rule{Action: device.Fail, Kinds: device.Reads, Probability: 0.01,
				Err: io.ErrUnexpectedEOF})
		}
		crew := storetest.NewCrew(t)
		for i := range 4 {
			rng := rand.New(rand.NewPCG(seed, uint64(round*8+i)))
			crew.Go(func(t testing.TB) { drawnEngine(ctx, t, s, sc, chains[i%2], rng) })
		}
		rng := rand.New(rand.NewPCG(seed, uint64(round*8+7)))
		crew.Go(func(t testing.TB) {
			for range 3 {
				keys := chains[rng.IntN(2)]
				_, err := s.Delete(ctx, sc, keys[rng.IntN(n):])
				assert.NoError(t, err)
				putRun(t, s, sc, keys, modelBlock)
			}
		})
		crew.Wait()
		drive.Clear()
		eventually(t, "nothing is left", func() bool {
			st := s.restores.State()
			return st.Sessions == 0 && st.Joinable == 0 && st.Wanted == 0 && st.Ahead == 0 && s.arena.Stats().IOUsed == 0
		})
	}
}

// drawnEngine restores a chain some time, in a way that is drawn.
func drawnEngine(ctx context.Context, t testing.TB, s *Store, sc skep.Scope, keys []skep.Key, rng *rand.Rand) {
	for range 6 {
		c := skep.Chain{Scope: sc, Keys: keys, Direction: []skep.Direction{skep.TailFirst, skep.LayersDown}[rng.IntN(2)],
			Compute: &skep.Compute{Cost: skep.RecomputeCost{PerToken: time.Millisecond}}}
		dest := device.AlignedBuffer(len(keys)*modelBlock + 64)
		switch rng.IntN(3) {
		case 0:
			c.Dest = skep.Destination{Memory: dest[:len(keys)*modelBlock], Stride: modelBlock}
		case 1:
			c.Dest = skep.Destination{Memory: dest[64:], Stride: modelBlock}
		}
		ses, err := s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{c}})
		if !assert.NoError(t, err) {
			return
		}
		drawnSession(ctx, t, ses, &c, rng)
		assert.NoError(t, ses.Close(ctx))
	}
}

func drawnSession(ctx context.Context, t testing.TB, ses skep.Session, c *skep.Chain, rng *rand.Rand) {
	layer := modelBlock / model.Layers
	answered := map[string]bool{}
	into := make([]skep.Chunk, 1+rng.IntN(8))
	pos, end := 0, len(c.Keys)*model.BlockTokens
	if c.Direction == skep.LayersDown {
		end = model.Layers
	}
	for {
		waiting, cancel := context.WithCancel(ctx)
		if computing := pos < end; computing || rng.IntN(8) == 0 { // what is the engine's nobody loads
			cancel()
		}
		got, err := ses.Next(waiting, into)
		cancel()
		for i := range into[:got] {
			ch := &into[i]
			id := fmt.Sprint(ch.Block, ch.Layers)
			assert.False(t, answered[id], "block and layers %s twice", id)
			answered[id] = true
			if ch.Err == nil {
				want := content(c.Keys[ch.Block], skep.PartKV, 1, modelBlock)[ch.Layers.From*layer : ch.Layers.To*layer]
				have := bytes.Join(ch.Data, nil)
				if c.Dest.Memory != nil {
					have = c.Dest.Memory[ch.Block*modelBlock+ch.Layers.From*layer:][:len(want)]
				}
				assert.True(t, bytes.Equal(want, have), "bytes of block %s", id)
			}
			ch.Release()
		}
		switch {
		case errors.Is(err, io.EOF):
			want := len(c.Keys)
			if c.Direction == skep.LayersDown {
				want *= model.Layers
			}
			assert.Len(t, answered, want)
			return
		case err != nil:
			assert.Equal(t, skep.Deadline, skep.KindOf(err), "%v", err)
		}
		runtime.Gosched()
		switch rng.IntN(40) {
		case 0:
			return // closed in the middle
		case 1:
			assert.NoError(t, ses.Stop(ctx, 0))
		case 2:
			deadline := time.Now().Add(time.Duration(rng.IntN(3)) * time.Millisecond)
			if err := ses.Reprioritise(ctx, 0, rng.IntN(3), deadline); err != nil {
				assert.Equal(t, skep.Stopped, skep.KindOf(err), "%v", err)
			}
		case 3, 4, 5, 6, 7, 8, 9, 10:
			if pos >= end {
				break
			}
			claim, err := ses.Claim(ctx, 0, skep.Only(pos, min(pos+1+rng.IntN(64), end)), skep.Idle)
			if err != nil {
				assert.Equal(t, skep.Stopped, skep.KindOf(err), "%v", err)
				pos = end
				break
			}
			if claim.Granted.Len() > 0 {
				assert.NoError(t, ses.Computed(ctx, 0, claim.Granted, time.Millisecond, 0))
			}
			pos = claim.Next
		}
	}
}
