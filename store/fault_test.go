package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/memory"
	"github.com/skepkv/skep/store/storetest"
)

// openRig opens a store on memory devices with faults.
func openRig(t *testing.T, change func(o *Options)) (*Store, *rig, Options) {
	t.Helper()
	r := &rig{seed: 1}
	o := small(tempRoot(t, "store"))
	o.OpenDevice, o.CatalogFS, o.CacheBytes = r.open, vfs.NewMem(), -1
	o.SpaceTimeout = 5 * time.Second
	if change != nil {
		change(&o)
	}
	s, err := Open(context.Background(), o)
	require.NoError(t, err)
	return s, r, o
}

const faultBlock = 12 << 10

// What a drive does wrong with reads costs misses of the blocks concerned, with the
// reason; other blocks come, the store goes on, and a second copy steps in.
func TestReadFaults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		rule    device.Rule
		reason  skep.Kind // of the misses without a second copy
		damaged bool
	}{
		{"EIO", device.Rule{Action: device.Fail, Kinds: device.Reads}, skep.DeviceFailed, false},
		{"device gone", device.GoneRule(), skep.DeviceFailed, false},
		{"a flipped bit", device.Rule{Action: device.FlipBit, Kinds: device.Reads}, skep.Damaged, true},
		{"a misdirected read", device.Rule{Action: device.Misdirect, Kinds: device.Reads, Shift: 64 << 10}, skep.Damaged, true},
		{"a lost read", device.Rule{Action: device.Drop, Kinds: device.Reads}, skep.Damaged, true},
	} {
		for _, copies := range []int{1, 2} {
			t.Run(tt.name+", copies "+itoa(copies), func(t *testing.T) {
				ctx := testContext(t)
				s, r, _ := openRig(t, nil)
				defer func() { require.NoError(t, s.Close()) }()
				sc := openSpace(t, s, "n", skep.Durable, copies, true)
				keys := chainKeys(1, 40)
				requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
				events, err := s.Events(ctx, skep.Cursor{}, false)
				require.NoError(t, err)
				defer events.Close()

				r.faults[0].MustInject(tt.rule)
				n, reasons := requireRight(t, s, sc, keys, faultBlock)
				if copies == 2 {
					require.Equal(t, len(keys), n, "the other copy serves: %v", reasons)
				} else {
					require.Equal(t, map[skep.Kind]int{tt.reason: len(keys) - n}, reasons)
					require.Positive(t, n, "blocks on the other drive come")
					require.Less(t, n, len(keys))
				}
				st, err := s.Stats(ctx)
				require.NoError(t, err)
				require.Equal(t, "ok", st.State)
				if tt.damaged {
					require.Positive(t, st.Damaged)
					for into := make([]skep.Event, 1); into[0].Kind != skep.EventDamaged; {
						_, err := events.Next(ctx, into)
						require.NoError(t, err)
					}
				} else {
					require.Zero(t, st.Damaged)
				}

				if copies == 1 && !tt.damaged { // that it failed is noticed a moment later, and would be after it is well
					eventually(t, "the drive is fenced", func() bool { return !r.faultsOk(s) })
				}
				r.faults[0].Clear()
				eventually(t, "the drive is let back in", func() bool { return r.faultsOk(s) })
				if copies == 2 || !tt.damaged { // what was found damaged is gone, what was not read comes back
					requireChain(t, s, sc, keys, faultBlock)
				}
				more := chainKeys(2, 4)
				eventually(t, "what is put is stored", func() bool { // a drive may be fenced only now, for what was
					for _, res := range putRun(t, s, sc, more, faultBlock) {
						if res.Outcome == skep.Declined {
							return false
						}
					}
					return true
				})
				requireChain(t, s, sc, more, faultBlock)
			})
		}
	}
}

