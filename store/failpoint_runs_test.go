//go:build failpoints

package store

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/failpoint"
	"github.com/skepkv/skep/store/internal/admission"
	"github.com/skepkv/skep/store/segment"
)

// failRun is one run of a scenario, with a failpoint armed or none.
type failRun struct {
	*testing.T
	seed     uint64
	armed    bool
	number   int
	point    failpoint.Point
	pass     int64
	err      error
	fired    bool
	scrubbed map[string]int                     // what verify found before a scrub
	count    int                                // of failpoints
	passes   []int64                            // of each, with none armed, from arm to disarm
	cancel   atomic.Pointer[context.CancelFunc] // of the operation under way
}

// failScenario is a short use of a store that ends with its judgement by the crash oracle.
type failScenario struct {
	name string
	run  func(f *failRun)
}

// failScenarios in the order in which they are preferred.
var failScenarios = []failScenario{
	{"life", func(f *failRun) { f.life(failMixed) }},
	{"full", func(f *failRun) { f.life(failFull) }},
	{"admission", func(f *failRun) { f.life(failAdmission) }},
	{"recovery", func(f *failRun) { f.recovery(failMixed, false) }},
	{"rebuild", func(f *failRun) { f.recovery(failMixed, true) }},
	{"killed", func(f *failRun) { f.files(false) }},
	{"damaged catalog", func(f *failRun) { f.files(true) }},
	{"catalog", (*failRun).catalog},
	// The last: a drive that fails as well is given up, and what it alone held.
	{"rebuild without a drive", func(f *failRun) { f.recovery(failDegraded, true) }},
}

var (
	failMixed = crashWorkload{name: "failpoints", weights: [opKinds]int{opPut: 60, opDelete: 14, opPurge: 3, opFlush: 6, opRead: 13, opReopen: 4},
		accepted: 25, replaces: 20, steps: 60, tune: func(_ *rand.Rand, o *Options) { o.TenantBytes = map[string]int64{"t": 1 << 40} }}
	failFull = crashWorkload{name: "failpoints, full", weights: [opKinds]int{opPut: 80, opDelete: 8, opPurge: 1, opFlush: 4, opRead: 7},
		accepted: 10, replaces: 10, steps: 140, shares: [4]int{15, 15, 90, 70}}
	failAdmission = crashWorkload{name: "failpoints, admission", weights: [opKinds]int{opPut: 70, opDelete: 10, opFlush: 5, opRead: 15},
		accepted: 60, replaces: 10, steps: 60, tune: func(_ *rand.Rand, o *Options) { o.CacheBytes, o.Admission = 1<<20, admission.Budget }}
	failDegraded = crashWorkload{name: "failpoints, degraded", weights: failMixed.weights, accepted: 25, replaces: 20, steps: 40, copies: 2,
		tune: func(_ *rand.Rand, o *Options) { o.DeviceCount = 3 }}
)

// arm arms the failpoint, and gives what disarms it.
func (f *failRun) arm() (disarm func()) {
	if !f.armed {
		was := passes(f.count)
		return func() {
			f.passes = passes(f.count)
			for n := range was {
				f.passes[n] -= was[n]
			}
		}
	}
	off := failpoint.Arm(f.number, f.pass, f.err, func() {
		if c := f.cancel.Load(); c != nil {
			(*c)()
		}
	})
	return func() { f.fired = off() || f.fired }
}

// passes is how often each of n failpoints was passed.
func passes(n int) []int64 {
	out := make([]int64, n)
	for i := range out {
		out[i] = failpoint.Passed(i)
	}
	return out
}

// op is the context of one operation, which the failpoint may cancel.
func (f *failRun) op(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, hangs/3)
	f.cancel.Store(&cancel)
	return ctx, cancel
}

