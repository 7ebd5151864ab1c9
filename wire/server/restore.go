package server

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
	"unsafe"

	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/link"
	"github.com/skepkv/skep/wire/turns"
)

// serverSession is a restore under way for a client.
//
//	sending ──every chunk sent──▶ sent ──End, or the connection ends──▶ closed
//	   └───────────End, no credit for Stall, the Store fails──────────────▶┘
//
// One goroutine takes chunks from the Store's session and sends them. It holds at most
// window bytes of the Store's memory, which were charged before it began.
type serverSession struct {
	x      *serverConn
	id     uint64
	ses    skep.Session
	region *region // held, when chains land in it or the ring answers
	files  uses    // beside it, where chains land
	ring   *ringWriter
	ctx    context.Context
	cancel context.CancelCauseFunc
	ended  chan struct{} // closed by the goroutine as it ends
	held   int64         // bytes charged
	window int64         // of them, for what is on its way to the client
	sent   sending       // only the goroutine's
	pace   link.Pace     // only the goroutine's
	told   bool          // of every chunk; only the goroutine's

	costed []bool // by chain: it says what computing costs

	mu      sync.Mutex
	credit  int64
	stopped []bool // by chain
	wake    chan struct{}
}

// A frame of chunks ends once it has this much payload, or this many pieces. What is
// longer is cut: other sessions of the connection want their turn.
const (
	frameBytes  = 4 << 20
	framePieces = 256
)

func runRestore(r *request) error {
	ses, err := r.beginSession()
	if err != nil {
		return r.answer(nil, err)
	}
	if err := r.answer(nil, nil); err != nil {
		ses.abandon()
		return err
	}
	go ses.run()
	return nil
}

// beginSession starts the Store's session. The keys lie in the body, which therefore
// stays charged until the session is closed.
func (r *request) beginSession() (_ *serverSession, err error) {
	x := r.x
	if r.pooled != nil { // the session keeps it
		r.body = append([]byte(nil), r.body...)
	}
	var m frames.CostedRestoreRequest
	if r.h.Type == frames.TypeCostedRestore {
		err = r.read(&m)
	} else {
		err = r.read(&m.RestoreRequest)
	}
	if err != nil {
		return nil, err
	}
	if m.Lands() { // that is charged when it has
		if wait, ok := x.who.Limits().Solvent(); !ok {
			return nil, link.Overloaded("rate of the tenant", wait)
		}
	}
	if wait, ok := x.who.Limits().Admit(1, 0); !ok {
		return nil, link.Overloaded("rate of the tenant", wait)
	}
	s := &serverSession{x: x, id: r.h.Call, wake: make(chan struct{}, 1), ended: make(chan struct{}), stopped: make([]bool, len(m.Chains)),
		pace: link.NewPace(x.s.opt.Limits.Stall, x.s.opt.Limits.Rate)}
	defer func() {
		if err != nil {
			s.giveBack()
		}
	}()
	req, streams, err := s.request(r, &m.RestoreRequest)
	if err != nil {
		return nil, err
	}
	if err := give(&m, req.Chains); err != nil {
		return nil, err
	}
	for i := range req.Chains {
		s.costed = append(s.costed, req.Chains[i].Compute != nil)
	}
	// The less there is left, the smaller the windows, so that many get one.
	window := min(max(int64(min(m.Window, 1<<40)), frames.LeastWindow), x.s.opt.Limits.Window)
	window = min(window, max(frames.LeastWindow, x.memory.Left()/4))
	if streams {
		req.Window, req.Sums = window, x.features&frames.FeatureXXH3 != 0
		if err := x.charge("restore", "the body, its lists and a window", r.charged, window); err != nil {
			return nil, err
		}
		s.held, s.window = window, window
	} else {
		if err := x.charge("restore", "the body, its lists and the session", r.charged, lastsBytes); err != nil {
			return nil, err
		}
		s.held = lastsBytes
	}
	s.credit = int64(min(m.Window, 1<<40))
	s.ctx, s.cancel = context.WithCancelCause(r.ctx)
	x.mu.Lock()
	full, twice := len(x.sessions) >= x.s.opt.Limits.Calls, x.sessions[s.id] != nil
	if !full && !twice {
		x.sessions[s.id] = s
	}
	x.mu.Unlock()
	if full || twice {
		s.cancel(nil)
		if twice {
			return nil, skep.Invalidf("restore", "call number", s.id, "one that is not in use")
		}
		return nil, link.Overloaded("sessions of the connection", x.s.comeBack())
	}
	if s.ses, err = x.s.store.Restore(s.ctx, req); err != nil {
		x.mu.Lock()
		delete(x.sessions, s.id)
		x.mu.Unlock()
		s.cancel(nil)
		return nil, err
	}
	s.held += r.charged
	r.charged = 0
	s.sent.span, s.sent.ctx, r.span = r.span, r.ctx, nil // it ends with the session
	x.s.count.sessions.Add(1)
	x.wait.Add(1)
	return s, nil
}

