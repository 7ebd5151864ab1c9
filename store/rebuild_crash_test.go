package store

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/storetest"
)

// lastDay is a store whose machine stops, and whose catalog is then lost, too: it has
// only its devices, as they are at moments in the middle of what it does.
type lastDay struct {
	*testing.T
	rng    *rand.Rand
	stops  *rand.Rand   // says when the machine stops; under mu
	gate   sync.RWMutex // held shared while devices take operations
	mu     sync.Mutex
	faults []*device.Fault
	known  map[dayKey]dayState
	nights []night
	odds   int
}

type dayKey struct {
	durable bool
	key     skep.Key
}

// dayState is what may be found of a block: versions, 0 for none.
type dayState struct {
	acked int
	doubt []int // begun and not acknowledged
	since []int // put since the last acknowledged deletion: what a Cache block may be
}

// night is one such moment.
type night struct {
	events []int
	known  map[dayKey]dayState
}

type dayDevice struct {
	device.Device
	d *lastDay
}

func (g dayDevice) Submit(ops []*device.Op) error {
	if ops[0].Kind != device.Read {
		g.d.maybeStop()
	}
	g.d.gate.RLock()
	defer g.d.gate.RUnlock()
	return g.Device.Submit(ops)
}

func (g dayDevice) Unwrap() device.Device { return g.Device }

func (d *lastDay) maybeStop() {
	d.mu.Lock()
	now := d.stops.IntN(d.odds) == 0 && len(d.nights) < 40
	d.mu.Unlock()
	if !now {
		return
	}
	d.gate.Lock()
	defer d.gate.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	n := night{known: maps.Clone(d.known)}
	for _, f := range d.faults {
		n.events = append(n.events, f.Events())
	}
	d.nights = append(d.nights, n)
}

func (d *lastDay) open(i int, _ string, create bool, size int64) (device.Device, error) {
	f := device.NewFault(device.NewMemory(size), uint64(i))
	if err := f.Record(context.Background()); err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.faults = append(d.faults, f)
	d.mu.Unlock()
	return dayDevice{f, d}, nil
}

func (d *lastDay) begin(k dayKey, version int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	st := d.known[k]
	st.doubt = append(slices.Clone(st.doubt), version)
	if version != 0 {
		st.since = append(slices.Clone(st.since), version)
	}
	d.known[k] = st
}

func (d *lastDay) end(k dayKey, version int, done bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	st := d.known[k]
	if done {
		st.acked = version
		if version == 0 {
			st.since = nil
		}
	}
	st.doubt = nil
	d.known[k] = st
}

// A store that loses power and its catalog at once has every durable block that was
// acknowledged, and nothing that was deleted or purged. A rebuild that is cut off itself
// may be begun again.
func TestRebuildAfterACrash(t *testing.T) {
	t.Parallel()
	end := time.Now().Add(15 * time.Second)
	if testing.Short() {
		end = time.Now().Add(4 * time.Second)
	}
	end = end.Add(time.Duration(testNumber(t, "SKEP_REBUILD_SECONDS", 0)) * time.Second)
	seed := testSeed(t)
	var nights, cuts int
	for run := uint64(0); time.Now().Before(end) && !t.Failed(); run++ {
		d := &lastDay{T: t, rng: rand.New(rand.NewPCG(seed, run)), stops: rand.New(rand.NewPCG(run, seed)), known: map[dayKey]dayState{}, odds: 40}
		n, c := d.live(end)
		nights, cuts = nights+n, cuts+c
	}
	t.Logf("%d crashes, in %d of them the rebuild was cut off as well", nights, cuts)
}

func (d *lastDay) live(end time.Time) (nights, cuts int) {
	ctx := testContext(d.T)
	o := small(tempRoot(d.T, "store"))
	o.DeviceCount = 1 + d.rng.IntN(3)
	o.SegmentBytes = []int64{64 << 10, 128 << 10}[d.rng.IntN(2)]
	o.CapacityBytes = int64(o.DeviceCount) * (10*o.SegmentBytes + 64<<10)
	o.CacheBytes, o.SpaceTimeout, o.FlushInterval = -1, 100*time.Millisecond, time.Duration(1+d.rng.IntN(200))*time.Millisecond
	o.OpenDevice, o.CatalogFS = d.open, vfs.NewMem()
	s, err := Open(ctx, o)
	require.NoError(d.T, err)
	copies := 1 + d.rng.IntN(min(2, o.DeviceCount))
	scopes := map[bool]skep.Scope{true: openSpace(d.T, s, "durable", skep.Durable, copies, false), false: openSpace(d.T, s, "cache", skep.Cache, copies, false)}
	keys := chainKeys(3, 60)
	for version := 1; version < 400; version++ {
		k := dayKey{d.rng.IntN(3) == 0, keys[d.rng.IntN(len(keys))]}
		if k.durable {
			k.key = keys[d.rng.IntN(12)]
		}
		switch d.rng.IntN(12) {
		case 0, 1:
			d.begin(k, 0)
			_, err := s.Delete(ctx, scopes[k.durable], []skep.Key{k.key})
			require.NoError(d.T, err)
			d.end(k, 0, true)
		case 2:
			if d.rng.IntN(15) == 0 {
				for _, key := range keys {
					d.begin(dayKey{k.durable, key}, 0)
				}
				require.NoError(d.T, s.Purge(ctx, skep.Purge{Namespace: scopes[k.durable].Namespace}))
				for _, key := range keys {
					d.end(dayKey{k.durable, key}, 0, true)
				}
			}
		default:
			d.begin(k, version)
			res, err := s.Put(ctx, &skep.PutRequest{Scope: scopes[k.durable], Blocks: []skep.Block{{Key: k.key, Parts: []skep.Part{{Bytes: d.bytesOf(k, version)}}}}})
			require.NoError(d.T, err)
			d.end(k, version, res[0].Outcome == skep.Committed)
		}
	}
	require.NoError(d.T, s.Close())
	for i, n := range d.nights {
		if time.Now().After(end) {
			break
		}
		nights++
		if d.wake(ctx, o, scopes, n, i) {
			cuts++
		}
	}
	return nights, cuts
}