// world is a workload's world and its first life.
func (f *failRun) world(load crashWorkload) (*crashWorld, *life, Options) {
	c := &campaign{seed: f.seed, points: 1 << 60, end: time.Now().Add(24 * time.Hour), workloads: []crashWorkload{load},
		events: map[string]int64{}, places: map[string]int64{}}
	w := newCrashWorld(f.T, c, 0)
	w.name = sprintf("%s, failpoint %s:%d in %s, %s, pass %d, %v", w.name, f.point.File, f.point.Line, f.point.Func, f.point.Text, f.pass, f.err)
	w.o.OpTimeout, w.o.FlushInterval, w.o.SpaceTimeout = 5*time.Second, 20*time.Millisecond, 20*time.Millisecond
	l := &life{w: w, oracle: newOracle(w.spaces), rng: rand.New(rand.NewPCG(f.seed, 1)), fs: w.emptyDisk()}
	l.at("failpoints")
	o := w.o
	o.OpenDevice, o.CatalogFS = l.open, l.fs
	return w, l, o
}

// life makes a store, uses it and closes it while the failpoint is armed; then another
// process opens it.
func (f *failRun) life(load crashWorkload) {
	ctx, cancel := context.WithTimeout(context.Background(), hangs/2)
	defer cancel()
	w, l, o := f.world(load)
	w.faulty, w.injected = true, true
	disarm := f.arm()
	octx, done := f.op(ctx)
	s, err := Open(octx, o)
	done()
	if !w.failed(err, "open") {
		f.use(ctx, w, l, s, o, w.steps)
	}
	disarm()
	f.afterwards(ctx, w, l, o)
}

// use opens the namespaces, does n operations, and closes the store.
func (f *failRun) use(ctx context.Context, w *crashWorld, l *life, s *Store, o Options, n int) {
	c := &crashWriter{w: w, l: l, s: s, o: o, or: l.oracle, rng: w.rng}
	for _, sp := range w.spaces {
		octx, done := f.op(ctx)
		info, err := s.OpenNamespace(octx, sp.spec)
		done()
		if w.failed(err, "open namespace") {
			info, err = s.OpenNamespace(ctx, sp.spec) // it was not to be, or nobody heard of it
		}
		if w.failed(err, "open namespace again") {
			w.failed(s.Close(), "close")
			return
		}
		sp.id = info.ID
	}
	for i := range n {
		octx, done := f.op(ctx)
		if i%4 == 3 {
			f.aside(octx, c, i/4)
		} else {
			c.step(octx, false)
		}
		done()
		if c.s == nil {
			return
		}
	}
	for _, sp := range w.spaces {
		w.compare(ctx, c.s, l.oracle, sp.slots, false)
	}
	w.failed(c.s.Close(), "close")
}

// aside does what the crash campaign's operations leave out.
func (f *failRun) aside(ctx context.Context, c *crashWriter, i int) {
	sp := c.own()[i%len(c.own())]
	x := sp.slots[c.rng.IntN(len(sp.slots))]
	switch i % 6 {
	case 0, 3:
		f.writeBlock(ctx, c, sp, x)
	case 1:
		_, err := c.s.Hint(ctx, x.scope(), []skep.Key{x.key}, skep.Hint{Pin: time.Second})
		c.w.failed(err, "hint")
		_, err = c.s.Namespaces(ctx)
		c.w.failed(err, "namespaces")
	case 2:
		_, err := c.s.Compact(ctx, MoveOptions{All: true})
		c.w.failed(err, "compact")
	case 4:
		f.another(ctx, c)
	case 5:
		_, err := c.s.Want(ctx, &skep.WantRequest{Scope: x.scope(), Keys: []skep.Key{x.key}})
		c.w.failed(err, "want")
		_, err = c.s.Stats(ctx)
		c.w.failed(err, "stats")
	}
}

// another namespace, of attention, with salts, that is purged.
func (f *failRun) another(ctx context.Context, c *crashWriter) {
	shape := skep.Shape{Kind: skep.Attention, Layers: 2, KVHeads: 2, HeadDim: 16, Element: skep.BF16, BlockTokens: 8}
	n, err := c.s.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "aside", Name: "attention", Model: "m", Shape: shape, Class: skep.Durable, Chained: true})
	if c.w.failed(err, "open namespace") {
		return
	}
	k := keyOf(c.rng.Uint32())
	sc := skep.Scope{Namespace: n.ID, Salt: "aside"}
	_, err = c.s.Put(ctx, &skep.PutRequest{Scope: sc, Blocks: []skep.Block{{Key: k, Parts: []skep.Part{{Bytes: content(k, skep.PartKV, 1, 2048)}}}}})
	c.w.failed(err, "put")
	c.w.failed(c.s.Purge(ctx, skep.Purge{Salt: &sc}), "purge a salt")
	c.w.failed(c.s.Purge(ctx, skep.Purge{Tenant: "aside"}), "purge a tenant")
}

