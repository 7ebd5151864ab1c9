package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

var sprintf = fmt.Sprintf

// crashWorld is one run: options, namespaces and keys that all lives of it share.
type crashWorld struct {
	*testing.T
	crashWorkload
	c        *campaign
	name     string
	rng      *rand.Rand
	o        Options
	spaces   []*crashSpace
	seen     map[uint64]bool // states on disk, alone and with what the oracle demanded
	points   int64           // of this run
	rebuilt  bool            // what is checked comes from the devices alone
	faulty   bool            // operations may fail: drives or the catalog's file system do
	injected bool            // with that: errors of any kind are made in the engine itself; of a store that failed, what was being changed is a miss
	mu       sync.Mutex
	history  []string // what was done, in this line of lives
}

// crashSpace is a namespace and the keys that may be in it, in two rooms.
type crashSpace struct {
	spec   skep.NamespaceSpec
	id     skep.NamespaceID
	writer int
	slots  []*crashSlot
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
	tail   bool // has fewer valid tokens than a block holds, and no children
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

// content of a part in a version, from 1. It begins with the version, so that what comes
// back is compared with one version only.
func (c *crashSlot) content(part string, version int) []byte {
	size := c.size * (3 + version%3) / 4
	if part != skep.PartKV {
		size = 700
	}
	b := content(c.key, part+string(c.salt)+c.space.spec.Name, version, size)
	binary.LittleEndian.PutUint32(b, uint32(version))
	return b
}

func (c *crashSlot) block(version int) skep.Block {
	b := skep.Block{Key: c.key, Parts: []skep.Part{{Bytes: c.content(skep.PartKV, version)}}}
	if c.tail {
		b.ValidTokens = 1
	}
	if c.state {
		b.Parts = append(b.Parts, skep.Part{Name: "state", Bytes: c.content("state", version)})
	}
	return b
}

// over says whether there have been points enough, of this run or of all.
func (w *crashWorld) over() bool { return w.c.over() || w.c.each > 0 && w.points >= w.c.each }

func newCrashWorld(t *testing.T, c *campaign, run int) *crashWorld {
	rng := rand.New(rand.NewPCG(c.seed, uint64(run)))
	dir, err := os.MkdirTemp(t.TempDir(), "")
	require.NoError(t, err)
	w := &crashWorld{T: t, c: c, rng: rng, seen: map[uint64]bool{}, crashWorkload: c.workloads[run%len(c.workloads)]}
	w.name = fmt.Sprintf("workload %s, seed %d, run %d", w.crashWorkload.name, c.seed, run)
	w.writers = max(1, w.writers)
	w.o = small(dir)
	w.o.OpTimeout = 20 * time.Second
	// Drives in memory do not get slow: the machine does, when much runs on it.
	unjudged(&w.o)
	w.o.DeviceCount = 1 + rng.IntN(4)
	w.o.SegmentBytes = []int64{64 << 10, 96 << 10, 128 << 10}[rng.IntN(3)]
	segments := int64(6 + rng.IntN(6))
	w.o.CacheBytes = []int64{-1, 1 << 20}[rng.IntN(2)]
	w.o.FlushInterval = time.Duration(1+rng.IntN(100)) * time.Millisecond
	if w.calm {
		w.o.FlushInterval = time.Minute
	}
	w.o.SpaceTimeout = 100 * time.Millisecond
	w.o.Workers = 1 + rng.IntN(2)
	if rng.IntN(3) == 0 {
		w.o.EncryptionKeys = oneKey("t", 1)
	}
	w.o.Logger = slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if w.tune != nil {
		w.tune(rng, &w.o)
	}
	w.o.CapacityBytes = int64(w.o.DeviceCount) * (segments*w.o.SegmentBytes + 8<<10)
	copies := w.crashWorkload.copies
	if copies == 0 {
		copies = 1 + rng.IntN(min(2, w.o.DeviceCount))
	}
	w.populate(segments*w.o.SegmentBytes*int64(w.o.DeviceCount), copies)
	w.note("devices %d, segments %d of %d, copies %d, cache %d, flush every %v", w.o.DeviceCount, segments, w.o.SegmentBytes, copies, w.o.CacheBytes, w.o.FlushInterval)
	return w
}

// populate makes the namespaces, for each writer its own. Durable blocks are few, since
// they are never evicted; of Cache blocks there are more than there is room for.
func (w *crashWorld) populate(room int64, copies int) {
	shares := w.shares
	if shares == [4]int{} {
		shares = [4]int{10, 10, 60, 40}
	}
	most := w.most
	if most == 0 {
		most = 16 << 10
	}
	n := 0
	for writer := range w.writers {
		for i, share := range shares {
			class, chained := []skep.Class{skep.Durable, skep.Cache}[i/2], i%2 == 0
			name := fmt.Sprintf("%s %s %d", class, []string{"chain", "keys"}[i%2], writer)
			sp := &crashSpace{writer: writer, spec: skep.NamespaceSpec{Tenant: "t", Name: name, Model: name, Shape: halfShape, Class: class, Copies: copies, Chained: chained}}
			for bytes := int64(0); bytes < room*int64(share)/100/int64(copies*w.writers) && len(sp.slots) < 150/w.writers; {
				sp.grow(w.rng, most)
				bytes += int64(sp.slots[len(sp.slots)-1].size) + 4096
			}
			for _, s := range sp.slots {
				s.index = n
				n++
			}
			w.spaces = append(w.spaces, sp)
		}
	}
}

func (sp *crashSpace) grow(rng *rand.Rand, most int) {
	c := &crashSlot{space: sp, salt: []skep.Salt{"", "", "s"}[rng.IntN(3)], size: 32 + rng.IntN(most), state: rng.IntN(6) == 0}
	switch rng.IntN(8) {
	case 0, 1:
		c.size = 32 + rng.IntN(500)
	case 2:
		c.size = 700 + rng.IntN(2100) // it shares a page in every version
	}
	if n := len(sp.slots); sp.spec.Chained && n > 0 && rng.IntN(5) > 0 {
		if p := sp.slots[max(0, n-1-rng.IntN(4))]; p.depth < 12 && !p.tail {
			c.parent, c.depth, c.salt = p, p.depth+1, p.salt
		}
	}
	c.tail = sp.spec.Chained && rng.IntN(3) == 0
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
	w.history = slices.Clip(h)
}

// fatal ends the run; a writer's goroutine, only that.
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

// failed says that an operation failed, which only one on failing drives may.
func (w *crashWorld) failed(err error, what string) bool {
	if err != nil && !w.faulty {
		w.Helper()
		w.must(err, what)
	}
	if err != nil {
		w.note("  %v", err)
	}
	return err != nil
}
