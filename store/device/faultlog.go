package device

import (
	"math/rand/v2"
)

// writeLog is the history of a device since Record: submissions and completions
// of writes and flushes, each one event. Event e is the e-th of them, from 1.
//
// What a crash after event p may leave follows from it:
//
//   - a write that was completed, without error, before a flush was submitted that
//     in turn was completed by p, is whole on the device;
//   - any other write submitted by p may be there, whole or in part, or not;
//   - a write submitted later is not there.
//
// Writes are laid down in the order of submission. Reordering by the drive needs
// no case of its own: of two unflushed writes to one place, dropping the second
// leaves the first.
type writeLog struct {
	base    *Memory
	entries []*entry
	events  int
}

type entry struct {
	kind      Kind
	offset    int64 // where it went, not where it was sent
	data      []byte
	submitted int // event; from 1
	completed int // event; 0: not yet
	err       error
	void      bool // answered without being done: a dropped write, a lying flush
}

// submit notes an op. The data is copied: after Done the buffer is the caller's.
func (l *writeLog) submit(o *faultOp) *entry {
	l.events++
	e := &entry{kind: o.Kind, offset: o.Offset, submitted: l.events}
	e.void = o.act == Drop || (o.act == Fail && o.Kind == Flush)
	if o.Kind == Write {
		n := o.outer.total
		switch o.act {
		case Tear:
			n = min(n, o.rule.Keep) &^ 511
		case Drop, Fail:
			n = 0
		}
		e.data = make([]byte, n)
		gather(e.data, o.Bufs)
	}
	l.entries = append(l.entries, e)
	return e
}

func (l *writeLog) complete(e *entry, err error) {
	l.events++
	e.completed, e.err = l.events, err
}

// barrier returns the latest event at which a flush was submitted that was
// honestly completed by event p: the writes completed before it survive any crash
// after p.
func (l *writeLog) barrier(p int) int {
	latest := 0
	for _, f := range l.entries {
		if f.kind == Flush && !f.void && f.err == nil && f.completed > 0 && f.completed <= p {
			latest = max(latest, f.submitted)
		}
	}
	return latest
}

// durable reports whether a write survives a crash that this barrier precedes.
func (w *entry) durable(barrier int) bool {
	return w.completed > 0 && w.err == nil && w.completed < barrier
}

// CrashOptions say what happens to writes that no flush protects.
type CrashOptions struct {
	// Tear is the unit in which such a write may survive in part: 512 (what a
	// drive promises), 4096, or 0 for whole writes only.
	Tear int
	// Keep is the probability that such a write, or a unit of a torn one,
	// survives; 0 means 0.5. Use a nil rng for none surviving, KeepAll for all.
	Keep    float64
	KeepAll bool
}

// Events is the number of events recorded: the last moment to crash at.
func (f *Fault) Events() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.log == nil {
		return 0
	}
	return f.mu.log.events
}

// LogEntry is one recorded write or flush.
type LogEntry struct {
	Kind      Kind
	Offset    int64 // where it went
	Len       int   // what of it reached the drive
	Submitted int   // event, from 1
	Completed int   // event; 0: not yet
	Err       error
	Void      bool // answered without being done
}

// Log returns what was recorded, in order of submission.
func (f *Fault) Log() []LogEntry {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.log == nil {
		return nil
	}
	out := make([]LogEntry, 0, len(f.mu.log.entries))
	for _, e := range f.mu.log.entries {
		out = append(out, LogEntry{e.kind, e.offset, len(e.data), e.submitted, e.completed, e.err, e.void})
	}
	return out
}

// CrashDevice returns a new device as a power cut after the given event (0 to
// Events) could have left this one; rng chooses among the possibilities, nil
// takes the worst: nothing survives that no flush protects. It returns nil when
// Record was not called.
func (f *Fault) CrashDevice(event int, rng *rand.Rand, o CrashOptions) *Memory {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.mu.log
	if l == nil {
		return nil
	}
	image := l.base.Clone()
	image.size.Store(max(l.base.Size(), f.size.Load())) // a Grow is durable when it returns
	barrier := l.barrier(event)
	for _, w := range l.entries {
		if w.kind != Write || w.void || w.submitted > event {
			continue
		}
		if o.KeepAll || w.durable(barrier) {
			image.store.write(w.data, w.offset)
		} else if rng != nil {
			layDown(image, w, rng, o)
		}
	}
	return image
}

// CrashImage is CrashDevice as bytes.
func (f *Fault) CrashImage(event int, rng *rand.Rand, o CrashOptions) []byte {
	d := f.CrashDevice(event, rng, o)
	if d == nil {
		return nil
	}
	return d.Bytes()
}

// layDown lets chance decide what of an unprotected write survives.
func layDown(image *Memory, w *entry, rng *rand.Rand, o CrashOptions) {
	keep := o.Keep
	if keep <= 0 {
		keep = 0.5
	}
	if o.Tear <= 0 || rng.IntN(2) == 0 { // torn ones are the exception, whole and none the rule
		if rng.Float64() < keep {
			image.store.write(w.data, w.offset)
		}
		return
	}
	for at := 0; at < len(w.data); at += o.Tear {
		if rng.Float64() < keep {
			end := min(at+o.Tear, len(w.data))
			image.store.write(w.data[at:end], w.offset+int64(at))
		}
	}
}
