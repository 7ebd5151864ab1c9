package puts

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/internal/locks"
	"github.com/skepkv/skep/store/segment"
)

// Accepted counts accepted blocks whose commit is to follow. The zero value has none.
type Accepted struct {
	mu      locks.Mutex[locks.Acceptances]
	next    uint64
	pending map[uint64]chan struct{}
}

// Begin begins to count some, until end is called.
func (a *Accepted) Begin() (end func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pending == nil {
		a.pending = map[uint64]chan struct{}{}
	}
	a.next++
	id, done := a.next, make(chan struct{})
	a.pending[id] = done
	return func() {
		a.mu.Lock()
		delete(a.pending, id)
		a.mu.Unlock()
		close(done)
	}
}

// Wait returns when all that had begun has ended. Error: Deadline (ctx).
func (a *Accepted) Wait(ctx context.Context) error {
	a.mu.Lock()
	var all []chan struct{}
	for _, c := range a.pending {
		all = append(all, c)
	}
	a.mu.Unlock()
	for _, c := range all {
		select {
		case <-c:
		case <-ctx.Done():
			return &skep.Error{Op: "flush", Kind: skep.Deadline, Err: ctx.Err()}
		}
	}
	return nil
}

// Records are the records of accepted blocks that have no row yet. Make it with NewRecords.
type Records struct {
	mu locks.Mutex[locks.Pendings]
	m  map[index.Fingerprint]*segment.Record
}

// NewRecords has none.
func NewRecords() *Records { return &Records{m: map[index.Fingerprint]*segment.Record{}} }

// Add enters a block's record.
func (p *Records) Add(fp index.Fingerprint, r *segment.Record) {
	p.mu.Lock()
	p.m[fp] = r
	p.mu.Unlock()
}

// Remove takes rec out, unless another's of the same key has taken its place.
func (p *Records) Remove(fp index.Fingerprint, rec *segment.Record) {
	p.mu.Lock()
	if p.m[fp] == rec {
		delete(p.m, fp)
	}
	p.mu.Unlock()
}

// While calls f if the record of fp that is here is rec, and keeps others from entering theirs meanwhile. False: it is
// another, or none.
func (p *Records) While(fp index.Fingerprint, rec *segment.Record, f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.m[fp] != rec {
		return false
	}
	f()
	return true
}

// Len is how many there are.
func (p *Records) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.m)
}

// Get is the record of fp; nil: there is none.
func (p *Records) Get(fp index.Fingerprint) *segment.Record {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.m[fp]
}

// Among calls f for the records of those of fps that are here, which it takes out of fps.
func (p *Records) Among(fps map[index.Fingerprint]bool, f func(*segment.Record)) {
	if len(fps) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for fp, rec := range p.m {
		if fps[fp] {
			delete(fps, fp)
			f(rec)
		}
	}
}
