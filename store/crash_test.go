package store

import (
	"bytes"
	"context"
	"fmt"
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
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
)

// TestCrash crashes stores, often, and requires of what comes back what each class
// promises. A crash point is one moment at which all devices and the catalog's file
// system are cut off together, in the middle of puts, deletes, purges, cleaning and
// openings; from it images of what could be left are made: writes that no flush
// protects are there, or not, or torn at 512 bytes or 4 KiB; unsynced bytes of the
// catalog likewise. A store is opened on them, checked, used, and crashed again, three
// deep.
//
// SKEP_CRASH_POINTS sets how many points there are, however long that takes; without
// it the test stops after half a minute.
func TestCrash(t *testing.T) {
	points := testNumber(t, "SKEP_CRASH_POINTS", 0)
	end := time.Now().Add(25 * time.Second)
	if testing.Short() {
		end = time.Now().Add(5 * time.Second)
	}
	if points > 0 {
		end = time.Now().Add(24 * time.Hour)
	} else {
		points = 3000
	}
	seed := testSeed(t)
	var done, runs atomic.Int64
	t.Cleanup(func() {
		t.Logf("%d crash points in %d runs from seed %d", done.Load(), runs.Load(), seed)
	})
	for worker := range 2 {
		t.Run(fmt.Sprintf("worker=%d", worker), func(t *testing.T) {
			t.Parallel()
			for run := worker; int(done.Load()) < points && time.Now().Before(end) && !t.Failed(); run += 2 {
				w := newCrashWorld(t, seed, run)
				w.points = &done
				w.stop = func() bool { return int(done.Load()) >= points || time.Now().After(end) }
				w.live(nil, newOracle(w.spaces), 0)
				runs.Add(1)
			}
		})
	}
}

// crashWorld is one run: options, namespaces and keys that all lives of it share.
type crashWorld struct {
	*testing.T
	name    string
	rng     *rand.Rand
	o       Options
	spaces  []*crashSpace
	calm    bool // after a while only Cache blocks are put: nobody's sync makes up for a missing one
	steps   int
	points  *atomic.Int64
	stop    func() bool
	mu      sync.Mutex
	history []string // what was done, in this line of lives
}

// crashSpace is a namespace and the keys that may be in it, in two rooms.
type crashSpace struct {
	spec  skep.NamespaceSpec
	id    skep.NamespaceID
	slots []*crashSlot
}

// crashSlot is one key under one salt.
type crashSlot struct {
	space  *crashSpace
	index  int // into the oracle
	salt   skep.Salt
	key    skep.Key
	parent *crashSlot
	depth  int
	size   int
	state  bool // has a second part
}

func (c *crashSlot) scope() skep.Scope { return skep.Scope{Namespace: c.space.id, Salt: c.salt} }

func (c *crashSlot) path() []skep.Key {
	keys := make([]skep.Key, c.depth+1)
	for x := c; x != nil; x = x.parent {
		keys[x.depth] = x.key
	}
	return keys
}

func (c *crashSlot) durable() bool { return c.space.spec.Class == skep.Durable }

func (c *crashSlot) String() string {
	return fmt.Sprintf("%s/%s/%d %s", c.space.spec.Name, string(c.salt), c.index, c.key.Short())
}

// content of a part in a version, from 1.
func (c *crashSlot) content(part string, version int) []byte {
	size := c.size * (3 + version%3) / 4
	if part != skep.PartKV {
		size = 700
	}
	return content(c.key, part+string(c.salt)+c.space.spec.Name, version, size)
}

func (c *crashSlot) block(version int) skep.Block {
	b := skep.Block{Key: c.key, Parts: []skep.Part{{Bytes: c.content(skep.PartKV, version)}}}
	if c.state {
		b.Parts = append(b.Parts, skep.Part{Name: "state", Bytes: c.content("state", version)})
	}
	return b
}

