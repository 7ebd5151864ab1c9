package scrub

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/locks"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// repairs are blocks that wait for repair.
type repairs struct {
	mu   locks.Mutex[locks.Repairs]
	m    map[index.Fingerprint]layout.Location
	wake chan struct{}
}

// maxRepairs bounds those that wait. What does not fit is found again, by the next read
// or scrub.
const maxRepairs = 1024

// RepairSoon asks for a block to be repaired behind the caller's back.
func (s *Scrubber) RepairSoon(fp index.Fingerprint, loc layout.Location) {
	r := &s.repairs
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.m) < maxRepairs {
		r.m[fp] = loc
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *repairs) next() (fp index.Fingerprint, loc layout.Location, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for fp, loc = range r.m {
		delete(r.m, fp)
		return fp, loc, true
	}
	return fp, loc, false
}

// Repair works off what waits, until closing is closed. While failed says so nothing is begun.
func (s *Scrubber) Repair(ctx context.Context, closing <-chan struct{}, failed func() bool) {
	v := s.Verifier()
	for {
		select {
		case <-closing:
			return
		case <-s.repairs.wake:
		}
		for ctx.Err() == nil && !failed() {
			fp, loc, ok := s.repairs.next()
			if !ok {
				break
			}
			v.found(ctx, fp, loc)
		}
	}
}

// State is what verifying one block found.
type State int

const (
	Sound    State = iota
	BadCopy        // one copy is wrong, and the bytes are there
	Repaired       // the same, and it lies elsewhere now
	Lost           // no copy has the right bytes: it is forgotten
	Unread         // a drive did not answer: nothing is known
	Moved          // it is not there any more: elsewhere, or deleted
	Ended          // ctx has, before anything was known
)

// lies says whether a block is where it was said to be.
func (s *Scrubber) lies(fp index.Fingerprint, at layout.Location) bool {
	e, ok := s.Index.Resolve(fp)
	return ok && e.Location == at.Pack()
}

// Verifier reads blocks whole, every copy of them.
type Verifier struct {
	s    *Scrubber
	buf  []byte
	read int64 // bytes so far
}

// Verifier makes one that has read nothing. It is one goroutine's.
func (s *Scrubber) Verifier() *Verifier { return &Verifier{s: s} }

// found verifies the block at loc in every copy, and repairs or forgets it.
func (v *Verifier) found(ctx context.Context, fp index.Fingerprint, loc layout.Location) State {
	s := v.s
	g := s.Space.Pin(loc.Group)
	if g == nil {
		return Moved
	}
	defer s.Space.Unpin(g)
	if !s.lies(fp, loc) {
		return Moved
	}
	row, err := s.Catalog.Block(ctx, loc, nil)
	if err != nil {
		if skep.KindOf(err) == skep.NotFound {
			return Moved
		}
		return Unread
	}
	b := Block{FP: fp, At: loc}
	if segment.DecodeRecord(row, &b.Record) != nil {
		return Unread
	}
	return v.Block(ctx, g, &b, true)
}

// Block verifies a block of a group that is pinned in every copy, and with mend repairs or forgets it.
func (v *Verifier) Block(ctx context.Context, g *space.Group, b *Block, mend bool) State {
	s, rec := v.s, &b.Record
	ns := s.Names.Of(rec.Instance)
	if ns == nil {
		return Moved
	}
	n := int(rec.Pages) * layout.PageSize
	bad, unread := 0, 0
	for i := range rec.Copies {
		if len(v.buf) < n {
			v.buf = device.AlignedBuffer(n)
		}
		only := s.Space.WholePolicy(g)
		only.Only, only.Rank = 1<<i, nil // of whatever drive: every copy is to be right
		got, err := segio.ReadBlock(ctx, g, ns.Info.Shape, rec, v.buf[:n], only)
		v.read += int64(n)
		if segio.Lent(v.buf, got, err) {
			v.buf = nil
		}
		switch {
		case err == nil:
		case skep.KindOf(err) == skep.Damaged:
			bad++
		case ctx.Err() != nil:
			return Ended
		default:
			unread++
		}
	}
	if len(rec.Copies) == 0 {
		if _, err := segio.Verify(ns.Info.Shape, rec, nil); err != nil {
			bad++
		}
	}
	switch {
	case bad == 0 && unread == 0:
		return Sound
	case bad == 0:
		return Unread
	}
	s.Counts.Damaged.Add(1)
	s.Bad.Error(s.Log, "damaged copy of a block", "key", rec.Key.Short(), "location", b.At.String(), "bad_copies", bad,
		"of", len(rec.Copies))
	if len(v.buf) < n {
		v.buf = device.AlignedBuffer(n)
	}
	// Pieces of several bad copies may still make a whole block.
	got, err := s.Space.ReadVerified(ctx, g, ns.Info.Shape, rec, v.buf[:n])
	if segio.Lent(v.buf, got, err) {
		v.buf = nil
	}
	v.read += int64(n)
	if err != nil && ctx.Err() != nil {
		return Ended
	}
	gone := skep.KindOf(err) == skep.Damaged
	if skep.KindOf(err) == skep.DeviceFailed && rec.Flags&segment.RecordDurable == 0 {
		gone = true // a Cache block that is found and cannot be read hinders who would put it again
	}
	if gone && mend {
		// Told when it is gone: whoever takes a snapshot before has the block, and this behind it.
		was := s.Host.Forget(g, b)
		s.Host.Damaged(ns, rec, was)
		if !was {
			return Moved
		}
		return Lost
	}
	s.Host.Damaged(ns, rec, false)
	switch {
	case err == nil && !mend:
		return BadCopy
	case err == nil:
		err := s.Host.Rewrite(ctx, ns, b, got)
		if err == ErrMoved {
			return Moved
		}
		if err != nil {
			v.buf = nil // writes may be under way
			s.Log.Warn("damaged block not repaired; tried again when it is next read or scrubbed", "key",
				rec.Key.Short(), "error", err)
			return BadCopy
		}
		s.Counts.Repaired.Add(1)
		return Repaired
	case !gone:
		return Unread
	case !s.lies(b.FP, b.At):
		return Moved
	}
	return Lost
}
