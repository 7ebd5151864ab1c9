package store

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/skepkv/skep/store/device"
)

// image is what a crash left.
type image struct {
	fs      *vfs.MemFS
	devices []*device.Memory
}

// cut is a moment at which everything was cut off.
type cut struct {
	fs     *vfs.MemFS
	events []int
	oracle *oracle
	notes  int
	where  string
}

// life is one store from opening to closing, with the cuts made meanwhile.
type life struct {
	w      *crashWorld
	oracle *oracle
	faults []*device.Fault
	fs     *vfs.MemFS
	image  *image

	// gate is held shared while a device takes operations, and exclusively by a cut, so
	// that no write or flush begins between the cuts of the catalog and of the devices.
	// What completes meanwhile only makes more of it durable.
	gate sync.RWMutex

	mu    sync.Mutex
	rng   *rand.Rand
	odds  int // one event in so many is a cut
	left  int // cuts to be made
	cuts  []cut
	armed bool
	where atomic.Pointer[string]
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
	c := cut{fs: l.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 50, 100}[l.rng.IntN(3)], RNG: l.rng})}
	for _, f := range l.faults {
		c.events = append(c.events, f.Events())
	}
	c.oracle = l.oracle.cloneLocked()
	c.notes = len(l.w.soFar())
	if s := l.where.Load(); s != nil {
		c.where = *s
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
	l *life
}

func (g gated) Submit(ops []*device.Op) error {
	for _, op := range ops {
		if op.Kind != device.Read {
			g.l.tick()
		}
	}
	g.l.gate.RLock()
	defer g.l.gate.RUnlock()
	return g.Device.Submit(ops)
}

func (g gated) Unwrap() device.Device { return g.Device }

func (l *life) open(i int, _ string, create bool, size int64) (device.Device, error) {
	var m *device.Memory
	if create {
		m = device.NewMemory(size)
	} else {
		m = l.image.devices[i]
	}
	f := device.NewFault(m, uint64(i))
	if err := f.Record(context.Background()); err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.faults = append(l.faults, f)
	l.mu.Unlock()
	return gated{f, l}, nil
}