func newCrashWorld(t *testing.T, seed uint64, run int) *crashWorld {
	rng := rand.New(rand.NewPCG(seed, uint64(run)))
	dir, err := os.MkdirTemp(t.TempDir(), "")
	require.NoError(t, err)
	w := &crashWorld{T: t, rng: rng, name: fmt.Sprintf("seed %d, run %d", seed, run)}
	w.o = small(dir)
	w.o.OpTimeout = 5 * time.Second
	w.o.DeviceCount = 1 + rng.IntN(4)
	w.o.SegmentBytes = []int64{64 << 10, 96 << 10, 128 << 10}[rng.IntN(3)]
	segments := int64(6 + rng.IntN(6))
	w.o.CapacityBytes = int64(w.o.DeviceCount) * (segments*w.o.SegmentBytes + 8<<10)
	w.o.CacheBytes = []int64{-1, 1 << 20}[rng.IntN(2)]
	w.o.FlushInterval = time.Duration(1+rng.IntN(100)) * time.Millisecond
	if w.calm = rng.IntN(3) == 0; w.calm {
		w.o.FlushInterval = time.Minute
	}
	w.o.SpaceTimeout = 100 * time.Millisecond
	w.o.Workers = 1 + rng.IntN(2)
	w.o.Logger = slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelWarn}))
	copies := 1 + rng.IntN(min(2, w.o.DeviceCount))
	// Durable blocks are few, since they are never evicted; of Cache blocks there are
	// more than there is room for.
	room := segments * w.o.SegmentBytes * int64(w.o.DeviceCount)
	add := func(name string, class skep.Class, chained bool, share int64) {
		sp := &crashSpace{spec: skep.NamespaceSpec{Tenant: "t", Name: name, Model: name, Shape: anySize, Class: class, Copies: copies, Chained: chained}}
		for bytes := int64(0); bytes < room*share/100/int64(copies) && len(sp.slots) < 150; {
			sp.grow(rng)
			bytes += int64(sp.slots[len(sp.slots)-1].size) + 4096
		}
		w.spaces = append(w.spaces, sp)
	}
	add("durable chain", skep.Durable, true, 10)
	add("durable keys", skep.Durable, false, 10)
	add("cache chain", skep.Cache, true, 60)
	add("cache keys", skep.Cache, false, 40)
	n := 0
	for _, sp := range w.spaces {
		for _, s := range sp.slots {
			s.index = n
			n++
		}
	}
	w.note("devices %d, segments %d of %d, copies %d, cache %d, flush every %v", w.o.DeviceCount, segments, w.o.SegmentBytes, copies, w.o.CacheBytes, w.o.FlushInterval)
	return w
}

func (sp *crashSpace) grow(rng *rand.Rand) {
	c := &crashSlot{space: sp, salt: []skep.Salt{"", "", "s"}[rng.IntN(3)], size: 32 + rng.IntN(16<<10), state: rng.IntN(6) == 0}
	if rng.IntN(4) == 0 {
		c.size = 32 + rng.IntN(500)
	}
	if n := len(sp.slots); sp.spec.Chained && n > 0 && rng.IntN(5) > 0 {
		if p := sp.slots[max(0, n-1-rng.IntN(4))]; p.depth < 12 {
			c.parent, c.depth, c.salt = p, p.depth+1, p.salt
		}
	}
	c.key = keyOf(uint32(len(sp.slots)), uint32(len(sp.spec.Name)), rng.Uint32())
	sp.slots = append(sp.slots, c)
}

func (w *crashWorld) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.history = append(w.history, fmt.Sprintf(format, args...))
}

// Write takes what stores log.
func (w *crashWorld) Write(p []byte) (int, error) {
	w.note("    %s", bytes.TrimSpace(p))
	return len(p), nil
}

func (w *crashWorld) soFar() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.history
}

func (w *crashWorld) setHistory(h []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.history = h
}

