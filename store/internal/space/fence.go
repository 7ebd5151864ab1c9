package space

import "github.com/skepkv/skep/store/internal/health"

// Fence keeps a drive that failed a write out of new groups until probes have shown that
// it can be written again. Reads of what it holds go on. A write for which the file system is full is none such, but a
// flush is: what it was to make durable may be lost.
func (t *Table) Fence(d *Drive, err error) {
	d.Standing.Force(err)
	t.Exclude(d, health.Fenced, err)
}

// Exclude takes a drive out of what is written: open groups it is in are sealed, and new
// ones do without it. Where it is dead nobody waits for it any longer.
func (t *Table) Exclude(d *Drive, c health.State, err error) {
	t.mu.Lock()
	first := d.Failed == nil
	if first || err != ErrDraining { // why it cannot be used comes before that it is not to be
		d.Failed = err
	}
	if c > d.Condition() {
		d.Standing.Set(c)
	}
	for _, g := range t.mu.Open {
		if g != nil && g.Has(d) {
			t.sealLocked(g)
		}
	}
	if c == health.Dead {
		select {
		case <-d.down:
		default:
			close(d.down)
		}
		for g := range t.mu.Groups.Each() {
			if g.Pending > 0 && g.Has(d) {
				g.loseLocked()
			}
		}
		for _, g := range t.mu.Making { // who opens one keeps others from opening any
			if g.Has(d) {
				g.loseLocked()
			}
		}
	}
	t.mu.Unlock()
	if first && err != ErrDraining {
		t.Log.Error("drive fenced: it takes no new blocks until it is well again", "drive", d.Path, "serial", d.Serial,
			"condition", c.String(), "error", err)
	}
	t.Kick()
}

// Include lets a drive back in.
func (t *Table) Include(d *Drive, c health.State) {
	t.mu.Lock()
	was := d.Failed
	d.Failed = nil
	if d.Retired.Load() {
		d.Failed = ErrDraining
	}
	d.Resaid.Store(false) // what is written to it from now on is not
	d.Standing.Set(c)
	d.Standing.Writes.Forget()
	select {
	case <-d.down:
		d.down = make(chan struct{})
	default:
	}
	t.mu.Unlock()
	if was != nil {
		t.Log.Info("drive let back in", "drive", d.Path, "serial", d.Serial)
	}
}
