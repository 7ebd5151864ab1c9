package store

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/storetest"
)

// secondWorld is a store, what stands in its calls' way, and what must be in it.
type secondWorld struct {
	t      *testing.T
	rng    *rand.Rand
	o      Options
	disk   *vfs.MemFS // of the catalog
	rig    *rig
	gate   *commitGate
	onOpen atomic.Pointer[func(d *device.Fault)] // what a drive has in its way from its opening on
	s      *Store
	spaces []*secondSpace
	extra  int // namespaces besides
	drives int // in use
	// crashes says that the machine loses what was not flushed now and then.
	crashes bool
	path    int // number of the next device's file

	logTurn sync.Mutex
	log     []string

	tried   map[string]int // calls, by name
	refused map[string]int // first calls that were, by name
}

// secondSpace is a namespace and the versions that each of its blocks may have: one, but between
// the two calls of a pair. 0 is that it is not there.
type secondSpace struct {
	spec skep.NamespaceSpec
	sc   skep.Scope
	keys []skep.Key
	may  [][]int
	last int // version
}

const secondKeys = 6

// commitGate refuses commits from one on, or ends the call's context at one.
type commitGate struct {
	n, refuseAt, endAt atomic.Int64 // 0: none
	end                atomic.Pointer[context.CancelFunc]
}

func (g *commitGate) refuse() error {
	n := g.n.Add(1)
	if g.endAt.Load() == n {
		(*g.end.Load())()
	}
	if at := g.refuseAt.Load(); at > 0 && n >= at {
		return &skep.Error{Op: "commit", Kind: skep.Full, Field: "catalog filesystem"}
	}
	return nil
}

func newSecondWorld(t *testing.T, seed uint64) *secondWorld {
	w := &secondWorld{t: t, rng: newRand(seed), rig: &rig{seed: seed}, gate: &commitGate{}, disk: vfs.NewCrashableMem(),
		drives: 3, path: 3, tried: map[string]int{}, refused: map[string]int{}}
	w.crashes = os.Getenv("SKEP_SECOND_CRASHES") != ""
	w.o = small(tempRoot(t, "store"))
	w.o.DeviceCount, w.o.SegmentBytes, w.o.CapacityBytes = 3, 64<<10, 3*(40*(64<<10)+16<<10)
	w.o.CacheBytes = []int64{-1, 4 << 20}[w.rng.IntN(2)]
	w.o.FlushInterval, w.o.SpaceTimeout = time.Minute, time.Second
	w.o.refuseCommits = w.gate.refuse
	w.o.CatalogFS, w.o.OpenDevice = storetest.CrashFS(w.disk), w.openDevice
	w.o.Logger = slog.New(slog.NewTextHandler(w, nil))
	unjudged(&w.o)
	w.o.rules.Tick, w.o.rules.ProbeEvery, w.o.rules.Probes, w.o.rules.Relapse = 2*time.Millisecond, 2*time.Millisecond, 1, 1
	w.o.taskEvery, w.o.taskRetry = 5*time.Millisecond, 5*time.Millisecond
	w.o.OpTimeout = hangs
	require.NoError(t, w.disk.MkdirAll(w.o.Dir, 0o755))
	syncParents(t, w.disk, w.o.Dir)
	w.open()
	copies := 1 + w.rng.IntN(2)
	for i, spec := range []skep.NamespaceSpec{
		{Name: "last", Class: skep.Durable, Copies: copies},
		{Name: "first", Class: skep.Durable, Copies: copies, Chained: true},
		{Name: "cache", Class: skep.Cache, Copies: 1},
	} {
		spec.Tenant, spec.Shape = "t", halfShape
		info, err := w.s.OpenNamespace(testContext(t), spec)
		require.NoError(t, err)
		sp := &secondSpace{spec: spec, sc: skep.Scope{Namespace: info.ID}, keys: chainKeys(i+1, secondKeys)}
		if w.rng.IntN(2) == 0 {
			sp.sc.Salt = "pepper"
		}
		for range sp.keys {
			sp.may = append(sp.may, []int{0})
		}
		w.spaces = append(w.spaces, sp)
	}
	return w
}

// openDevice is Options.OpenDevice: what drives are told is remembered, so that they can crash.
func (w *secondWorld) openDevice(i int, path string, create bool, size int64) (device.Device, error) {
	d, err := w.rig.open(i, path, create, size)
	if err != nil {
		return nil, err
	}
	if err := d.(*device.Fault).Record(context.Background()); err != nil {
		return nil, err
	}
	if f := w.onOpen.Load(); f != nil {
		(*f)(d.(*device.Fault))
	}
	return d, nil
}

func (w *secondWorld) note(format string, args ...any) {
	w.logTurn.Lock()
	defer w.logTurn.Unlock()
	w.log = append(w.log, sprintf(format, args...))
}

// Write takes the store's log among what was done.
func (w *secondWorld) Write(p []byte) (int, error) {
	w.note("    %s", bytes.TrimSpace(p))
	return len(p), nil
}