func (w *crashWorld) fatal(format string, args ...any) {
	w.Helper()
	for _, h := range w.soFar() {
		w.Log(h)
	}
	w.Fatalf(w.name+": "+format, args...)
}

func (w *crashWorld) must(err error, what string) {
	if err != nil {
		w.Helper()
		w.fatal("%s: %v", what, err)
	}
}

// live opens a store on an image (nil: a new one), checks it, uses it, closes it, and
// does the same with crashes of this life.
func (w *crashWorld) live(im *image, or *oracle, depth int) {
	l := &life{w: w, oracle: or, image: im, rng: rand.New(rand.NewPCG(w.rng.Uint64(), 0)), odds: 6, left: 1}
	if im != nil {
		l.fs = im.fs
		l.armed = depth < 3
	} else {
		l.fs = vfs.NewCrashableMem()
		w.must(l.fs.MkdirAll(w.o.Dir, 0o755), "make the directory")
		for dir := w.o.Dir; dir != "/"; dir = filepath.Dir(dir) {
			d, err := l.fs.OpenDir(filepath.Dir(dir))
			w.must(err, "open directory")
			w.must(d.Sync(), "sync directory")
			w.must(d.Close(), "close directory")
		}
	}
	where := "opening"
	l.where.Store(&where)
	o := w.o
	o.OpenDevice, o.CatalogFS = l.open, errorfs.Wrap(l.fs, l)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s, err := Open(ctx, o)
	w.must(err, "open")
	defer func() { // also when a test ends in the middle
		if s != nil {
			s.Close()
		}
	}()
	if im == nil {
		for _, sp := range w.spaces {
			n, err := s.OpenNamespace(ctx, sp.spec)
			w.must(err, "open namespace")
			sp.id = n.ID
		}
		l.mu.Lock()
		l.armed, l.left, l.odds = true, 16, 50
		l.mu.Unlock()
	} else {
		w.check(ctx, s, or, true)
		l.mu.Lock()
		if l.left == 0 && depth < 3 && l.rng.IntN(2) == 0 {
			l.left, l.odds = 1, 30 // and one while it is used
		}
		l.mu.Unlock()
	}
	n := 160
	if im != nil {
		n = 12
	}
	for range n {
		if im == nil && w.stop() {
			break
		}
		op := w.step(ctx, s, or)
		l.where.Store(&op)
	}
	w.check(ctx, s, or, false)
	err = s.Close()
	s = nil
	w.must(err, "close")
	where = "closed"
	l.where.Store(&where)
	if im == nil {
		l.cut()
	}
	l.mu.Lock()
	l.armed = false
	l.mu.Unlock()
	history := w.soFar()
	for _, c := range l.cuts {
		if w.stop() {
			return
		}
		w.setHistory(append(slices.Clone(history[:c.notes]), "CRASH while "+c.where))
		w.points.Add(1)
		im := &image{fs: c.fs}
		for i, f := range l.faults {
			event := 0 // of a device that was not open yet
			if i < len(c.events) {
				event = c.events[i]
			}
			im.devices = append(im.devices, w.crashDevice(f, event))
		}
		w.live(im, c.oracle, depth+1)
	}
	w.setHistory(history)
}

// crashDevice makes one of the states a drive may be in after a crash at an event.
func (w *crashWorld) crashDevice(f *device.Fault, event int) *device.Memory {
	switch w.rng.IntN(5) {
	case 0: // the worst: only what was flushed
		return f.CrashDevice(event, nil, device.CrashOptions{})
	case 1:
		return f.CrashDevice(event, w.rng, device.CrashOptions{KeepAll: true})
	}
	o := device.CrashOptions{Tear: []int{0, 512, 4096}[w.rng.IntN(3)], Keep: []float64{0.2, 0.5, 0.9}[w.rng.IntN(3)]}
	return f.CrashDevice(event, w.rng, o)
}

