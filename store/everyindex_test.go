package store

import (
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/device"
)

// TestErrorAtEveryIndex runs workloads whose operations on the drives, or on the
// catalog's file system, are counted; then again and again, with the first, the second,
// … of them failing with EIO or ENOSPC: that one alone, or it and all writes after it.
// Whatever fails: no call hangs, Close returns, no wrong bytes are seen, and a store
// opened on healthy drives has everything that was acknowledged and nothing that was
// deleted.
//
// A failed catalog leaves goroutines behind on purpose, so each workload runs in a process
// of its own. Without SKEP_EVERY_INDEX only some indices are tried, spread evenly.
//
// Alone: it has the machine for as long as it runs.
func TestErrorAtEveryIndex(t *testing.T) {
	most := testNumber(t, "SKEP_EVERY_INDEX", 10) // indices of a workload, place and mode; 0: all
	if testing.Short() {
		most = 2
	}
	for run, load := range indexWorkloads {
		for _, place := range []string{"drives", "catalog"} {
			t.Run(load.name+"/"+place, func(t *testing.T) {
				t.Parallel()
				if aloneFor(t, time.Hour) {
					errorsEverywhere(t, run, place, most)
				}
			})
		}
	}
}

// errorsEverywhere runs one workload with errors in one place.
func errorsEverywhere(t *testing.T, run int, place string, most int) {
	c := &campaign{seed: testSeed(t), points: 1 << 60, end: time.Now().Add(24 * time.Hour), workloads: indexWorkloads,
		events: map[string]int64{}, places: map[string]int64{}}
	n := faultedRun(t, c, run, place, fault{})
	require.Positive(t, n)
	tried := 0
	for mode := range 4 {
		step := 1
		if most > 0 {
			step = max(1, n/most)
		}
		for at := 1 + (run+mode)%step; at <= n; at += step {
			err := []syscall.Errno{syscall.EIO, syscall.ENOSPC}[mode%2]
			faultedRun(t, c, run, place, fault{at: int64(at), err: err, sticky: mode >= 2})
			tried++
		}
	}
	t.Logf("%s, %s: %d operations, %d runs with an error", indexWorkloads[run].name, place, n, tried)
}

// indexWorkloads are short: each of their operations fails in turn.
var indexWorkloads = func() (out []crashWorkload) {
	steps := map[string]int{"cleaning": 60, "writers": 6, "restarts": 10}
	for _, w := range crashWorkloads {
		if w.name == "drives" {
			continue // what a drive that fails does to adding and taking out others is not this test's
		}
		w.steps = steps[w.name]
		if w.steps == 0 {
			w.steps = 14
		}
		out = append(out, w)
	}
	return out
}()

// fault is what fails: operation at, counted from 1, and with sticky all writes after it.
type fault struct {
	at     int64
	err    error
	sticky bool
}

// counter counts operations and says which fail.
type counter struct {
	fault
	n     atomic.Int64
	ended atomic.Bool
}

func (c *counter) fails(write bool) bool {
	if c.ended.Load() {
		return false
	}
	n := c.n.Add(1)
	return c.at > 0 && (n == c.at || c.sticky && write && n > c.at)
}

func (c *counter) String() string { return "counter" }

// MaybeError implements errorfs.Injector.
func (c *counter) MaybeError(op errorfs.Op) error {
	if c.fails(op.Kind.ReadOrWrite() == errorfs.OpIsWrite) {
		return c.err
	}
	return nil
}

// faultedRun is a workload's run with a fault; then the store is opened without and
// checked. It gives how many operations there were.
func faultedRun(t *testing.T, c *campaign, run int, place string, what fault) int {
	w := newCrashWorld(t, c, run)
	w.name = fmt.Sprintf("%s, %s, %v at operation %d, sticky %v", w.name, place, what.err, what.at, what.sticky)
	w.o.OpTimeout, w.o.FlushInterval, w.o.SpaceTimeout = 10*time.Second, time.Minute, 20*time.Millisecond
	w.faulty = true
	or := newOracle(w.spaces)
	l := &life{w: w, oracle: or}
	l.at("faults")
	count := &counter{fault: what}
	mem := vfs.NewMem()
	require.NoError(t, mem.MkdirAll(filepath.Dir(w.o.Dir), 0o755))
	o := w.o
	o.CatalogFS = mem
	if place == "catalog" {
		o.CatalogFS = errorfs.Wrap(mem, count)
		o.catalogScarce = 2 * time.Second // goes by where there is no space any more
	}
	o.OpenDevice = func(i int, path string, create bool, size int64) (device.Device, error) {
		d, err := l.open(i, path, create, size)
		if err == nil && place == "drives" {
			rule := device.Rule{Action: device.Fail, Err: what.err, Match: func(op *device.Op) bool { return count.fails(op.Kind != device.Read) }}
			d.(gated).Device.(*device.Fault).MustInject(rule)
		}
		return d, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	w.faultedLife(ctx, l, o)
	count.ended.Store(true)

	w.faulty = false
	w.note("healthy again")
	l.reopen()
	o.CatalogFS = mem
	s, err := Open(ctx, o)
	w.must(err, "open on healthy drives")
	for _, sp := range w.spaces {
		n, err := s.OpenNamespace(ctx, sp.spec)
		w.must(err, "open namespace")
		sp.id = n.ID
	}
	w.check(ctx, s, or, true)
	s = w.use(ctx, l, s, o, false)
	w.check(ctx, s, or, false)
	w.must(s.Close(), "close on healthy drives")
	return int(count.n.Load())
}

// faultedLife opens, uses and closes a store that something fails under.
func (w *crashWorld) faultedLife(ctx context.Context, l *life, o Options) {
	s, err := Open(ctx, o)
	if w.failed(err, "open") {
		return
	}
	for _, sp := range w.spaces {
		n, err := s.OpenNamespace(ctx, sp.spec)
		if w.failed(err, "open namespace") {
			w.failed(s.Close(), "close")
			return
		}
		sp.id = n.ID
	}
	if s = w.use(ctx, l, s, o, true); s == nil {
		return // it could not be opened again
	}
	for _, sp := range w.spaces {
		w.compare(ctx, s, l.oracle, sp.slots, false)
	}
	hung := time.AfterFunc(hangs, func() { panic("close does not end") })
	w.failed(s.Close(), "close")
	hung.Stop()
}
