package store

import (
	"context"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
)

// image is what a crash left.
type image struct {
	fs         *vfs.MemFS
	devices    []*device.Memory
	lost       bool // of the catalog nothing is left, or only what an unfinished rebuild had made
	recoveries int  // how many crashes in a row, the last one included, were inside a recovery
}

// digest is a hash of every byte on the devices and in the file system.
func (im *image) digest(dir string) uint64 {
	var h xxh3.Hasher
	buf := make([]byte, 256<<10)
	for _, m := range im.devices {
		for off := int64(0); off < m.Size(); off += int64(len(buf)) {
			b := buf[:min(int64(len(buf)), m.Size()-off)]
			m.Peek(off, b)
			h.Write(b)
		}
	}
	hashTree(&h, im.fs, dir)
	return h.Sum64()
}

func hashTree(h *xxh3.Hasher, fs *vfs.MemFS, path string) {
	h.WriteString(path + "\n")
	names, err := fs.List(path)
	if err == nil {
		slices.Sort(names)
		for _, n := range names {
			hashTree(h, fs, filepath.Join(path, n))
		}
		return
	}
	f, err := fs.Open(path)
	if err != nil {
		return
	}
	defer f.Close()
	n, _ := io.Copy(h, f)
	h.Write(binary.LittleEndian.AppendUint64(nil, uint64(n)))
}

// cut is a moment at which everything was cut off.
type cut struct {
	fs      []*vfs.MemFS // of the one moment, with more or less of what was not synced
	drives  []cutDrive
	oracle  *oracle
	notes   int
	where   string
	rebuild bool // inside a rebuild
	told    bool // the devices knew of every deletion, purge and namespace: see docs/notebook/reliability.md
}

// cutDrive is a drive at the moment of a cut: an event of its log or, when it was not
// open, its bytes.
type cutDrive struct {
	fault *device.Fault
	event int
	mem   *device.Memory
}

// life is one line of stores on the same devices, each closed before the next, with the
// cuts made meanwhile.
type life struct {
	w      *crashWorld
	oracle *oracle
	mems   []*device.Memory
	faults []*device.Fault // over them; nil: not open yet
	fs     *vfs.MemFS
	store  atomic.Pointer[Store]
	groups int // that were opened and are no more, when the store was opened

	// gate is held shared while a device takes operations, and exclusively by a cut, so
	// that no write or flush begins between the cuts of the catalog and of the devices.
	// What completes meanwhile only makes more of it durable.
	gate sync.RWMutex

	mu    sync.Mutex
	rng   *rand.Rand
	odds  int // one event in so many is a cut
	left  int // cuts to be made
	cuts  []*cut
	armed bool
	where atomic.Pointer[string]
}

func (l *life) at(where string) { l.where.Store(&where) }

// arm sets how many cuts there are to be, and how often.
func (l *life) arm(left, odds int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.armed, l.left, l.odds = left > 0, left, odds
}

func (l *life) rest() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.left
}

// tick is called before each write or flush of a device and each change of the file
// system.
func (l *life) tick() {
	l.mu.Lock()
	now := l.armed && l.left > 0 && l.rng.IntN(l.odds) == 0
	if now {
		l.left--
	}
	l.mu.Unlock()
	if now {
		l.cut()
	}
}

func (l *life) cut() {
	l.gate.Lock()
	defer l.gate.Unlock()
	l.oracle.mu.Lock()
	defer l.oracle.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	c := &cut{where: *l.where.Load(), oracle: l.oracle.cloneLocked(), notes: len(l.w.soFar())}
	for _, percent := range l.rng.Perm(3)[:2] {
		c.fs = append(c.fs, l.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50 * percent, RNG: l.rng}))
	}
	c.rebuild = c.where == "rebuild"
	s := l.store.Load()
	c.told = s != nil && s.logs.Intents.None() && !s.space.AnyStale()
	for i, m := range l.mems {
		if f := l.faults[i]; f != nil {
			c.drives = append(c.drives, cutDrive{fault: f, event: f.Events()})
		} else {
			c.drives = append(c.drives, cutDrive{mem: m.Clone()})
		}
	}
	l.cuts = append(l.cuts, c)
}

// MaybeError implements errorfs.Injector; it never does.
func (l *life) MaybeError(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
		l.tick()
	}
	return nil
}

func (l *life) String() string { return "crash" }

// gated is a device whose operations do not begin during a cut.
type gated struct {
	device.Device
	l     *life
	first bool // of the store's devices
	mem   *device.Memory
}

func (g gated) Submit(ops []*device.Op) error {
	for _, op := range ops {
		if op.Kind != device.Read {
			g.l.tick()
		}
		if g.first && op.Kind == device.Write {
			g.notice(op)
		}
	}
	g.l.gate.RLock()
	defer g.l.gate.RUnlock()
	return g.Device.Submit(ops)
}

// notice counts segments opened that held a group before: it was cleaned, and its space
// is used again.
func (g gated) notice(op *device.Op) {
	at := op.Offset - layout.SegmentOffset(0, 0)
	if at < 0 || at%g.l.w.o.SegmentBytes != 0 {
		return
	}
	was := make([]byte, 64)
	if g.mem.Peek(op.Offset, was); string(was) != string(make([]byte, 64)) {
		g.l.w.c.happened("groups reused", 1)
	}
}

func (g gated) Unwrap() device.Device { return g.Device }

// reopen makes the devices ready to be opened again, after a clean end.
func (l *life) reopen() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, m := range l.mems {
		l.mems[i] = m.Clone() // the one before was closed
	}
	clear(l.faults)
}

func (l *life) open(i int, _ string, create bool, size int64) (device.Device, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case create && i < len(l.mems): // made before, and a crash came before anybody knew it
		l.mems[i], l.faults[i] = device.NewMemory(size), nil
	case create:
		l.mems, l.faults = append(l.mems, device.NewMemory(size)), append(l.faults, nil)
	case i >= len(l.mems):
		return nil, os.ErrNotExist
	case l.faults[i] != nil:
		l.mems[i] = l.mems[i].Clone() // it was open before, and closed
	}
	f := device.NewFault(l.mems[i], uint64(i))
	if err := f.Record(context.Background()); err != nil {
		return nil, err
	}
	l.faults[i] = f
	return gated{f, l, i == 0, l.mems[i]}, nil
}