// request makes the Store's request of the client's, and says whether anything travels
// through the socket.
func (s *serverSession) request(r *request, m *frames.RestoreRequest) (req *skep.RestoreRequest, streams bool,
	err error) {
	if len(m.Chains) > skep.MaxChains {
		return nil, false, skep.Invalidf("restore", "chains", len(m.Chains), skep.MaxChains)
	}
	if err := r.Spend(int64(len(m.Chains)) * int64(unsafe.Sizeof(skep.Chain{}))); err != nil {
		return nil, false, err
	}
	req = &skep.RestoreRequest{Chains: make([]skep.Chain, len(m.Chains))}
	keys, now := 0, time.Now() // one for all: equal deadlines stay equal
	for i := range m.Chains {
		c := &m.Chains[i]
		if keys += len(c.Keys); keys > s.x.s.opt.Limits.Keys {
			return nil, false, skep.Invalidf("restore", "keys", keys, s.x.s.opt.Limits.Keys)
		}
		if err := r.reach(c.Namespace); err != nil {
			return nil, false, err
		}
		out := skep.Chain{Scope: c.Scope, Keys: c.Keys, Blocks: frames.Subset(c.Blocks), Part: c.Part,
			Direction: c.Direction, Layers: frames.Subset(c.Layers),
			Heads: frames.Subset(c.Heads), Priority: c.Priority, Deadline: deadlineIn(now, c.Deadline)}
		if _, mine := s.x.s.leases.owns(s.x.who, skep.LeaseID(c.Lease)); mine {
			out.Lease = skep.LeaseID(c.Lease)
		}
		if (c.To != frames.ToStream || m.Ring) && s.region == nil {
			if s.region, err = s.x.holdRegion(); err != nil {
				return nil, false, err
			}
		}
		switch c.To {
		case frames.ToStream:
			streams = true
			if m.Ring {
				return nil, false, skep.Invalidf("restore", "destination", "stream", "shared memory, when the ring answers")
			}
		default:
			if err := r.Spend(int64(len(c.Planes)) * int64(unsafe.Sizeof([]byte(nil)))); err != nil {
				return nil, false, err
			}
			if out.Dest, err = s.region.destination(c, &s.files); err != nil {
				return nil, false, err
			}
		}
		req.Chains[i] = out
	}
	if m.Ring && s.region != nil {
		s.ring = s.region.ring
	}
	return req, streams, nil
}

// deadlineIn is a time that is so far away; 0 is none.
func deadlineIn(now time.Time, d time.Duration) time.Time {
	if d == 0 {
		return time.Time{}
	}
	return now.Add(d)
}

// abandon closes a session whose goroutine was never started.
func (s *serverSession) abandon() {
	s.cancel(nil)
	go func() {
		s.close()
		s.x.wait.Done()
	}()
}

func (s *serverSession) run() {
	defer s.x.wait.Done()
	defer s.close()
	err := s.send()
	if err == nil {
		s.x.memory.Give(s.window) // all was sent and given back
		s.held -= s.window
		late := time.NewTimer(s.x.s.opt.Limits.Call)
		defer late.Stop()
		select { // claims may still come
		case <-s.ctx.Done():
		case <-s.x.ctx.Done():
		case <-late.C: // and the End was forgotten
		}
		return
	}
	if s.ctx.Err() != nil {
		if err = cutShort(s.ctx); err == nil {
			return // the client ended it, or is gone
		}
	}
	s.sent.err = err
	var lost *lostPeer
	if errors.As(err, &lost) {
		s.x.end(err)
		return
	}
	b := frames.BodyOf(err)
	if s.x.send(frames.Header{Type: frames.TypeError, Call: s.id}, &b, nil) != nil {
		s.x.end(err)
	}
}

