package resp

import (
	"context"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/auth"
)

// pieces restores the pieces of a run in order, span by span. How large a span is, is decided when it is begun: a quarter
// of what is free of the memory for values on their way out, so that however many take no more of what they asked for,
// something is left for the rest. Reading ahead leaves a quarter of all free.
type pieces struct {
	c   *conn
	ctx context.Context
	db  *database
	run []outgoing
	by  *auth.Held

	at         pieceRef // that is planned next
	now, ahead *span
}

// span is pieces of a run restored by one session: of one or several values, in order.
type span struct {
	keys  []skep.Key
	of    []pieceRef
	bytes int64

	ses    skep.Session
	ctx    context.Context // of waits for its pieces
	cancel context.CancelFunc
	end    func() // of its trace
	err    error
	slots  []skep.Chunk
	landed []bool
}

type pieceRef struct {
	value, piece int
	size         int64
}

func (r pieceRef) compare(o pieceRef) int {
	if r.value != o.value {
		return r.value - o.value
	}
	return r.piece - o.piece
}

func (c *conn) pieces(ctx context.Context, db *database, run []outgoing) *pieces {
	return &pieces{c: c, ctx: ctx, db: db, run: run, by: c.s.sending.of(c.identity.Limits())}
}

// plan is the next span, of one piece at least and else of at most so many bytes; nil when no pieces are left.
func (s *pieces) plan(window int64) *span {
	sp := &span{}
	for ; s.at.value < len(s.run); s.at = (pieceRef{value: s.at.value + 1}) {
		o := &s.run[s.at.value]
		if o.err != nil {
			continue
		}
		for ; s.at.piece < o.h.pieces(); s.at.piece++ {
			size := o.h.pieceSize(s.at.piece)
			if len(sp.of) > 0 && sp.bytes+size > window {
				return sp
			}
			sp.keys = append(sp.keys, o.h.id.key(s.at.piece))
			sp.of = append(sp.of, pieceRef{s.at.value, s.at.piece, size})
			sp.bytes += size
		}
	}
	if len(sp.of) == 0 {
		return nil
	}
	return sp
}

// tryPlan is the next span, its memory charged, or nil where there is no room for one that leaves keep free.
func (s *pieces) tryPlan(keep int64) (sp *span) {
	from := s.at
	if !s.c.s.sending.TryPart(s.by, keep, func(most int64) int64 {
		if sp = s.plan(min(sendWindow, s.by.Most(), most)); sp == nil {
			return 0
		}
		return sp.bytes
	}) {
		s.at = from
		return nil
	}
	return sp
}

// take waits for piece p of value v, and gives back what lies before it.
func (s *pieces) take(v, p int) (*skep.Chunk, error) {
	want := pieceRef{value: v, piece: p}
	for s.now == nil || s.now.of[len(s.now.of)-1].compare(want) < 0 {
		s.end(s.now)
		if s.now, s.ahead = s.ahead, nil; s.now == nil {
			if err := s.begin(); err != nil {
				return nil, err
			}
		}
	}
	if s.ahead == nil {
		s.readAhead()
	}
	if s.now.err != nil {
		return nil, s.now.err
	}
	slot, _ := slices.BinarySearchFunc(s.now.of, want, pieceRef.compare)
	ch, err := s.now.next(s.now.ctx, slot)
	if size := s.now.of[slot].size; err == nil && ch.Bytes != size {
		err = &skep.Error{Op: "get", Kind: skep.Damaged, Field: "piece size", Value: ch.Bytes, Limit: size}
	}
	return ch, err
}

// begin begins the next span, and waits for the memory of one piece when there is no more.
func (s *pieces) begin() error {
	sp, from := s.tryPlan(0), s.at
	if sp == nil {
		sp = s.plan(0)
		s.c.s.cutStuck()
		ctx, cancel := context.WithTimeout(s.ctx, s.c.s.o.ShedAfter)
		defer cancel()
		if err := s.c.s.sending.Acquire(ctx, s.by, sp.bytes); err != nil {
			s.at = from
			s.c.s.stats.shed.Add(1)
			return &tryAgain{s.c.s.o.ShedAfter, "no memory to send from"}
		}
	}
	s.now = sp
	s.open(sp)
	return nil
}

// readAhead begins the span after this one, if there is one and room for it.
func (s *pieces) readAhead() {
	if s.ahead = s.tryPlan(s.c.s.sending.pool.Limit / 4); s.ahead != nil {
		s.open(s.ahead)
	}
}

// open starts a span's session. Its memory is charged.
func (s *pieces) open(sp *span) {
	sp.end = s.c.span(s.ctx, "device") // until the last of its pieces is taken
	sp.slots, sp.landed = make([]skep.Chunk, len(sp.keys)), make([]bool, len(sp.keys))
	deadline := time.Now().Add(s.c.s.o.OpTimeout)
	sp.ctx, sp.cancel = context.WithDeadline(s.ctx, deadline)
	sp.ses, sp.err = s.db.store.Restore(sp.ctx, &skep.RestoreRequest{Chains: []skep.Chain{{
		Scope: skep.Scope{Namespace: s.db.data}, Keys: sp.keys, Deadline: deadline,
	}}})
}

func (s *pieces) close() {
	s.end(s.now)
	s.end(s.ahead)
}

// end gives back what a span holds.
func (s *pieces) end(sp *span) {
	if sp == nil {
		return
	}
	for i := range sp.slots {
		sp.slots[i].Release()
	}
	if sp.ses != nil {
		closeSession(sp.ses)
	}
	sp.cancel()
	sp.end()
	s.c.s.sending.Release(s.by, sp.bytes)
}

// next waits for piece i of the span.
func (sp *span) next(ctx context.Context, i int) (*skep.Chunk, error) {
	var chunks [16]skep.Chunk
	for !sp.landed[i] {
		n, err := sp.ses.Next(ctx, chunks[:])
		if err != nil {
			if err == io.EOF {
				err = errNone
			}
			return nil, err
		}
		for _, ch := range chunks[:n] {
			sp.slots[ch.Block], sp.landed[ch.Block] = ch, true
		}
	}
	return &sp.slots[i], sp.slots[i].Err
}

// stuck is a write of a value that is under way.
type stuck struct {
	mu    sync.Mutex
	raw   net.Conn
	since time.Time // zero: none
}

func (w *stuck) begin(raw net.Conn, deadline time.Time, ofValue bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ofValue {
		w.raw, w.since = raw, time.Now()
	}
	return raw.SetWriteDeadline(deadline)
}

func (w *stuck) end() {
	w.mu.Lock()
	w.since = time.Time{}
	w.mu.Unlock()
}

// cut ends a write that has taken longer than d, and says whether there was one.
func (w *stuck) cut(d time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.since.IsZero() || time.Since(w.since) < d {
		return false
	}
	w.since = time.Time{}
	_ = w.raw.SetWriteDeadline(time.Now())
	return true
}

// stuckAfter is how long a reader may take for a piece of a value when there is no memory left for others.
const stuckAfter = 5 * time.Second

// cutStuck ends connections whose readers keep memory that others wait for, and take nothing of it.
func (s *Server) cutStuck() {
	for _, c := range s.connections() {
		if c.stuck.cut(s.o.stuckAfter) {
			s.stats.stuck.Add(1)
			s.o.Log.Warn("reader cut off: it took nothing of a value while others waited for memory", "id", c.id, "after", s.o.stuckAfter)
		}
	}
}