// A block that was read wrong, and waits for memory to be read from its other copy, keeps no worker from the blocks of others.
func TestRetriesWaitForMemoryOnNoWorker(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, _ := openRig(t, func(o *Options) { o.Workers, o.OpTimeout = 1, time.Hour })
	defer func() { require.NoError(t, s.Close()) }()
	sc, small := openSpace(t, s, "large", skep.Durable, 2, true), openSpace(t, s, "small", skep.Durable, 2, true)
	keys := chainKeys(1, 1)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 4096))
	requireOutcome(t, skep.Committed, putRun(t, s, small, keys, 300))
	require.NoError(t, s.Flush(ctx))

	var bufs []*memory.Buffer
	crew, next := storetest.NewCrew(t), make(chan *memory.Buffer, 1)
	useUp := func() { // and be the first to be given what comes back
		for n := s.arena.MaxBlock(); n > 0; {
			b, err := s.arena.TryAlloc(n, memory.BudgetIO)
			if err != nil {
				n /= 2
				continue
			}
			bufs = append(bufs, b)
		}
		crew.Go(func(t testing.TB) {
			defer close(next)
			b, err := s.arena.Alloc(ctx, 4096, memory.BudgetIO)
			require.NoError(t, err)
			next <- b
		})
		for s.arena.Stats().Waiters == 0 {
			runtime.Gosched()
		}
	}
	var first atomic.Bool
	for _, f := range r.faults {
		f.MustInject(device.Rule{Action: device.FlipBit, Kinds: device.Reads, Match: func(*device.Op) bool {
			mine := first.CompareAndSwap(false, true)
			if mine { // the block has the memory it is read into
				done := make(chan struct{})
				go func() { defer close(done); useUp() }()
				<-done
			}
			return mine
		}})
	}
	crew.Go(func(t testing.TB) { requireChain(t, s, sc, keys, 4096) })
	b := <-next // the block has given its memory back
	require.NotNil(t, b)
	giveBack := sync.OnceFunc(func() { memory.ReleaseAll(append(bufs, b)) })
	defer giveBack()
	requireChain(t, s, small, keys, 300)
	giveBack()
	crew.Wait()
}

// A write that went to the wrong place destroys another block: both are misses.
func TestMisdirectedWrites(t *testing.T) {
	t.Parallel()
	s, r, o := openRig(t, nil)
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	keys := chainKeys(1, 60)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys[:30], faultBlock))
	for _, f := range r.faults {
		f.MustInject(device.Rule{Action: device.Misdirect, Kinds: device.Writes, Shift: -(8 << 10), Probability: 0.2})
	}
	res, err := s.Put(testContext(t), putRequest(sc, &keys[29], 30, keys[30:], faultBlock))
	require.NoError(t, err)
	requireOutcome(t, skep.Committed, res) // the drive said so
	for _, f := range r.faults {
		f.Clear()
	}
	n, reasons := requireRight(t, s, sc, keys, faultBlock)
	require.Less(t, n, len(keys))
	require.Positive(t, reasons[skep.Damaged], "%v", reasons)
	require.NoError(t, s.Close())
	s, err = Open(context.Background(), o)
	require.NoError(t, err)
	again, _ := requireRight(t, s, sc, keys, faultBlock)
	require.LessOrEqual(t, again, n)
	require.NoError(t, s.Close())
}

func putRequest(sc skep.Scope, parent *skep.Key, depth int, keys []skep.Key, size int) *skep.PutRequest {
	r := &skep.PutRequest{Scope: sc, Parent: parent, Depth: depth}
	for _, k := range keys {
		r.Blocks = append(r.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: content(k, skep.PartKV, 1, size)}}})
	}
	return r
}

// A drive that refuses writes: puts are declined until they find room on other drives;
// reads go on; what was acknowledged stays.
func TestWriteFaults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		rule device.Rule
	}{
		{"EIO", device.Rule{Action: device.Fail, Kinds: device.Writes}},
		{"read-only drive", device.ReadOnlyRule()},
		{"failing flushes", device.Rule{Action: device.Fail, Kinds: device.Flushes}},
	} {
		for _, class := range []skep.Class{skep.Cache, skep.Durable} {
			t.Run(tt.name+", "+class.String(), func(t *testing.T) {
				s, r, o := openRig(t, func(o *Options) { o.DeviceCount, o.CapacityBytes = 3, 4*o.CapacityBytes })
				sc := openSpace(t, s, "n", class, 1, true)
				before := chainKeys(1, 20)
				requireOutcome(t, skep.Committed, putRun(t, s, sc, before, faultBlock))

				r.faults[1].MustInject(tt.rule)
				acked := 0
				var kept [][]skep.Key
				for i := range 6 {
					keys := chainKeys(100+i, 20)
					for j, res := range putRun(t, s, sc, keys, faultBlock) {
						switch res.Outcome {
						case skep.Declined:
							require.Equal(t, skep.DeviceFailed, res.Reason)
						case skep.Committed:
							acked++
							if j == len(keys)-1 {
								kept = append(kept, keys)
							}
						}
					}
				}
				requireChain(t, s, sc, before, faultBlock)
				for _, keys := range kept {
					requireRight(t, s, sc, keys, faultBlock)
				}
				if tt.rule.Kinds&device.Writes != 0 {
					require.Positive(t, acked, "other drives take what one cannot")
					st, err := s.Stats(testContext(t))
					require.NoError(t, err)
					require.Contains(t, st.Devices[1].State, "fenced")
				}

				r.faults[1].Clear()
				eventually(t, "puts are taken again", func() bool {
					root := int(time.Now().UnixNano())
					return putRun(t, s, sc, chainKeys(root, 1), faultBlock)[0].Outcome == skep.Committed
				})
				require.NoError(t, s.Close())
				s, err := Open(context.Background(), o)
				require.NoError(t, err)
				requireChain(t, s, sc, before, faultBlock)
				for _, keys := range kept {
					requireRight(t, s, sc, keys, faultBlock)
				}
				require.NoError(t, s.Close())
			})
		}
	}
}