// step does one random operation and tells the oracle.
func (w *crashWorld) step(ctx context.Context, s *Store, or *oracle) string {
	sp := w.spaces[w.rng.IntN(len(w.spaces))]
	k := w.rng.IntN(100)
	if w.steps++; w.calm && w.steps > 40 {
		sp = w.spaces[2+w.rng.IntN(2)]
		if k >= 62 && k < 80 {
			k = 0
		}
	}
	c := sp.slots[w.rng.IntN(len(sp.slots))]
	switch {
	case k < 62:
		return w.put(ctx, s, or, sp, c)
	case k < 72:
		return w.remove(ctx, s, or, sp, c)
	case k < 74:
		if w.rng.IntN(3) > 0 {
			return "nothing"
		}
		return w.purge(ctx, s, or, sp, c)
	case k < 80:
		w.note("flush")
		w.must(s.Flush(ctx), "flush")
		w.settle(ctx, s, or)
		return "flush"
	default:
		w.read(ctx, s, or, sp)
		return "read"
	}
}

// put puts one block or a run of a chain's.
func (w *crashWorld) put(ctx context.Context, s *Store, or *oracle, sp *crashSpace, c *crashSlot) string {
	list := []*crashSlot{c}
	if sp.spec.Chained {
		for len(list) < 1+w.rng.IntN(4) && list[0].parent != nil {
			list = append([]*crashSlot{list[0].parent}, list...)
		}
	} else {
		for range w.rng.IntN(4) { // also the same key twice in one put
			x := sp.slots[w.rng.IntN(len(sp.slots))]
			if w.rng.IntN(4) == 0 {
				x = c
			}
			if x.salt == c.salt {
				list = append(list, x)
			}
		}
	}
	r := &skep.PutRequest{Scope: c.scope(), Ack: skep.Ack(w.rng.IntN(4) / 3)}
	if p := list[0].parent; p != nil {
		r.Parent, r.Depth = &p.key, list[0].depth
	}
	versions := make([]int, len(list))
	for i, x := range list {
		versions[i] = or.version(x)
		r.Blocks = append(r.Blocks, x.block(versions[i]))
	}
	// The last of a chain's run may replace a sibling.
	var replaces *crashSlot
	if last := list[len(list)-1]; sp.spec.Chained && w.rng.IntN(6) == 0 {
		for _, x := range sp.slots {
			if x != last && x.parent == last.parent && x.salt == last.salt && w.rng.IntN(2) == 0 {
				replaces = x
			}
		}
	}
	if replaces != nil {
		// An accepted block drops what it replaces when its commit comes, which may be after
		// that was put again: only what is waited for has an order the oracle can know.
		r.Ack = skep.AckCommitted
		r.Blocks[len(list)-1].Replaces = &replaces.key
	}
	what := fmt.Sprintf("put %v versions %v ack %d replaces %v", list, versions, r.Ack, replaces)
	w.note("%s", what)
	or.begin(list, versions)
	if replaces != nil {
		or.begin([]*crashSlot{replaces}, []int{0})
	}
	res, err := s.Put(ctx, r)
	w.must(err, what)
	w.note("  %v", res)
	or.mu.Lock()
	defer or.mu.Unlock()
	for i, x := range list {
		st := &or.states[x.index]
		switch res[i].Outcome {
		case skep.Committed:
			if sp.spec.Chained && x.durable() && st.cur != 0 && len(st.certain()) == 1 {
				w.fatal("%v committed although version %d is there", x, st.cur)
			}
			st.ack(versions[i])
			if replaces != nil && i == len(list)-1 {
				or.states[replaces.index].ack(0) // in the same breath, as synced as the block
			}
			if x.durable() {
				or.syncedLocked()
			}
		case skep.Exists:
			if x.durable() && st.mustBeAbsent(versions[i]) {
				w.fatal("%v exists although it does not", x)
			}
			st.refuse(versions[i])
		case skep.Declined:
			st.refuse(versions[i])
		}
	}
	if replaces != nil && res[len(list)-1].Outcome == skep.Exists || replaces != nil && res[len(list)-1].Outcome == skep.Declined {
		or.states[replaces.index].refuse(0)
	}
	return what
}

