package store

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/storetest"
)

// depths is how many crashes one line of lives may have, the first one included.
const depths = 4

// live opens a store on an image (nil: a new one), checks it, uses it, closes it, and
// does the same with crashes of this life.
func (w *crashWorld) live(im *image, or *oracle, depth int) {
	l := &life{w: w, oracle: or, rng: rand.New(rand.NewPCG(w.rng.Uint64(), 0)), odds: 6, left: 1}
	if im != nil {
		l.fs, l.mems, l.armed = im.fs, im.devices, depth < depths
		l.faults = make([]*device.Fault, len(l.mems))
	} else {
		l.fs = w.emptyDisk()
	}
	o := w.o
	o.OpenDevice, o.CatalogFS = l.open, errorfs.Wrap(storetest.CrashFS(l.fs), l)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if im != nil && im.lost {
		l.at("rebuild")
		_, err := Rebuild(ctx, o, false, nil)
		w.must(err, "rebuild")
		w.c.happened("rebuilds", 1)
	}
	l.at("opening")
	s, err := Open(ctx, o)
	w.must(err, "open")
	l.begun(s)
	defer func() { // also when a test ends in the middle
		if s != nil {
			s.Close()
		}
	}()
	for _, sp := range w.spaces { // one that was deleted, and perhaps made again, has another number
		n, err := s.OpenNamespace(ctx, sp.spec)
		w.must(err, "open namespace")
		sp.id = n.ID
	}
	if im == nil {
		l.arm(16, 20+l.rng.IntN(120))
	} else {
		w.rebuilt = im.lost
		w.check(ctx, s, or, true)
		w.rebuilt = false
		if l.rest() == 0 && depth < depths && l.rng.IntN(3) == 0 {
			l.arm(1, 30) // and one while it is used
		}
	}
	s = w.use(ctx, l, s, o, im == nil)
	w.check(ctx, s, or, false)
	l.count(ctx, s)
	l.at("closing")
	err = s.Close()
	s = nil
	w.must(err, "close")
	l.at("closed")
	if im == nil {
		l.cut()
	}
	l.arm(0, 1)
	w.afterwards(l, im, depth)
}

// use does a run's operations, each writer its own, and gives the store as it is open
// then.
func (w *crashWorld) use(ctx context.Context, l *life, s *Store, o Options, first bool) *Store {
	n := w.steps
	if n == 0 {
		n = 160
	}
	if !first {
		n = 10 / w.writers
	}
	if w.writers == 1 {
		c := &crashWriter{w: w, l: l, s: s, o: o, or: l.oracle, rng: w.rng}
		c.run(ctx, n, first)
		return c.s
	}
	var wg sync.WaitGroup
	for i := range w.writers {
		c := &crashWriter{w: w, l: l, s: s, o: o, or: l.oracle, rng: rand.New(rand.NewPCG(w.rng.Uint64(), 1)), number: i}
		wg.Go(func() { c.run(ctx, n, first) })
	}
	wg.Wait()
	if w.Failed() {
		w.FailNow()
	}
	return s
}

// afterwards goes on from what each crash of a life left.
func (w *crashWorld) afterwards(l *life, im *image, depth int) {
	history := w.soFar()
	for _, c := range l.cuts {
		for i, fs := range c.fs {
			if w.over() {
				return
			}
			w.setHistory(append(slices.Clone(history[:c.notes]), "CRASH while "+c.where))
			next := &image{fs: fs}
			if im != nil {
				next.recoveries = im.recoveries
			}
			next.recoveries++
			if c.where != "opening" && !c.rebuild || depth == 0 {
				next.recoveries = 0
			}
			if next.lost = c.rebuild; !c.rebuild && c.told && w.lost >= 0 && w.rng.IntN(100) < max(8, w.lost) {
				next.lost, next.fs = true, w.emptyDisk()
			}
			kind := w.crashDevices(c, next, i)
			if w.counts(next, c, kind) {
				or := c.oracle
				if i+1 < len(c.fs) {
					or.mu.Lock()
					or = or.cloneLocked()
					c.oracle.mu.Unlock()
				}
				w.live(next, or, depth+1)
			}
		}
	}
	w.setHistory(history)
}

