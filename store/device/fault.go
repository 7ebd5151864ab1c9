package device

import (
	"context"
	"fmt"
	"github.com/skepkv/skep/store/internal/locks"
	"math/rand/v2"
	"syscall"
	"time"
)

// Fault wraps a device, usually a Memory, for tests: it fails as told by rules
// (see Rule), and, once recording, remembers every write and flush, so that what
// a crash at any moment could have left can be rebuilt (see Record).
//
// Its choices come from the seed and the order in which ops are submitted. With
// one submitter a run repeats exactly.
type Fault struct {
	core
	inner Device

	mu struct {
		locks.Mutex[locks.DeviceFault]
		rng   *rand.Rand
		rules []*Injected
		held  []*faultOp    // by Hold and Withhold, in order
		moved chan struct{} // closed and replaced when held grows
		turn  int           // how often Release was called
		log   *writeLog     // nil: not recording
	}
}

// faultOp is an op on its way through a Fault.
type faultOp struct {
	Op           // what the inner device sees
	outer *Op    // what the caller submitted
	entry *entry // in the log; nil when not recording, and for reads
	act   Action // 0: none
	rule  Rule   // of act
	bit   uint64 // random, for FlipBit
	turn  int    // of the Fault, when a rule chose act
	ran   bool   // the inner device is done with it
}

// NewFault wraps inner and owns it: Close closes it. The same seed makes the same
// choices.
func NewFault(inner Device, seed uint64) *Fault {
	f := &Fault{inner: inner}
	info := inner.Info()
	info.Backend = "fault " + info.Backend
	info.Simulated = true
	f.core.init(info, inner.Size(), closeTimeoutOf(inner))
	f.mu.rng = rand.New(rand.NewPCG(seed, seed))
	f.mu.moved = make(chan struct{})
	return f
}

// SetCloseTimeout changes how long Close waits for ops, held ones included. Call
// it before Close.
func (f *Fault) SetCloseTimeout(d time.Duration) { f.closeTimeout = d }

// Inject puts a rule to work.
func (f *Fault) Inject(r Rule) (*Injected, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	i := &Injected{f: f, rule: r}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.rules = append(f.mu.rules, i)
	return i, nil
}

// MustInject is Inject for a rule the test itself wrote; it panics on one that
// makes no sense.
func (f *Fault) MustInject(r Rule) *Injected {
	i, err := f.Inject(r)
	if err != nil {
		panic(err)
	}
	return i
}

// Clear removes every rule. What is held stays held until Release.
func (f *Fault) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.rules = nil
}

// Hold hangs the drive: ops of these kinds (none: all) are held from now until
// Release.
func (f *Fault) Hold(kinds ...Kind) {
	var set Kinds
	for _, k := range kinds {
		set |= 1 << k
	}
	f.MustInject(Rule{Action: Hold, Kinds: set & (Reads | Writes | Flushes)})
}

// Held is the number of ops held.
func (f *Fault) Held() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.mu.held)
}

// WaitHeld returns when at least n ops are held.
func (f *Fault) WaitHeld(ctx context.Context, n int) error {
	for {
		f.mu.Lock()
		held, moved := len(f.mu.held), f.mu.moved
		f.mu.Unlock()
		if held >= n {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("device: %d ops held, waiting for %d: %w", held, n, ctx.Err())
		}
	}
}

// Release removes every Hold and Withhold rule and lets go of what they hold: ops
// that never ran run now, in order. Nor is one held that they have met before and hold only now.
func (f *Fault) Release() {
	f.mu.Lock()
	f.mu.turn++
	held := f.mu.held
	f.mu.held = nil
	var rules []*Injected
	for _, i := range f.mu.rules {
		if i.rule.Action != Hold && i.rule.Action != Withhold {
			rules = append(rules, i)
		}
	}
	f.mu.rules = rules
	f.mu.Unlock()
	go func() { // ends with the list; its ops are counted in flight
		for _, o := range held {
			if o.ran {
				f.end(o, o.Op.Err)
			} else {
				o.act = 0
				f.pass([]*faultOp{o})
			}
		}
	}()
}

// hold has an op be held; false: it was let go of since its rule met it.
func (f *Fault) hold(o *faultOp) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o.turn != f.mu.turn {
		return false
	}
	f.mu.held = append(f.mu.held, o)
	close(f.mu.moved)
	f.mu.moved = make(chan struct{})
	return true
}

func (f *Fault) Submit(ops []*Op) error {
	if len(ops) == 0 {
		return nil
	}
	if err := f.begin(ops); err != nil {
		return err
	}
	all := make([]*faultOp, len(ops))
	f.mu.Lock()
	for i, op := range ops {
		all[i] = f.meetLocked(op)
	}
	f.mu.Unlock()

	var pass, later []*faultOp
	for _, o := range all {
		switch o.act {
		case Hold:
			if !f.hold(o) {
				o.act, pass = 0, append(pass, o)
			}
		case Fail, Drop, Tear:
			later = append(later, o)
		default:
			pass = append(pass, o)
		}
	}
	if len(later) > 0 {
		go func() { // Done never runs inside Submit
			for _, o := range later {
				f.end(o, f.fake(o))
			}
		}()
	}
	f.pass(pass)
	return nil
}

