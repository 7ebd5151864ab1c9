//go:build unix

package store

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/memory"
)

// foreign is memory that is not Go's, as what a client shares is not: the race detector does
// not watch it, and these tests write to it while the store reads it.
func foreign(t *testing.T, n int) []byte {
	t.Helper()
	mem, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, syscall.Munmap(mem)) })
	return mem
}

// scribble changes a byte of each block in mem all the time, until what it gives is called.
func scribble(mem []byte, block int) (stop func()) {
	over := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			for at := block / 2; at < len(mem); at += block {
				mem[at] ^= 0x5a
			}
			select {
			case <-over:
				return
			default:
			}
		}
	})
	return func() { close(over); wg.Wait() }
}

// deliverAll runs a session to its end and gives each chunk as it is delivered.
func deliverAll(ctx context.Context, t *testing.T, s *Store, r *skep.RestoreRequest, each func(*skep.Chunk)) {
	t.Helper()
	ses, err := s.Restore(ctx, r)
	require.NoError(t, err)
	into := make([]skep.Chunk, 1)
	for {
		n, err := ses.Next(ctx, into)
		for i := range into[:n] {
			each(&into[i])
			into[i].Release()
		}
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
	}
	require.NoError(t, ses.Close(ctx))
}

// One session restores two chains of the same blocks, and whoever shares the first chain's
// destination writes to it all the time. The second gets right bytes, the DRAM tier keeps right
// bytes, and the store goes on to have every block: what a reader does to its own memory says
// nothing of a drive.
func TestAReaderWritesToItsDestination(t *testing.T) {
	t.Parallel()
	const n = 16
	for name, planned := range map[string]bool{"joined": false, "kept for others": true} {
		t.Run(name, func(t *testing.T) {
			ctx := testContext(t)
			mem := foreign(t, 2*n*modelBlock) // it outlives the store
			s := openSlow(t, 1<<30, func(o *Options) { o.CacheBytes = 8 << 20; unjudged(o) })
			sc := openModel(t, s)
			keys := chainKeys(1, n)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, modelBlock))
			stop := scribble(mem[:n*modelBlock], modelBlock)
			defer stop()
			end := time.Now().Add(300 * time.Millisecond) // of trying to be unlucky
			if testing.Short() {
				end = time.Now().Add(100 * time.Millisecond)
			}
			for round := 0; round < 3 || time.Now().Before(end); round++ {
				s.cache.Drop(func(memory.ID) bool { return true })
				r := &skep.RestoreRequest{}
				for i := range 2 {
					c := skep.Chain{Scope: sc, Keys: keys}
					if planned {
						c = loaded(sc, keys, float64(100-99*i))
					}
					c.Dest = skep.Destination{Memory: mem[i*n*modelBlock:][:n*modelBlock], Stride: modelBlock}
					r.Chains = append(r.Chains, c)
				}
				deliverAll(ctx, t, s, r, func(ch *skep.Chunk) {
					if ch.Chain == 1 && ch.Err == nil {
						right := bytes.Equal(content(keys[ch.Block], skep.PartKV, 1, modelBlock), mem[(n+ch.Block)*modelBlock:][:modelBlock])
						require.True(t, right, "block %d, round %d", ch.Block, round)
					}
				})
				requireChain(t, s, sc, keys, modelBlock) // from where it was kept, or from the drive
			}
			require.Zero(t, statsOf(t, s).Damaged)
			d := s.members.Opened[0]
			require.Equal(t, health.Healthy, d.Condition())
		})
	}
}

// A read into a destination whose bytes are wrong is made again, into memory of the store's own,
// before anything is concluded: what is right there is delivered, and nobody is blamed; what is
// wrong there, too, is a miss and the block is forgotten.
func TestABlockIsCondemnedFromPrivateMemoryOnly(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ times, damaged int }{
		"wrong in the destination only": {1, 0},
		"wrong on the drive":            {0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s, r, _ := openRig(t, func(o *Options) { o.DeviceCount = 1 })
			defer func() { require.NoError(t, s.Close()) }()
			sc := openSpace(t, s, "n", skep.Cache, 1, true)
			keys := chainKeys(1, 1)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 8<<10))
			rule := r.faults[0].MustInject(device.Rule{Action: device.FlipBit, Kinds: device.Reads, Times: tt.times,
				Match: func(o *device.Op) bool { return o.Len() == 8<<10 }})
			dest := device.AlignedBuffer(8 << 10)
			list, err := fetch(testContext(t), s, skep.Chain{Scope: sc, Keys: keys, Dest: skep.Destination{Memory: dest, Stride: 8 << 10}})
			require.NoError(t, err)
			if tt.damaged == 0 {
				require.NoError(t, list[0].err)
				require.True(t, bytes.Equal(content(keys[0], skep.PartKV, 1, 8<<10), list[0].data))
				require.Equal(t, 1, rule.Fired())
			} else {
				requireKind(t, skep.Damaged, list[0].err)
				require.Equal(t, 2, rule.Fired(), "once more, into private memory")
			}
			rule.Remove()
			require.EqualValues(t, tt.damaged, statsOf(t, s).Damaged)
			eventually(t, "it is forgotten, or is there", func() bool {
				found, err := s.Lookup(testContext(t), &skep.LookupRequest{Scope: sc, Keys: keys, Lease: skep.NoLease})
				require.NoError(t, err)
				return found.Blocks == 1-tt.damaged
			})
		})
	}
}

// What others write while it is put is stored as one thing: what is hashed is what is written.
func TestAnExposedPutIsStoredWhole(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int{"in pages": 64 << 10, "larger than a buffer": 3 << 20, "sharing a page": 1000, "in its record": 200} {
		t.Run(name, func(t *testing.T) {
			pages := (size + device.Align - 1) &^ (device.Align - 1)
			mem := foreign(t, 8*pages)
			s, r, _ := openRig(t, func(o *Options) {
				o.DeviceCount, o.BlockBytes, o.SegmentBytes, o.CapacityBytes, o.IOBytes = 1, 2<<20, 8<<20, 128<<20, 32<<20
			})
			defer func() { require.NoError(t, s.Close()) }()
			sc := openSpace(t, s, "n", skep.Cache, 1, true)
			defer scribble(mem, min(pages, 100))()
			rounds := 12
			if testing.Short() {
				rounds = 4
			}
			for round := range rounds {
				keys := chainKeys(round, 8)
				req := &skep.PutRequest{Scope: sc, Exposed: true}
				for i, k := range keys {
					req.Blocks = append(req.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: mem[i*pages:][:size:size]}}})
				}
				res, err := s.Put(testContext(t), req)
				require.NoError(t, err)
				requireOutcome(t, skep.Committed, res)
				list, err := fetch(testContext(t), s, skep.Chain{Scope: sc, Keys: keys})
				require.NoError(t, err)
				for i, g := range list {
					require.NoError(t, g.err, "block %d", i)
				}
			}
			require.Zero(t, statsOf(t, s).Damaged)
			r.each(func(_ int, d *device.Fault) { require.Zero(t, d.Stats().Errors()) })
		})
	}
}