func (w *crashWorld) remove(ctx context.Context, s *Store, or *oracle, sp *crashSpace, c *crashSlot) string {
	list := []*crashSlot{c}
	for range w.rng.IntN(3) {
		if x := sp.slots[w.rng.IntN(len(sp.slots))]; x.salt == c.salt && !slices.Contains(list, x) {
			list = append(list, x)
		}
	}
	var keys []skep.Key
	for _, x := range list {
		keys = append(keys, x.key)
	}
	what := fmt.Sprintf("delete %v", list)
	w.note("%s", what)
	or.begin(list, make([]int, len(list)))
	n, err := s.Delete(ctx, c.scope(), keys)
	w.must(err, what)
	w.note("  %d", n)
	or.mu.Lock()
	defer or.mu.Unlock()
	for _, x := range list {
		or.states[x.index].removed()
	}
	if n > 0 {
		or.syncedLocked()
	}
	return what
}

func (w *crashWorld) purge(ctx context.Context, s *Store, or *oracle, sp *crashSpace, c *crashSlot) string {
	var list []*crashSlot
	p := skep.Purge{Namespace: sp.id}
	sc := c.scope()
	if c.salt != "" {
		p = skep.Purge{Salt: &sc}
	}
	for _, x := range sp.slots {
		if p.Salt == nil || x.salt == c.salt {
			list = append(list, x)
		}
	}
	what := fmt.Sprintf("purge %s salt %q", sp.spec.Name, string(c.salt))
	w.note("%s", what)
	or.begin(list, make([]int, len(list)))
	w.must(s.Purge(ctx, p), what)
	or.mu.Lock()
	defer or.mu.Unlock()
	for _, x := range list {
		or.states[x.index].removed()
	}
	or.syncedLocked()
	return what
}

// settle finds out which accepted blocks were committed, once all are or are not.
func (w *crashWorld) settle(ctx context.Context, s *Store, or *oracle) {
	for _, sp := range w.spaces {
		if !sp.spec.Chained {
			continue
		}
		for _, x := range sp.slots {
			st := &or.states[x.index]
			if len(st.maybe) == 0 || !x.durable() {
				continue
			}
			there := w.stored(ctx, s, x)
			or.mu.Lock()
			if there && len(st.certain()) == 1 {
				st.ack(st.certain()[0])
			}
			or.mu.Unlock()
		}
	}
}

// stored says whether a chained block is there, visible or not.
func (w *crashWorld) stored(ctx context.Context, s *Store, x *crashSlot) bool {
	want, err := s.Want(ctx, &skep.WantRequest{Scope: x.scope(), Keys: []skep.Key{x.key}})
	w.must(err, "want")
	return !want[0].Wanted
}

// read restores a few blocks and checks them, which also makes some hot.
func (w *crashWorld) read(ctx context.Context, s *Store, or *oracle, sp *crashSpace) {
	var list []*crashSlot
	for range 4 {
		list = append(list, sp.slots[w.rng.IntN(len(sp.slots))])
	}
	w.compare(ctx, s, or, list, false)
}

// check compares everything.
func (w *crashWorld) check(ctx context.Context, s *Store, or *oracle, crashed bool) {
	for _, sp := range w.spaces {
		w.compare(ctx, s, or, sp.slots, crashed)
	}
	st, err := s.Stats(ctx)
	w.must(err, "stats")
	// One copy of a Cache block may be lost to the crash and the other not: that counts as
	// damage when it is read, and is no miss.
	if st.Damaged != 0 && w.spaces[0].spec.Copies == 1 {
		w.fatal("%d damaged blocks", st.Damaged)
	}
}