// writeBlock puts a block part by part.
func (f *failRun) writeBlock(ctx context.Context, c *crashWriter, sp *crashSpace, x *crashSlot) {
	version := c.or.version(x)
	b := x.block(version)
	r := &skep.BeginRequest{Scope: x.scope(), Key: x.key, ValidTokens: b.ValidTokens}
	if x.parent != nil {
		r.Parent, r.Depth = &x.parent.key, x.depth
	}
	for _, p := range b.Parts {
		r.Manifest = append(r.Manifest, skep.PartSpec{Name: p.Name, Size: int64(len(p.Bytes))})
	}
	what := sprintf("write %v version %d", x, version)
	c.w.note("%s", what)
	bw, err := c.s.Begin(ctx, r)
	if c.w.failed(err, what) {
		return
	}
	for _, p := range b.Parts {
		if c.w.failed(bw.Write(ctx, p.Name, 0, p.Bytes), what) {
			c.w.failed(bw.Abort(ctx), "abort")
			return
		}
	}
	begun := c.or.begin([]*crashSlot{x}, []int{version})
	res, err := bw.Commit(ctx, skep.AckCommitted)
	if c.w.failed(err, what) {
		return
	}
	c.w.note("  %v", res)
	c.or.mu.Lock()
	defer c.or.mu.Unlock()
	c.learnLocked(x, version, res.Outcome, begun)
}

// afterwards opens the store with nothing armed and requires of it what the oracle says,
// before and after a use and once more when it was closed in order.
func (f *failRun) afterwards(ctx context.Context, w *crashWorld, l *life, o Options) {
	w.faulty = false
	w.note("healthy again")
	for round := range 2 {
		l.reopen()
		s, err := Open(ctx, o)
		w.must(err, "open with nothing armed")
		for _, sp := range w.spaces {
			n, err := s.OpenNamespace(ctx, sp.spec)
			w.must(err, "open namespace")
			sp.id = n.ID
		}
		w.check(ctx, s, l.oracle, round == 0)
		w.rebuilt = false
		if round == 0 {
			s = w.use(ctx, l, s, o, false)
			w.check(ctx, s, l.oracle, false)
		}
		w.must(s.Close(), "close with nothing armed")
	}
	if o.Degraded == DegradedAlways {
		return // a drive that is missing is a fault
	}
	f.sound(ctx, w, l, o)
}

// sound requires of a closed store what verify requires. An error in mid-way may leave what a
// scrub has to mend: a log with a hole where an append could not begin, a block that could not
// be read when it was in doubt. Then a scrub does mend it, and nothing acknowledged goes by that.
func (f *failRun) sound(ctx context.Context, w *crashWorld, l *life, o Options) {
	l.reopen()
	rep, err := Verify(ctx, o, VerifyOptions{Deep: true})
	w.must(err, "verify")
	if len(rep.Faults) == 0 {
		return
	}
	for _, fault := range rep.Faults {
		w.note("verify: %+v", fault)
		f.scrubbed[fault.Problem]++
	}
	l.reopen()
	s, err := Open(ctx, o)
	w.must(err, "open to scrub")
	mended, err := s.Scrub(ctx, ScrubOptions{})
	w.must(err, "scrub")
	w.note("scrub: %+v", mended)
	w.check(ctx, s, l.oracle, false)
	w.must(s.Close(), "close after the scrub")
	l.reopen()
	rep, err = Verify(ctx, o, VerifyOptions{Deep: true})
	w.must(err, "verify after the scrub")
	for _, fault := range rep.Faults {
		w.fatal("not sound after a scrub: %+v", fault)
	}
}