func (w *secondWorld) open() {
	var err error
	w.s, err = Open(testContext(w.t), w.o)
	require.NoError(w.t, err)
}

// obstacle puts something in a call's way: what it is, the call's context, and what takes it away.
func (w *secondWorld) obstacle() (name string, ctx context.Context, lift func()) {
	ctx, cancel := context.WithTimeout(context.Background(), hangs)
	g := w.gate
	count, err := w.s.DeviceCount()
	require.NoError(w.t, err)
	one, nth := w.rng.IntN(count), 1+w.rng.IntN(3)
	inject := func(r device.Rule, all bool) {
		put := func(d *device.Fault) { d.MustInject(r) }
		w.rig.each(func(i int, d *device.Fault) {
			if d != nil && (all || i == one) {
				put(d)
			}
		})
		if all {
			w.onOpen.Store(&put)
		}
	}
	fail := func(kinds device.Kinds, all bool) {
		inject(device.Rule{Action: device.Fail, Kinds: kinds, Nth: nth, Times: []int{0, 1}[w.rng.IntN(2)]}, all)
	}
	switch w.rng.IntN(9) {
	case 0, 1:
		name = sprintf("the catalog refuses from commit %d on", nth)
		g.refuseAt.Store(g.n.Load() + int64(nth))
	case 2:
		name = sprintf("drives fail from write %d on", nth)
		fail(device.Writes, true)
	case 3:
		name = sprintf("drive %d fails from write %d on", one, nth)
		fail(device.Writes, false)
	case 4:
		name = sprintf("drives fail from flush %d on", nth)
		fail(device.Flushes, true)
	case 5:
		name = sprintf("drives fail from read %d on", nth)
		fail(device.Reads, true)
	case 6:
		name = "its context has ended"
		cancel()
	case 7:
		nth += w.rng.IntN(4)
		name = sprintf("its context ends at operation %d of the drives", nth)
		var n atomic.Int64
		inject(device.Rule{Action: device.Fail, Match: func(*device.Op) bool {
			if n.Add(1) == int64(nth) {
				cancel()
			}
			return false
		}}, true)
	case 8:
		name = sprintf("its context ends at commit %d", nth)
		g.end.Store(&cancel)
		g.endAt.Store(g.n.Load() + int64(nth))
	}
	return name, ctx, func() {
		g.refuseAt.Store(0)
		g.endAt.Store(0)
		w.onOpen.Store(nil)
		w.rig.each(func(_ int, d *device.Fault) {
			if d != nil {
				d.Clear()
			}
		})
		cancel()
	}
}

// well waits until every drive is let back in.
func (w *secondWorld) well() {
	eventually(w.t, "the drives are well again", func() bool {
		for _, d := range w.s.members.All() {
			if !d.Removed.Load() && d.Condition() != health.Healthy {
				return false
			}
		}
		return true
	})
}

// secondCall is a call that may be made twice, and what it does to the books when it succeeds.
type secondCall struct {
	name string
	do   func(ctx context.Context) error
	// touch are the blocks it changes, and into what.
	touch []secondTouch
	// done is asked after the second call succeeded; nil where blocks say it all.
	done func()
	// dark says that a refusal leaves no store that could be asked.
	dark bool
	// moves says that it asks for drives in working order, and is not valid without.
	moves bool
}

type secondTouch struct {
	sp   *secondSpace
	i    int
	into int
}

// excused says that a drive is the reason, of which it was found out only now what it did before.
func (c *secondCall) excused(err error) bool {
	return errors.Is(err, skep.DeviceFailed) || errors.Is(err, skep.Full) || c.moves && errors.Is(err, skep.Invalid)
}

// doubtful are kinds of errors that say nothing about whether the call happened.
func doubtful(err error) bool {
	return errors.Is(err, skep.Deadline) || errors.Is(err, skep.NotReleased)
}

// pair makes a call while something is in its way, and again when nothing is.
func (w *secondWorld) pair(c secondCall) {
	t := w.t
	what, ctx, lift := w.obstacle()
	w.note("%s, while %s", c.name, what)
	before := make([][]int, len(c.touch))
	for i, x := range c.touch {
		before[i] = x.sp.may[x.i]
		x.sp.may[x.i] = append(slices.Clone(before[i]), x.into)
	}
	w.tried[c.name]++
	err := c.do(ctx)
	lift()
	if err != nil {
		w.note("  refused: %v", err)
		w.refused[c.name]++
		kind := skep.KindOf(err)
		require.False(t, kind == skep.Other || kind == skep.Invalid && !c.moves || kind == skep.Damaged || kind == skep.Failed, "%v", err)
		if !c.dark {
			w.well()
			w.judge()
		}
	}
	if err != nil || w.rng.IntN(4) == 0 { // an answer may be lost, too
		err = c.do(testContext(t))
		for i := 0; i < 10 && c.excused(err); i++ { // a drive was found out meanwhile
			w.note("  again: %v", err)
			w.well()
			err = c.do(testContext(t))
		}
		require.NoError(t, err, "the second time, and nothing is in its way")
	}
	for _, x := range c.touch {
		x.sp.may[x.i] = []int{x.into}
	}
	if c.done != nil {
		c.done()
	}
	w.well()
	w.judge()
	leased, pinned := w.s.index.Held(0)
	require.Zero(t, leased, "leases are given back")
	require.Zero(t, pinned, "nothing is pinned")
}