// lostPeer is an error of the connection.
type lostPeer struct{ error }

// closePause is between two tries to close a session whose shared memory is not released.
const closePause = 100 * time.Millisecond

// close ends the Store's session and gives everything back. Memory that a drive may
// still write to stays mapped and charged until it does not.
func (s *serverSession) close() {
	defer close(s.ended)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), s.x.s.opt.Limits.Stall)
		s.settle(ctx)
		err := s.ses.Close(ctx)
		cancel()
		if err == nil || s.region == nil || skep.KindOf(err) == skep.Closed {
			break // memory lent by the Store is the Store's own affair
		}
		s.x.s.log.Warn("a drive still holds shared memory", "error", err)
		time.Sleep(closePause) // a Store may say so at once
	}
	s.x.mu.Lock()
	delete(s.x.sessions, s.id)
	s.x.mu.Unlock()
	s.x.s.count.sessions.Add(-1)
	s.sent.end()
	s.giveBack()
}

func (s *serverSession) giveBack() {
	if s.region != nil {
		s.files.release(s.region)
		s.region.release()
		s.region = nil
	}
	s.x.memory.Give(s.held)
	s.held = 0
}

// send delivers every chunk, then the frame that says so.
func (s *serverSession) send() error {
	var into [framePieces]skep.Chunk
	for {
		n, err := s.ses.Next(s.ctx, into[:])
		if errors.Is(err, io.EOF) {
			s.told = true
			if s.ring != nil {
				return s.ring.end(s.ctx, s)
			}
			return s.put(frames.FlagLast, &frames.Chunks{}, nil)
		}
		if err != nil {
			return err
		}
		if err := s.x.who.Check(time.Now(), auth.Read); err != nil { // credentials ran out
			releaseChunks(into[:n])
			return &skep.Error{Op: "restore", Kind: skep.Denied, Err: err}
		}
		s.files.look(into[:n])
		if landed := s.landed(into[:n]); s.admit(landed) != nil {
			s.x.who.Limits().Charge(landed)
			releaseChunks(into[:n])
			return s.ctx.Err()
		}
		if s.ring != nil {
			err = s.ring.put(s.ctx, s, into[:n])
		} else {
			err = s.deliver(into[:n])
		}
		releaseChunks(into[:n])
		if err != nil {
			return err
		}
	}
}

func releaseChunks(list []skep.Chunk) {
	for i := range list {
		list[i].Release()
	}
}

// batch is a frame of chunks being put together.
type batch struct {
	m       frames.Chunks
	payload net.Buffers
	bytes   int64
	done    int // chunks up to here are in sent frames once it is sent
}