// stingy is a device that cannot grow past a size: its disk is full.
type stingy struct {
	device.Device
	most  *atomic.Int64
	asked *atomic.Int64
}

func (d stingy) Grow(size int64) error {
	d.asked.Add(1)
	if size > d.most.Load() {
		return syscall.ENOSPC
	}
	return d.Device.Grow(size)
}

func (d stingy) Unwrap() device.Device { return d.Device }

// A store without a cap on a disk that is full: what the devices have is the cap now;
// puts evict or are declined, reads go on; at the next open it may grow again.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	for _, class := range []skep.Class{skep.Cache, skep.Durable} {
		t.Run(class.String(), func(t *testing.T) {
			var most, asked atomic.Int64
			var r *rig
			s, r, o := openRig(t, func(o *Options) {
				o.CapacityBytes, o.ReserveBytes = 0, 1
				o.SegmentBytes = 8 << 20 // so that the first devices are of few
				o.OpenDevice = func(i int, path string, create bool, size int64) (device.Device, error) {
					d, err := r.open(i, path, create, size)
					return stingy{d, &most, &asked}, err
				}
				r = &rig{}
			})
			_ = r
			most.Store(80 << 20)
			sc := openSpace(t, s, "n", class, 1, false)
			declined, put := 0, 0
			var last skep.Key
			for i := range 300 {
				k := keyOf(uint32(i), 77)
				res := putRun(t, s, sc, []skep.Key{k}, 1<<20)
				switch res[0].Outcome {
				case skep.Committed:
					put++
					last = k
				case skep.Declined:
					require.Equal(t, skep.Full, res[0].Reason)
					declined++
				}
				if declined > 3 {
					break
				}
			}
			require.Positive(t, asked.Load())
			requireChain(t, s, sc, []skep.Key{last}, 1<<20)
			st, err := s.Stats(testContext(t))
			require.NoError(t, err)
			require.LessOrEqual(t, st.DeviceBytes, 2*most.Load())
			if class == skep.Cache {
				require.Zero(t, declined)
				require.Positive(t, st.Evicted)
			} else {
				require.Positive(t, declined)
				require.Zero(t, st.Evicted)
				n, err := s.Delete(testContext(t), sc, []skep.Key{keyOf(0, 77), keyOf(1, 77), keyOf(2, 77)})
				require.NoError(t, err, "deletes go on")
				require.Equal(t, 3, n)
			}
			require.NoError(t, s.Close())
			_ = o
		})
	}
}