// judge requires of every block a version that it may have, and that each is there once.
func (w *secondWorld) judge() {
	t := w.t
	for _, sp := range w.spaces {
		list, err := fetch(testContext(t), w.s, skep.Chain{Scope: sp.sc, Keys: sp.keys})
		require.NoError(t, err)
		least, most := 0, 0
		for i, g := range list {
			v := 0
			if g.err != nil {
				require.Contains(t, []skep.Kind{skep.NotFound, skep.Evicted}, skep.KindOf(g.err), "%s block %d: %v", sp.spec.Name, i, g.err)
			} else {
				v = sp.versionOf(i, g.data)
			}
			if v == 0 && sp.spec.Class == skep.Cache { // drives that fail cost those
				sp.may[i] = append(sp.may[i], 0)
			}
			require.Contains(t, sp.may[i], v, "%s block %d", sp.spec.Name, i)
			if !slices.Contains(sp.may[i], 0) && sp.spec.Class == skep.Durable {
				least++
			}
			if len(sp.may[i]) > 1 || sp.may[i][0] != 0 {
				most++
			}
		}
		n, err := w.s.CountBlocks(testContext(t), sp.sc.Namespace)
		require.NoError(t, err)
		if sp.sc.Salt != "" { // what a salt's purge has hidden is counted until its space comes back
			most = int(n)
		}
		require.True(t, int(n) >= least && int(n) <= most, "%s: %d blocks are counted, %d to %d there", sp.spec.Name, n, least, most)
	}
	require.Empty(t, unsound(w.s))
	spaces, err := w.s.Namespaces(testContext(t))
	require.NoError(t, err)
	require.Len(t, spaces, len(w.spaces)+w.extra)
}

// size is that of a block's version: within a page, and more.
func (sp *secondSpace) size(i, version int) int { return 500 + 3000*((i+version)%4) }

func (sp *secondSpace) block(i, version int) skep.Block {
	k := sp.keys[i]
	b := skep.Block{Key: k, Parts: []skep.Part{{Bytes: content(k, skep.PartKV, version, sp.size(i, version))}}}
	if !sp.spec.Chained {
		b.ValidTokens = 1 // so that another can replace it
	}
	return b
}

// versionOf is the version whose bytes data are, -1 for none.
func (sp *secondSpace) versionOf(i int, data []byte) int {
	for v := sp.last; v > 0; v-- {
		if len(data) == sp.size(i, v) && string(data) == string(content(sp.keys[i], skep.PartKV, v, len(data))) {
			return v
		}
	}
	return -1
}

// crash has the machine lose what was not flushed: what is acknowledged as durable stays as it is.
func (w *secondWorld) crash() {
	t := w.t
	w.note("crash")
	after := &rig{seed: w.rng.Uint64()}
	marks := func() (list []int) {
		w.rig.each(func(_ int, d *device.Fault) {
			n := 0
			if d != nil {
				n = d.Events()
			}
			list = append(list, n)
		})
		return list
	}
	var disk *vfs.MemFS
	var at []int
	eventually(t, "the drives did nothing while the catalog was copied", func() bool { // all of one moment
		at = marks()
		disk = w.disk.CrashClone(vfs.CrashCloneCfg{RNG: w.rng})
		return slices.Equal(at, marks())
	})
	w.rig.each(func(i int, d *device.Fault) {
		after.faults = append(after.faults, nil)
		if d == nil {
			after.mems = append(after.mems, nil)
			return
		}
		after.mems = append(after.mems, d.CrashDevice(at[i], nil, device.CrashOptions{}))
	})
	require.NoError(t, w.s.Close())
	w.disk, w.rig = disk, after
	w.o.CatalogFS = storetest.CrashFS(disk)
	w.open()
	w.forgiveCache()
	w.judge()
}

// forgiveCache takes what is there of blocks that a crash may lose for what must be.
func (w *secondWorld) forgiveCache() {
	for _, sp := range w.spaces {
		if sp.spec.Class == skep.Durable {
			continue
		}
		list, err := fetch(testContext(w.t), w.s, skep.Chain{Scope: sp.sc, Keys: sp.keys})
		require.NoError(w.t, err)
		for i, g := range list {
			sp.may[i] = []int{0}
			if g.err == nil {
				v := sp.versionOf(i, g.data)
				require.Positive(w.t, v, "wrong bytes of block %d", i)
				sp.may[i] = []int{v}
			}
		}
	}
}

func (w *secondWorld) device(i int) string { return filepath.Join(w.o.Dir, "device-"+itoa(i)) }