// deliver sends chunks in as few frames as credit and frameBytes allow, and releases
// each once it is sent.
func (s *serverSession) deliver(list []skep.Chunk) error {
	var b batch
	released := 0
	flush := func() error {
		if len(b.m.List) == 0 {
			return nil
		}
		err := s.put(0, &b.m, b.payload)
		releaseChunks(list[released:b.done])
		released = b.done
		b = batch{done: b.done}
		return err
	}
	for i := range list {
		ch := &list[i]
		for off := int64(0); ; {
			n := s.next(ch, off)
			if n > 0 && !s.spend(ch.Chain, n) {
				if err := flush(); err != nil {
					return err
				}
				if err := s.await(ch.Chain); err != nil {
					return err
				}
				continue // credit came, or the chain was stopped
			}
			s.add(&b, ch, off, n)
			if off += n; off < ch.Bytes && n > 0 {
				if err := flush(); err != nil {
					return err
				}
				continue
			}
			break
		}
		b.done = i + 1
		if b.bytes >= frameBytes || len(b.m.List) >= framePieces {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// next is how many bytes of a chunk go into the next piece: none of a miss, of a chain
// that was stopped, and of what landed in shared memory.
func (s *serverSession) next(ch *skep.Chunk, off int64) int64 {
	if ch.Err != nil || ch.Bytes == 0 || len(ch.Data) == 0 || off == 0 && s.isStopped(ch.Chain) {
		return 0
	}
	left := ch.Bytes - off
	if left <= frameBytes {
		return left
	}
	if ch.Sums == nil {
		return frameBytes
	}
	// A piece ends where a checksum does.
	var at, n int64
	for i := range ch.Sums {
		end := at + ch.Sums[i].Len
		if end > off {
			if n > 0 && end-off > frameBytes {
				break
			}
			n = end - off
		}
		at = end
	}
	return n
}

func (s *serverSession) isStopped(chain int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopped[chain]
}

// add puts a piece into the batch.
func (s *serverSession) add(b *batch, ch *skep.Chunk, off, n int64) {
	p := frames.Piece{Chain: uint32(ch.Chain), Block: uint32(ch.Block), Tier: ch.Tier,
		Layers: [2]uint32{uint32(ch.Layers.From), uint32(ch.Layers.To)}, Bytes: uint64(ch.Bytes), Offset: uint64(off), Len: uint64(n)}
	switch {
	case ch.Err != nil:
		p.What, p.Err = frames.PieceMiss, frames.BodyOf(ch.Err)
	case n == 0 && ch.Bytes > 0 && len(ch.Data) > 0:
		p.What, p.Err = frames.PieceMiss, frames.BodyOf(frames.ErrStopped)
	case n == 0 && len(ch.Data) == 0 && s.region != nil:
		p.What = frames.PieceLanded
	case n > 0:
		at := len(b.payload)
		b.payload = link.Cut(b.payload, ch.Data, off, n)
		p.Sums = s.sums(ch, off, n, b.payload[at:])
		b.bytes += n
	}
	b.m.List = append(b.m.List, p)
}

// sums are the checksums of a piece: the Store's where they cover it, else one made now.
func (s *serverSession) sums(ch *skep.Chunk, off, n int64, data net.Buffers) []frames.Sum {
	if s.x.features&frames.FeatureXXH3 == 0 {
		return []frames.Sum{{Kind: frames.SumCRC32, Len: uint64(n), Check: link.SumOver(frames.SumCRC32, data...)}}
	}
	var out []frames.Sum
	var at, covered int64
	for _, c := range ch.Sums {
		if at >= off && at+c.Len <= off+n {
			out = append(out, frames.Sum{Kind: frames.SumXXH3, Len: uint64(c.Len), Seed: c.Seed, Check: c.Sum})
			covered += c.Len
		}
		at += c.Len
	}
	if covered == n {
		return out
	}
	if len(data) == 1 {
		return []frames.Sum{{Kind: frames.SumXXH3, Len: uint64(n), Check: xxh3.Hash(data[0])}}
	}
	return []frames.Sum{{Kind: frames.SumXXH3, Len: uint64(n), Check: link.SumOver(frames.SumXXH3, data...)}}
}

// put sends a frame of the session.
func (s *serverSession) put(flags uint16, m *frames.Chunks, payload net.Buffers) error {
	var n int64
	for i := range payload {
		n += int64(len(payload[i]))
	}
	b, err := frames.AppendFrame(nil, frames.Header{Type: frames.TypeChunks, Flags: flags, Call: s.id,
		Payload: uint32(n)}, m)
	if err != nil {
		return err
	}
	if err := s.admit(n); err != nil {
		return err
	}
	if n >= turns.Bytes {
		end, err := s.x.turn(s.ctx)
		if err != nil {
			return err
		}
		defer end()
	}
	s.x.s.count.sent.Add(n)
	began, before := time.Now(), s.x.l.Sent.Load()
	if err := s.x.l.Send(s.x.ctx, b, payload); err != nil {
		return &lostPeer{err}
	}
	s.sent.frame(began, n)
	if !s.pace.Waited(time.Since(began), s.x.l.Sent.Load()-before) {
		return s.tooSlow("rate")
	}
	return nil
}
