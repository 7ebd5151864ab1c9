package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/tools/drawn"
)

// The adversary idle: after any load a store comes to rest, and stays so. Time is a bubble's, so hours take no longer
// than what is done in them.
func TestAStoreComesToRest(t *testing.T) {
	t.Parallel()
	seed := drawn.Seed(t)
	long, _ := time.ParseDuration(os.Getenv("SKEP_IDLE_TIME"))
	for end := time.Now().Add(long); ; seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { restAfterAll(t, seed) })
		if t.Failed() || time.Now().After(end) {
			return
		}
	}
}

func restAfterAll(t *testing.T, seed uint64) {
	for _, policy := range []string{"cost", "lru", "s3fifo"} {
		for _, copies := range []int{1, 2} {
			for _, load := range []string{"little", "more than it holds", "deleted again"} {
				t.Run(fmt.Sprintf("%s, %d copies, %s", policy, copies, load), func(t *testing.T) {
					t.Parallel()
					dir := t.TempDir()
					synctest.Test(t, func(t *testing.T) { restAfter(t, dir, seed, policy, copies, load) })
				})
			}
		}
	}
}

func restAfter(t *testing.T, dir string, seed uint64, policy string, copies int, load string) {
	const segment = 256 << 10
	s, err := Open(t.Context(), Options{
		Dir: dir, DeviceCount: 2, Policy: policy, SegmentBytes: segment, CapacityBytes: 2 * (12*segment + 64<<10),
		BlockBytes: 8 << 10, CacheBytes: 256 << 10, LeasedBytes: 1 << 50,
		OpenDevice: func(_ int, _ string, _ bool, size int64) (device.Device, error) { return device.NewMemory(size), nil },
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	r := rand.New(rand.NewPCG(seed, uint64(copies)))
	var spaces []skep.Scope
	for _, class := range []skep.Class{skep.Cache, skep.Durable} {
		spaces = append(spaces, openSpace(t, s, fmt.Sprint("n", class), class, copies, false))
	}
	blocks := 40
	if load == "more than it holds" {
		blocks = 1500
	}
	for i := range blocks {
		sc, size := spaces[i%2], []int{300, 5000, 20 << 10}[r.IntN(3)]
		if i%2 == 1 && i > 200 { // what is durable is not evicted
			sc = spaces[0]
		}
		key := keyOf(uint32(i), 1)
		ack := skep.AckCommitted
		if r.IntN(4) == 0 && i%2 == 0 {
			ack = skep.AckAccepted
		}
		_, err := s.Put(t.Context(), &skep.PutRequest{Scope: sc, Ack: ack,
			Blocks: []skep.Block{{Key: key, Parts: []skep.Part{{Bytes: make([]byte, size)}}}}})
		require.NoError(t, err)
		switch r.IntN(6) {
		case 0:
			_, err = s.Delete(t.Context(), sc, []skep.Key{keyOf(uint32(r.IntN(i+1)), 1)})
		case 1:
			_, err = s.Hint(t.Context(), sc, []skep.Key{keyOf(uint32(r.IntN(i+1)), 1)}, skep.Hint{NextUse: time.Second})
		case 2:
			err = skep.Load(t.Context(), s, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: []skep.Key{key}}}},
				func(*skep.Chunk) error { return nil })
		}
		require.NoError(t, err)
	}
	if load == "deleted again" {
		for _, sc := range spaces {
			require.NoError(t, s.Purge(t.Context(), skep.Purge{Namespace: sc.Namespace}))
		}
	}
	time.Sleep(time.Minute)
	type figures struct{ written, read, flushes int64 }
	now := func() (f figures) {
		st, err := s.Stats(context.WithoutCancel(t.Context()))
		require.NoError(t, err)
		for _, d := range st.Devices {
			f.written += d.BytesWritten
			f.read += d.BytesRead
			f.flushes += d.Flushes
		}
		return f
	}
	rest := now()
	for range 6 { // a last group may be cleaned after the first minute
		time.Sleep(10 * time.Minute)
		was := rest
		if rest = now(); rest == was {
			break
		}
	}
	for range 6 {
		time.Sleep(10 * time.Minute)
		require.Equal(t, rest, now(), "an hour without a caller")
	}
}