// counts says whether a state is worth checking, and counts it as a point when its bytes
// have not been reached before in this run.
func (w *crashWorld) counts(im *image, c *cut, kind *int64) bool {
	bytes := im.digest(w.o.Dir)
	both := bytes ^ c.oracle.digest()*31
	known := w.seen[bytes]
	if known && w.seen[both] {
		w.c.repeated.Add(1)
		return false
	}
	w.seen[bytes], w.seen[both] = true, true
	if known {
		w.c.repeated.Add(1)
		return true
	}
	w.c.done.Add(1)
	w.points++
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	*kind++
	w.c.recoveries[im.recoveries]++
	w.c.places[c.where]++
	return true
}

// crashDevices makes one of the states the drives may be in after a crash.
func (w *crashWorld) crashDevices(c *cut, im *image, i int) (kind *int64) {
	choice := w.rng.IntN(5)
	if i == 0 {
		choice = 2 // a random part of what was under way
	}
	kind = []*int64{&w.c.worst, &w.c.whole, &w.c.torn, &w.c.torn, &w.c.torn}[choice]
	for _, d := range c.drives {
		var m *device.Memory
		switch {
		case d.fault == nil:
			m = d.mem.Clone()
		case choice == 0: // the worst: only what was flushed
			m = d.fault.CrashDevice(d.event, nil, device.CrashOptions{})
		case choice == 1:
			m = d.fault.CrashDevice(d.event, w.rng, device.CrashOptions{KeepAll: true})
		default:
			o := device.CrashOptions{Tear: []int{0, 512, 4096}[w.rng.IntN(3)], Keep: []float64{0.2, 0.5, 0.9}[w.rng.IntN(3)]}
			m = d.fault.CrashDevice(d.event, w.rng, o)
		}
		im.devices = append(im.devices, m)
	}
	return kind
}

// emptyDisk is the catalog's file system when its drive was lost and replaced.
func (w *crashWorld) emptyDisk() *vfs.MemFS {
	fs := vfs.NewCrashableMem()
	w.must(fs.MkdirAll(w.o.Dir, 0o755), "make the directory")
	syncParents(w.T, fs, w.o.Dir)
	return fs
}

// check compares everything.
func (w *crashWorld) check(ctx context.Context, s *Store, or *oracle, crashed bool) {
	for _, sp := range w.spaces {
		w.compare(ctx, s, or, sp.slots, crashed)
	}
	st, err := s.Stats(ctx)
	if w.failed(err, "stats") {
		return
	}
	if what := unsound(s); what != "" {
		w.fatal("%s", what)
	}
	// One copy of a Cache block may be lost to the crash and the other not: that counts as
	// damage when it is read, and is no miss.
	if st.Damaged != 0 && w.spaces[0].spec.Copies == 1 {
		w.fatal("%d damaged blocks", st.Damaged)
	}
}

// begun notes how many groups there are when a store is open.
func (l *life) begun(s *Store) {
	l.store.Store(s)
	s.space.Inside().Lock()
	defer s.space.Inside().Unlock()
	l.groups = int(s.space.Inside().Next) - s.space.Inside().Groups.Len()
}

// count adds what a store did since it was opened to the campaign's account.
func (l *life) count(ctx context.Context, s *Store) {
	st, err := s.Stats(ctx)
	if l.w.failed(err, "stats") {
		return
	}
	was := l.groups
	l.begun(s)
	l.w.c.happened("cleanings", int64(l.groups-was)) // groups that were opened and are no more
	l.w.c.happened("puts", st.PutBlocks)
	l.w.c.happened("evictions", st.Evicted)
	if st.MovedBytes > 0 {
		l.w.c.happened("moves", 1)
	}
	var shared int64
	err = s.catalog.ScanBlocks(ctx, 1, func(_ int, at layout.Location, _ []byte) error {
		if at.Sub > 0 {
			shared++
		}
		return nil
	})
	if !l.w.failed(err, "rows") { // what failed before may have ended the catalog
		l.w.c.happened("values beside others", shared)
	}
}
