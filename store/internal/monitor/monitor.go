package monitor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/segio"
)

// Drive is a drive as the monitor sees it.
type Drive struct {
	Dev      device.Device
	Flush    *segio.Flusher
	Standing *health.Standing
	Index    int
	Path     string
	Serial   string
	File     bool        // it may be a file, which is looked after
	Removed  func() bool // it was taken out of the store: what its file does is nobody's concern
}

// Host is the store whose drives these are. Drives are named by their index.
type Host interface {
	// Drives are those from an index on: some may have been added.
	Drives(from int) []Drive
	// Exclude takes a drive out of what is written, and from Dead on nobody waits for it.
	Exclude(drive int, s health.State, why error)
	// Include lets a drive back in.
	Include(drive int, s health.State)
	// Changed tells of a drive whose state is another.
	Changed(drive int, s health.State)
	// Hedge has reads of a drive that take longer go elsewhere, too.
	Hedge(drive int, after time.Duration, s health.State)
	// Lost says that a drive counts as lost, or does not any more.
	Lost(drive int, lost bool)
}

// Config is what a monitor needs.
type Config struct {
	Host       Host
	Rules      health.Rules
	ReadOnly   bool // probes do not write
	Context    context.Context
	Closing    <-chan struct{}
	Background *sync.WaitGroup // ends with the monitor's goroutines
	Log        *slog.Logger
}

// Monitor looks at drives. Make it with New.
type Monitor struct {
	c      Config
	began  time.Time
	list   []*watched
	judges []*health.Judge // of list
}

// watched is a drive under the monitor's eyes. Its goroutine only, but for the atomics.
type watched struct {
	Drive
	judge *health.Judge
	file  *file // nil: it is no file

	probing atomic.Bool
	outcome atomic.Int32
	took    atomic.Int64
	buf     []byte // the probe's, while there is one
	pattern byte   // of what the last probe wrote; likewise
}

// New begins to watch the drives that there are: what becomes of a file from here on is seen.
func New(c Config) *Monitor {
	m := &Monitor{c: c, began: time.Now()}
	m.sync()
	return m
}

// Start looks until the store closes.
func (m *Monitor) Start() { m.c.Background.Go(m.run) }

func (m *Monitor) run() {
	tick := time.NewTicker(m.c.Rules.Tick)
	defer tick.Stop()
	for {
		select {
		case <-m.c.Closing:
			return
		case <-tick.C:
		}
		m.Look()
	}
}

// sync gives every drive of the store a place on the list.
func (m *Monitor) sync() {
	for _, d := range m.c.Host.Drives(len(m.list)) {
		w := &watched{Drive: d}
		so := health.Reading{Stats: d.Dev.Stats(), Wrong: d.Standing.Wrong.Load()}
		if c := d.Standing.State(); c != health.Healthy { // it was not there at the open
			w.judge = health.NewMissing(m.c.Rules, time.Since(m.began), c, so)
		} else {
			w.judge = health.NewJudge(m.c.Rules, so)
			if d.File {
				w.file = watch(d.Path)
			}
		}
		m.list, m.judges = append(m.list, w), append(m.judges, w.judge)
	}
}

// Look reads what every drive did, and draws the conclusions. One goroutine at a time calls it.
func (m *Monitor) Look() {
	m.sync()
	at := time.Since(m.began)
	readings, was := make([]health.Reading, len(m.list)), make([]health.State, len(m.list))
	for i, w := range m.list {
		readings[i], was[i] = w.read(m.c.Rules.FileEvery), w.judge.State()
	}
	health.Look(at, m.judges, readings)
	for i, w := range m.list {
		if readings[i].Ignored {
			continue
		}
		m.apply(w, was[i], w.judge.State())
		c := w.Standing.State()
		m.c.Host.Hedge(w.Index, w.judge.HedgeAfter(c), c)
		m.watchLoss(w)
		if !w.probing.Load() {
			if probe, write := w.judge.WantsProbe(at); probe {
				m.probe(w, write && !m.c.ReadOnly)
			}
		}
	}
}

// read is what the drive did up to now.
func (w *watched) read(fileEvery time.Duration) health.Reading {
	r := health.Reading{Stats: w.Dev.Stats(), Wrong: w.Standing.Wrong.Load(), Unlinked: w.file.unlinked(fileEvery)}
	r.Ignored = w.Removed()
	r.Forced = w.Standing.Forced()
	if o := health.Outcome(w.outcome.Swap(int32(health.NoProbe))); o != health.NoProbe {
		r.Probe, r.Took = o, time.Duration(w.took.Load())
	}
	return r
}

// apply does what a change of state asks for.
func (m *Monitor) apply(w *watched, was, is health.State) {
	if is == was {
		return
	}
	why := w.judge.Why()
	err := &skep.Error{Op: "drive", Kind: skep.DeviceFailed, Field: w.Path, Err: because(why, w.judge.LastError())}
	switch {
	case is >= health.Fenced:
		m.c.Host.Exclude(w.Index, is, err)
	case was >= health.Fenced:
		m.c.Host.Include(w.Index, is)
	default:
		w.Standing.Set(is)
		if is == health.Slow {
			m.c.Log.Warn("drive is slow: it is read around where there is another copy",
				"drive", w.Path, "serial", w.Serial, "why", why)
		} else {
			m.c.Log.Info("drive is as fast as before", "drive", w.Path)
		}
	}
	w.Standing.Say(why)
	m.c.Host.Changed(w.Index, is)
}

// because is what is wrong with a drive, and the error that told of it, if one did.
func because(why string, last error) error {
	if last == nil || last.Error() == why {
		return cmp.Or(last, errors.New(why))
	}
	return fmt.Errorf("%s: %w", why, last)
}

// watchLoss does what follows when a drive that cannot be read counts as lost, or does not any more.
func (m *Monitor) watchLoss(w *watched) {
	if !w.Standing.Judge(w.judge) {
		return
	}
	if w.Standing.Lost() {
		m.c.Log.Warn("drive counts as lost: copies it held are made again elsewhere", "drive", w.Path, "serial", w.Serial)
	}
	m.c.Host.Lost(w.Index, w.Standing.Lost())
}