func (d *lastDay) bytesOf(k dayKey, version int) []byte {
	size := 200 + version*37%9000
	if version%4 == 0 {
		size = 50 + version%400
	}
	return content(k.key, "day", version, size)
}

// cutFS stops a rebuild: after so many changes of the file system it keeps a copy of
// what a crash would have left.
type cutFS struct {
	fs   *vfs.MemFS
	left atomic.Int64
	at   atomic.Pointer[vfs.MemFS]
	rng  *rand.Rand
	mu   sync.Mutex
}

func (c *cutFS) MaybeError(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && c.left.Add(-1) == 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.at.Store(c.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 50, 100}[c.rng.IntN(3)], RNG: c.rng}))
	}
	return nil
}

func (c *cutFS) String() string { return "cut" }

// wake rebuilds what one night left and compares it with what was known.
func (d *lastDay) wake(ctx context.Context, o Options, scopes map[bool]skep.Scope, n night, number int) (cut bool) {
	var disks []*device.Memory
	for i, f := range d.faults {
		event := 0
		if i < len(n.events) {
			event = n.events[i]
		}
		var opt device.CrashOptions
		var rng *rand.Rand
		switch d.rng.IntN(4) {
		case 0: // only what was flushed
		case 1:
			opt.KeepAll, rng = true, d.rng
		default:
			opt, rng = device.CrashOptions{Tear: []int{0, 512, 4096}[d.rng.IntN(3)], Keep: []float64{0.2, 0.5, 0.9}[d.rng.IntN(3)]}, d.rng
		}
		disks = append(disks, f.CrashDevice(event, rng, opt))
	}
	o.OpenDevice = func(i int, _ string, _ bool, _ int64) (device.Device, error) { return disks[i].Clone(), nil }
	mem := vfs.NewCrashableMem()
	require.NoError(d.T, mem.MkdirAll(o.Dir, 0o755))
	syncParents(d.T, mem, o.Dir)
	fs := &cutFS{fs: mem, rng: rand.New(rand.NewPCG(d.rng.Uint64(), 1))}
	fs.left.Store(int64(1 + d.rng.IntN(80)))
	o.CatalogFS = errorfs.Wrap(storetest.CrashFS(mem), fs)
	_, err := Rebuild(ctx, o, false, nil)
	if skep.KindOf(err) == skep.Foreign {
		return false // before its superblocks were written
	}
	require.NoError(d.T, err)
	o.CatalogFS = mem
	if at := fs.at.Load(); at != nil {
		cut = true
		o.CatalogFS = at
		_, err := Rebuild(ctx, o, false, nil)
		require.NoError(d.T, err)
	}
	open := o.OpenDevice
	o.OpenDevice = func(i int, path string, _ bool, size int64) (device.Device, error) {
		m, err := open(i, path, false, size)
		disks[i] = m.(*device.Memory)
		return m, err
	}
	s, err := Open(ctx, o)
	require.NoError(d.T, err)
	defer func() { require.NoError(d.T, s.Close()) }()
	for k, st := range n.known {
		list, err := fetch(ctx, s, skep.Chain{Scope: scopes[k.durable], Keys: []skep.Key{k.key}})
		if skep.KindOf(err) == skep.NotFound { // its namespace is not there: nothing of it was acknowledged
			require.Zero(d.T, st.acked, "night %d: %v", number, k)
			continue
		}
		require.NoError(d.T, err)
		allowed := append([]int{st.acked}, st.doubt...)
		if !k.durable {
			allowed = append(append(allowed, st.since...), 0)
		}
		got := 0
		if list[0].err == nil {
			got = -1
			for v := range 400 {
				if v > 0 && string(list[0].data) == string(d.bytesOf(k, v)) {
					got = v
				}
			}
		}
		require.Contains(d.T, allowed, got, "night %d: durable %v, block %s", number, k.durable, k.key.Short())
	}
	require.Empty(d.T, unsound(s))
	return cut
}