// The catalog's disk fails at any write: the store takes no more changes, reads go on,
// and what was acknowledged is there at the next open.
//
// A failed catalog leaves goroutines behind on purpose, so this runs in a process of its
// own.
func TestCatalogFails(t *testing.T) {
	t.Parallel()
	if !alone(t) {
		return
	}
	for i := range 8 {
		t.Run(itoa(i), func(t *testing.T) {
			var armed atomic.Bool
			var left atomic.Int64
			left.Store(int64(1 + 5*i))
			mem := vfs.NewMem()
			fail := errorfs.InjectorFunc(func(op errorfs.Op) error {
				if !armed.Load() || op.Kind.ReadOrWrite() != errorfs.OpIsWrite || left.Add(-1) >= 0 {
					return nil
				}
				return syscall.EIO
			})
			r := &rig{}
			o := small(tempRoot(t, "store"))
			o.CacheBytes = -1
			o.OpenDevice, o.CatalogFS = r.open, errorfs.Wrap(mem, fail)
			s, err := Open(context.Background(), o)
			require.NoError(t, err)
			sc := openSpace(t, s, "n", skep.Durable, 1, true)
			first := chainKeys(1, 10)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, first, faultBlock))
			armed.Store(true)
			acked := first
			var kind skep.Kind
			for n := 10; n < 300; n++ {
				keys := chainKeys(1, n+1)
				res, err := s.Put(testContext(t), putRequest(sc, &keys[n-1], n, keys[n:], faultBlock))
				if err != nil {
					kind = skep.KindOf(err)
					break
				}
				requireOutcome(t, skep.Committed, res)
				acked = keys
			}
			require.Equal(t, skep.Failed, kind)
			requireChain(t, s, sc, acked, faultBlock) // what the rows said, the devices' logs say too
			_, err = s.Put(testContext(t), putRequest(sc, nil, 0, chainKeys(2, 1), faultBlock))
			requireKind(t, skep.Failed, err)
			_, err = s.Delete(testContext(t), sc, first[:1])
			requireKind(t, skep.Failed, err)
			eventually(t, "the store says that it failed", func() bool {
				st, err := s.Stats(testContext(t))
				require.NoError(t, err)
				return strings.HasPrefix(st.State, "failed: ")
			})
			_ = s.Close() // may say what failed, but returns

			o.CatalogFS = mem
			left.Store(1 << 40)
			s, err = Open(context.Background(), o)
			require.NoError(t, err)
			requireChain(t, s, sc, acked, faultBlock)
			require.NoError(t, s.Close())
		})
	}
}

// A flipped byte anywhere on a closed store's devices is never given to a caller.
func TestFlippedBytes(t *testing.T) {
	t.Parallel()
	seed := testSeed(t)
	rng := newRand(seed)
	for range testNumber(t, "SKEP_FLIPS", 20) {
		s, r, o := openRig(t, nil)
		chained := openSpace(t, s, "chained", skep.Durable, 1, true)
		twice := openSpace(t, s, "twice", skep.Durable, 2, true)
		keys := chainKeys(1, 30)
		requireOutcome(t, skep.Committed, putRun(t, s, chained, keys, 5000))
		requireOutcome(t, skep.Committed, putRun(t, s, twice, keys, 5000))
		require.NoError(t, s.Close())
		// One device is damaged in many places, beyond its superblocks.
		m := r.mems[rng.IntN(2)]
		for range 400 {
			off := 8<<10 + rng.Int64N(m.Size()-8<<10)
			b := make([]byte, 1)
			m.Peek(off, b)
			b[0] ^= 1 << rng.IntN(8)
			m.Poke(off, b)
		}
		s, err := Open(context.Background(), o)
		require.NoError(t, err)
		requireRight(t, s, chained, keys, 5000)
		requireChain(t, s, twice, keys, 5000)
		require.NoError(t, s.Close())
	}
}

// One drive of three is lost under load: with two copies nothing is, with one the
// others' blocks come, and nobody waits.
func TestDeviceLostUnderLoad(t *testing.T) {
	t.Parallel()
	s, r, _ := openRig(t, func(o *Options) {
		o.DeviceCount, o.CapacityBytes = 3, 24<<20
	})
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "n", skep.Durable, 2, true)
	var mu sync.Mutex
	var acked [][]skep.Key
	wg := storetest.NewCrew(t)
	for w := range 3 {
		wg.Go(func(t testing.TB) {
			for i := range 12 {
				keys := chainKeys(1000*w+i, 8)
				res := putRun(t, s, sc, keys, faultBlock)
				n := 0
				for n < len(res) && res[n].Outcome == skep.Committed {
					n++
				}
				mu.Lock()
				if n > 0 {
					acked = append(acked, keys[:n])
				}
				if w == 0 && i == 5 {
					r.faults[2].MustInject(device.GoneRule())
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	require.Greater(t, len(acked), 10)
	for _, keys := range acked {
		requireChain(t, s, sc, keys, faultBlock)
	}
}

func TestFilesOfOthersAreLeftAlone(t *testing.T) {
	t.Parallel()
	dir := tempRoot(t, "store")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	path := filepath.Join(dir, "device-1")
	require.NoError(t, os.WriteFile(path, []byte("precious"), 0o644))
	_, err := Open(context.Background(), small(dir))
	requireKind(t, skep.Foreign, err)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "precious", string(b))
	require.False(t, errors.Is(err, os.ErrNotExist))
}