// recovery crashes a store, and has the failpoint armed while it is opened, or rebuilt with
// its catalog lost, and used.
func (f *failRun) recovery(load crashWorkload, rebuild bool) {
	ctx, cancel := context.WithTimeout(context.Background(), hangs/2)
	defer cancel()
	w, l, o := f.world(load)
	if rebuild { // with room for what the devices are to know
		w.o.CapacityBytes *= 3
		o.CapacityBytes = w.o.CapacityBytes
	}
	o.FlushInterval = time.Second // so that there is something to be verified
	im, or := f.crash(ctx, w, l, o, rebuild)
	if rebuild && !l.cuts[0].told {
		f.Log("the devices were not told of everything: a rebuild is not to be had")
		return
	}
	missing := -1
	l = &life{w: w, oracle: or, rng: rand.New(rand.NewPCG(f.seed, 2)), fs: im.fs, mems: im.devices, faults: make([]*device.Fault, len(im.devices))}
	l.at("failpoints")
	o.CatalogFS = im.fs
	if load.name == failDegraded.name {
		missing, o.Degraded = 1, DegradedAlways
	}
	o.OpenDevice = func(i int, path string, create bool, size int64) (device.Device, error) {
		if i == missing || strings.Contains(path, "given-up-") {
			return nil, os.ErrNotExist
		}
		return l.open(i, path, create, size)
	}
	w.faulty, w.injected, w.rebuilt = true, true, rebuild
	disarm := f.arm()
	octx, done := f.op(ctx)
	var err error
	var rep RebuildReport
	if rebuild {
		rep, err = Rebuild(octx, o, false, nil)
	}
	if rep.Missing > 1 {
		f.Log("more drives are given up than blocks may lose")
		done()
		disarm()
		return
	}
	rebuilt := err == nil
	if !w.failed(err, "rebuild") {
		var s *Store
		if s, err = Open(octx, o); !w.failed(err, "open") {
			f.use(ctx, w, l, s, o, 8)
		}
	}
	done()
	disarm()
	if rebuild && !rebuilt { // devices of a test's own are not found by an open
		l.reopen()
		_, err := Rebuild(ctx, o, false, nil)
		w.must(err, "rebuild with nothing armed")
	}
	f.afterwards(ctx, w, l, o)
}

// crash uses a store and gives what a crash left of it. With told it comes when the drives
// know of all deletions, and takes the catalog along.
func (f *failRun) crash(ctx context.Context, w *crashWorld, l *life, o Options, told bool) (*image, *oracle) {
	s, err := Open(ctx, o)
	w.must(err, "open")
	l.begun(s)
	for _, sp := range w.spaces {
		n, err := s.OpenNamespace(ctx, sp.spec)
		w.must(err, "open namespace")
		sp.id = n.ID
	}
	c := &crashWriter{w: w, l: l, s: s, o: o, or: l.oracle, rng: w.rng}
	for i := 0; i < w.steps || told && !(c.s.logs.Intents.None() && !c.s.space.AnyStale()) && i < 4*w.steps; i++ {
		c.step(ctx, false)
	}
	for range 3 { // rows that are synced soon, of bytes that are not
		c.put(ctx, w.spaces[3], w.spaces[3].slots[w.rng.IntN(len(w.spaces[3].slots))])
	}
	time.Sleep(2 * o.FlushInterval / 100)
	l.cut()
	w.must(c.s.Close(), "close")
	cut := l.cuts[0]
	im := &image{fs: cut.fs[0]}
	w.crashDevices(cut, im, 1)
	if !told { // of the bytes only what was flushed
		im.devices = nil
		for _, d := range cut.drives {
			im.devices = append(im.devices, d.fault.CrashDevice(d.event, nil, device.CrashOptions{}))
		}
		f.twice(ctx, w, im.fs)
	}
	if told {
		im.fs = w.emptyDisk()
	}
	w.note("CRASH")
	return im, cut.oracle
}

