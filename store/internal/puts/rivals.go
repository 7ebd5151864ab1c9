package puts

import (
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/internal/locks"
)

// Rivals are the puts of one key under way at once. Where the last writer wins, a record
// says whether an older one of its key may lie on a device, and of two rivals that is
// decided by their sequence numbers, which are given out between Begin and the record's
// encoding: one that was encoded before the other began has the lower one. The zero value has none.
type Rivals struct {
	mu locks.Mutex[locks.Rivals]
	m  map[index.Fingerprint]*rivalry
}

type rivalry struct {
	n         int    // under way
	contended bool   // there were several at once
	since     uint64 // what they put has sequence numbers above this
}

// Begin enters puts whose sequence numbers will be above seq. Ended with End.
func (r *Rivals) Begin(keys []index.Fingerprint, seq uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.m == nil {
		r.m = map[index.Fingerprint]*rivalry{}
	}
	for _, fp := range keys {
		v := r.m[fp]
		if v == nil {
			v = &rivalry{since: seq}
			r.m[fp] = v
		}
		v.n++
		v.contended = v.contended || v.n > 1
	}
}

// End ends what Begin entered.
func (r *Rivals) End(keys []index.Fingerprint) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, fp := range keys {
		if v := r.m[fp]; v != nil {
			if v.n--; v.n == 0 {
				delete(r.m, fp)
			}
		}
	}
}

// Contended says whether fp has, or had since it began, a rival.
func (r *Rivals) Contended(fp index.Fingerprint) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.m[fp]
	return v != nil && v.contended
}

// Before is seq, or less where a put of fp is under way: below all that such a put has.
func (r *Rivals) Before(fp index.Fingerprint, seq uint64) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v := r.m[fp]; v != nil {
		seq = min(seq, v.since)
	}
	return seq
}