// meetLocked decides what happens to an op, and logs it. REQUIRES: f.mu.
func (f *Fault) meetLocked(op *Op) *faultOp {
	o := &faultOp{outer: op, turn: f.mu.turn}
	o.Kind, o.Offset, o.Bufs = op.Kind, op.Offset, op.Bufs
	o.Done = func(*Op) { f.arrive(o) }
	for _, i := range f.mu.rules {
		if i.rule.Action == Misdirect && !f.fits(op, i.rule.Shift) {
			continue
		}
		if i.meet(op, f.mu.rng) {
			o.act, o.rule = i.rule.Action, i.rule
			break
		}
	}
	switch o.act {
	case Misdirect:
		o.Offset += o.rule.Shift
	case FlipBit:
		o.bit = f.mu.rng.Uint64()
	}
	if f.mu.log != nil && op.Kind != Read {
		o.entry = f.mu.log.submit(o)
	}
	return o
}

func (f *Fault) fits(op *Op, shift int64) bool {
	off := op.Offset + shift
	return op.Kind != Flush && off >= 0 && off+int64(op.total) <= f.inner.Size()
}

// fake does what the inner device does not: it ends, or does by halves, an op.
func (f *Fault) fake(o *faultOp) error {
	switch o.act {
	case Fail:
		if o.rule.Err != nil {
			return o.rule.Err
		}
		return syscall.EIO
	case Tear:
		return f.tear(o)
	}
	return nil
}

// tear writes the first bytes of o and leaves what the device had behind them.
func (f *Fault) tear(o *faultOp) error {
	ctx := context.Background() // a hung inner device is the test's to release
	keep := min(o.rule.Keep, o.outer.total) &^ 511
	whole := (keep + Align - 1) &^ (Align - 1)
	if whole == 0 {
		return nil
	}
	buf := AlignedBuffer(whole)
	if err := ReadAt(ctx, f.inner, buf, o.Offset); err != nil {
		return err
	}
	gather(buf[:keep], o.Bufs)
	return WriteAt(ctx, f.inner, buf, o.Offset)
}

// gather fills dst from the front of bufs.
func gather(dst []byte, bufs [][]byte) {
	for _, b := range bufs {
		dst = dst[copy(dst, b):]
	}
}

// pass gives ops to the inner device.
func (f *Fault) pass(list []*faultOp) {
	if len(list) == 0 {
		return
	}
	inner := make([]*Op, len(list))
	for i, o := range list {
		inner[i] = &o.Op
	}
	if err := f.inner.Submit(inner); err != nil {
		go func() { // Done never runs inside Submit
			for _, o := range list {
				f.end(o, err)
			}
		}()
	}
}

// arrive is the inner device's Done.
func (f *Fault) arrive(o *faultOp) {
	o.ran = true
	switch o.act {
	case Withhold:
		if f.hold(o) {
			return
		}
	case Delay:
		time.AfterFunc(o.rule.Delay, func() { f.end(o, o.Op.Err) })
		return
	case FlipBit:
		if o.Op.Err == nil {
			flipBit(o.Bufs, o.bit%(8*uint64(o.outer.total)))
		}
	}
	f.end(o, o.Op.Err)
}

func flipBit(bufs [][]byte, bit uint64) {
	at := int(bit / 8)
	for _, b := range bufs {
		if at < len(b) {
			b[at] ^= 1 << (bit % 8)
			return
		}
		at -= len(b)
	}
}

func (f *Fault) end(o *faultOp, err error) {
	if o.entry != nil {
		f.mu.Lock()
		if f.mu.log != nil {
			f.mu.log.complete(o.entry, err)
		}
		f.mu.Unlock()
	}
	f.finish(o.outer, err)
}

func (f *Fault) Grow(size int64) error {
	if err := f.inner.Grow(size); err != nil {
		return err
	}
	f.size.Store(f.inner.Size())
	return nil
}

func (f *Fault) Unwrap() Device { return f.inner }

// Close waits for held ops like for any other: it does not release them.
func (f *Fault) Close() error { return f.shutdown(nil, f.inner.Close, f) }

// Record starts a new log with the device as it is now: what is on it counts as
// durable. Call it while nothing is in flight.
func (f *Fault) Record(ctx context.Context) error {
	base, err := snapshot(ctx, f.inner)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.log = &writeLog{base: base}
	return nil
}

// snapshot copies a device into memory.
func snapshot(ctx context.Context, d Device) (*Memory, error) {
	if m, ok := d.(*Memory); ok {
		return m.Clone(), nil
	}
	m := NewMemory(d.Size())
	buf := AlignedBuffer(1 << 20)
	for off := int64(0); off < d.Size(); off += int64(len(buf)) {
		b := buf[:min(int64(len(buf)), d.Size()-off)]
		if err := ReadAt(ctx, d, b, off); err != nil {
			return nil, err
		}
		if !allZero(b) {
			m.store.write(b, off)
		}
	}
	return m, nil
}

func allZero(b []byte) bool {
	for _, v := range b {
		if v != 0 {
			return false
		}
	}
	return true
}
