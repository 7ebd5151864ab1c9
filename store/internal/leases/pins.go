package leases

import (
	"maps"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/internal/locks"
)

// Pins is which blocks are pinned, so that each is counted once. Make it with NewPins. It is safe for any number of
// goroutines.
type Pins struct {
	x *index.Index

	mu   locks.Mutex[locks.Pins]
	m    map[index.Fingerprint]pin
	look int // sift at so many
}

type pin struct {
	id    skep.LeaseID
	until time.Time
}

// NewPins makes the pins of a store that has none yet.
func NewPins(x *index.Index) *Pins { return &Pins{x: x, m: map[index.Fingerprint]pin{}} }

// Pin pins all of fps that are there or, when the tenant's budget does not allow it, none: then the error is the
// index's. bytes is what a block counts for.
func (p *Pins) Pin(tenant uint16, fps []index.Fingerprint, now, until time.Time,
	bytes func(index.Fingerprint, index.Entry) int64,
) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.m) >= max(p.look, LeastSifted) { // as leases are
		maps.DeleteFunc(p.m, func(_ index.Fingerprint, v pin) bool { return !p.x.Leased(v.id) })
		p.look = 2 * len(p.m)
	}
	fresh := map[index.Fingerprint]skep.LeaseID{}
	for _, fp := range fps {
		if old, ok := p.m[fp]; ok && p.x.Renew(old.id, now, old.until) == nil {
			continue // it holds, and is renewed below
		}
		if _, twice := fresh[fp]; twice {
			continue
		}
		e, id, ok := p.x.Probe(fp)
		if !ok {
			continue
		}
		granted, err := p.x.Grant(index.LeaseRequest{Deepest: id, FP: fp, Bytes: bytes(fp, e), Tenant: tenant,
			Until: until, Pin: true})
		if skep.KindOf(err) == skep.NotFound {
			continue
		}
		if err != nil {
			for _, id := range fresh {
				p.x.Release(id)
			}
			return err
		}
		fresh[fp] = granted
	}
	for _, fp := range fps {
		if id, ok := fresh[fp]; ok {
			p.m[fp] = pin{id, until}
		} else if old, ok := p.m[fp]; ok && old.until.Before(until) && p.x.Renew(old.id, now, until) == nil {
			p.m[fp] = pin{old.id, until} // never sooner than who pinned it before was told
		}
	}
	return nil
}

// Lift ends the pins of blocks.
func (p *Pins) Lift(fps []index.Fingerprint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, fp := range fps {
		if v, ok := p.m[fp]; ok {
			p.x.Release(v.id)
			delete(p.m, fp)
		}
	}
}

// Expire forgets pins that are over.
func (p *Pins) Expire(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.m, func(_ index.Fingerprint, v pin) bool { return !v.until.After(now) })
}

// Len is how many are kept.
func (p *Pins) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.m)
}