// twice gives some blocks a second row, of an older record, and a row in a group that is gone.
func (f *failRun) twice(ctx context.Context, w *crashWorld, fs vfs.FS) {
	c, err := catalog.Open(filepath.Join(w.o.Dir, "catalog"), catalog.Options{FS: fs})
	w.must(err, "open the catalog")
	b := c.NewBatch()
	w.must(c.ScanBlocks(ctx, 1, func(_ int, l layout.Location, row []byte) error {
		var rec segment.Record
		if err := segment.DecodeRecord(row, &rec); err != nil || b.Len() > 4 || rec.Sealed != nil {
			return err
		}
		l.Page += 1 << 10 // where no block can be
		rec.Seq--
		b.PutBlock(l, rec.Append(nil))
		b.PutBlock(layout.Location{Group: 1 << 30, Page: l.Page}, rec.Append(nil))
		return nil
	}), "scan")
	w.must(c.Commit(ctx, b, true), "commit")
	w.must(c.Close(), "close the catalog")
}

// files opens a store on files as another process left it when it was killed, with damage in
// its catalog, which is set aside and made anew, or without; and it tries a rebuild on the side.
func (f *failRun) files(damage bool) {
	ctx, cancel := context.WithTimeout(context.Background(), hangs/2)
	defer cancel()
	dir, err := os.MkdirTemp(f.TempDir(), "")
	require.NoError(f, err)
	dir = filepath.Join(dir, "store")
	unpackImage(f.T, goldenImage, dir)
	if damage {
		list, err := filepath.Glob(filepath.Join(dir, "catalog", "MANIFEST-*"))
		require.NoError(f, err)
		require.NotEmpty(f, list)
		require.NoError(f, os.WriteFile(list[0], make([]byte, 100), 0o644))
	}
	o := goldenOptions(dir)
	disarm := f.arm()
	octx, done := f.op(ctx)
	s, err := Open(octx, o)
	if err == nil {
		err = s.Close()
	}
	_, dry := Rebuild(octx, o, true, nil)
	done()
	disarm()
	f.Logf("%v, %v", err, dry)
	for round := 0; ; round++ {
		s, err = Open(ctx, o)
		if k := skep.KindOf(err); k != skep.Locked || ctx.Err() != nil {
			break
		}
		runtime.GC() // a call that "failed" may have left a lock
	}
	require.NoError(f, err)
	golden(f.T, s, false)
	require.NoError(f, s.Close())
}

// catalog uses a catalog alone, with rows as large as they may be.
func (f *failRun) catalog() {
	ctx, cancel := context.WithTimeout(context.Background(), hangs/2)
	defer cancel()
	fs := vfs.NewMem()
	o := catalog.Options{FS: fs}
	large := make([]byte, catalog.MaxRecordBytes)
	rand.NewChaCha8([32]byte{}).Read(large)
	row := func(i int) (layout.Location, []byte) {
		return layout.Location{Group: 1, Page: uint32(i)}, large[:len(large)>>(i%2*5)]
	}
	use := func(ctx context.Context, c *catalog.Catalog) (err error) {
		table, err := c.WriteTable(ctx, 20, row)
		if err == nil {
			_, err = c.WriteTable(ctx, 1, row) // and is not taken in
		}
		if err == nil {
			err = c.Ingest(ctx, []catalog.Table{table})
		}
		b := c.NewBatch()
		b.PutBlock(layout.Location{Group: 2}, large[:100])
		locs := []layout.Location{{Group: 1}, {Group: 1, Page: 99}, {Group: 2}}
		found := 0
		return errors.Join(err, c.Commit(ctx, b, true), c.Blocks(ctx, locs, func(_ int, rec []byte) error {
			if len(rec) > 0 {
				found++
			}
			return nil
		}), c.Empty(ctx))
	}
	disarm := f.arm()
	octx, done := f.op(ctx)
	c, err := catalog.Open("/catalog", o)
	if err == nil {
		err = errors.Join(use(octx, c), use(octx, c), c.Close())
	}
	done()
	disarm()
	f.Logf("%v", err)
	c, err = catalog.Open("/catalog", o)
	require.NoError(f, err)
	require.NoError(f, c.Empty(ctx))
	require.NoError(f, use(ctx, c))
	require.NoError(f, c.Close())
}
