package wire

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/link"
	"github.com/skepkv/skep/wire/reuse"
	"github.com/skepkv/skep/wire/shm"
)

// ringEntries is how many completions a client's ring holds.
const ringEntries = 4096

// sharedMemory is the client's memory that its server maps too: the ring, then what Alloc lends.
type sharedMemory struct {
	size  int64
	mem   *shm.Region
	all   []byte // mem's, where it lies: only read or written as long as the memory is not closed
	event *shm.Event
	done  chan struct{} // closed when the reader of the ring has ended

	mu       sync.Mutex
	peers    shm.Peers   // the servers' processes
	book     *reuse.Book // tainted there is what a server that is gone, or gave no answer in time, may still use
	conn     *clientConn
	ring     *shm.Reader
	sessions map[uint64]*clientSession
	puts     map[*underWay]bool // under way
	closed   bool
	why      error             // it is not attached; nil: it was, when it was last tried
	files    []*AttachedMemory // never changed in place
	number   uint64            // of the last of them

	offering chan struct{} // full while a file is offered
	rest     time.Duration // shm.LastReads, but in tests
}

const ringBytes = ringEntries * shm.EntrySize

func newSharedMemory(size int64) (_ *sharedMemory, err error) {
	s := &sharedMemory{size: (ringBytes + size + shm.HugePage - 1) &^ (shm.HugePage - 1),
		sessions: map[uint64]*clientSession{}, puts: map[*underWay]bool{}, done: make(chan struct{}),
		offering: make(chan struct{}, 1), rest: shm.LastReads}
	if s.mem, err = shm.Create(s.size); err != nil {
		return nil, err
	}
	s.all = s.mem.Bytes()
	if s.event, err = shm.NewEvent(); err != nil {
		_ = s.mem.Close()
		return nil, err
	}
	s.book = reuse.New(reuse.Span{Off: ringBytes, Len: s.size - ringBytes})
	go s.read()
	return s, nil
}

// close is called when every connection has ended. Memory that is still lent stays mapped.
func (s *sharedMemory) close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.taintLocked(nil)
	s.peers.Close()
	files := s.files
	s.files = nil
	tainted := s.book.AnyTainted()
	keep := s.book.Out() > 0 || tainted
	s.mu.Unlock()
	for _, a := range files {
		link.CloseReceived([]int{a.fd})
	}
	err := s.event.Close()
	<-s.done
	if tainted {
		err = errors.Join(err, notReleased("close"))
	}
	if keep {
		return err
	}
	return errors.Join(err, s.mem.Close())
}

// attach gives the memory to the server of a connection.
func (s *sharedMemory) attach(ctx context.Context, x *clientConn) error {
	for {
		err := s.offer(ctx, x)
		if skep.KindOf(err) != skep.Overloaded {
			return err
		}
		select { // sessions of the connection before this one are being ended
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// noteWhy keeps what became of an attach.
func (s *sharedMemory) noteWhy(err error) {
	s.mu.Lock()
	s.why = err
	s.mu.Unlock()
}

// offer is one try.
func (s *sharedMemory) offer(ctx context.Context, x *clientConn) error {
	s.mu.Lock()
	s.conn = nil
	s.mu.Unlock()
	if err := x.sendWith(ctx, frames.TypeAttach, &frames.AttachRequest{Size: uint64(s.size), Entries: ringEntries},
		s.mem.Fd(), s.event.Fd()); err != nil {
		return err
	}
	// Only now does no earlier session write to the ring.
	s.mu.Lock()
	clear(s.mem.Bytes()[:ringBytes])
	s.ring, s.conn = shm.NewReader(s.mem.Bytes()[:ringBytes]), x
	x.taken = s.book.Attached(x.hi.Server)
	s.peers.Watch(x.hi.Server, x.l.Conn)
	s.mu.Unlock()
	return nil
}

func (s *sharedMemory) attachedTo(x *clientConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn == x
}

// at is where p lies in the memory; false when it does not.
func (s *sharedMemory) at(p []byte) (uint64, bool) {
	off, ok := inside(s.all, p)
	return uint64(off), ok && off >= ringBytes
}

// place is where p lies in the memory or in attached files, as the server is told it.
func (s *sharedMemory) place(p []byte) (uint64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.placeLocked(p)
}

func (s *sharedMemory) placeLocked(p []byte) (uint64, bool) {
	if at, ok := s.at(p); ok {
		return at, true
	}
	return s.inFileLocked(p, false)
}

// inFileLocked is place in files; with live, in those that are attached now.
func (s *sharedMemory) inFileLocked(p []byte, live bool) (uint64, bool) {
	for _, a := range s.files {
		if off, ok := inside(a.mem, p); ok {
			return uint64(a.at() + off), !live || a.conn != nil && a.conn == s.conn
		}
	}
	return nowhere, false
}

// nowhere is a place that the server refuses: what lay in a file that was detached meanwhile.
const nowhere = 1<<63 - 1

// reaches says whether the server maps what p lies in.
func (s *sharedMemory) reaches(p []byte) bool {
	if _, ok := s.at(p); ok {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.inFileLocked(p, true)
	return ok
}

// holds says whether the destinations of all chains lie in the memory.
func (s *sharedMemory) holds(chains []*layout.ChainPlan) bool {
	for _, t := range chains {
		for _, p := range destinations(t) {
			if !s.reaches(p) {
				return false
			}
		}
		if m(t) == nil {
			return false
		}
	}
	return len(chains) > 0
}

// holdsParts says whether all bytes of blocks lie in the memory.
func (s *sharedMemory) holdsParts(blocks []skep.Block) bool {
	for i := range blocks {
		for _, p := range blocks[i].Parts {
			if !s.reaches(p.Bytes) {
				return false
			}
		}
	}
	return len(blocks) > 0
}

// fetched says whether the server copies some of blocks out of files before it stores any: such are sent as what has a
// payload is.
func (s *sharedMemory) fetched(blocks []skep.Block) bool {
	for i := range blocks {
		for _, p := range blocks[i].Parts {
			if _, ok := s.at(p.Bytes); !ok {
				return true
			}
		}
	}
	return false
}

// destinations are the pieces of memory a chain may be written to.
func destinations(t *layout.ChainPlan) (out [][]byte) {
	if t.Dest.Memory != nil {
		return [][]byte{t.Dest.Memory}
	}
	if t.Dest.Paged != nil {
		for l := t.Layers.From; l < t.Layers.To; l++ {
			out = append(out, t.Dest.Paged.Planes[l][:t.Geometry.SlicesPerLayer()]...)
		}
	}
	return out
}

// describe says where a chain goes. REQUIRES: holds.
func (s *sharedMemory) describe(rc *frames.RestoreChain, t *layout.ChainPlan) {
	where := func(p []byte) frames.Area {
		off, _ := s.place(p)
		return frames.Area{Offset: off, Len: uint64(len(p))}
	}
	if d := t.Dest.Memory; d != nil {
		rc.To, rc.Memory, rc.Stride = frames.ToMemory, where(d), t.Dest.Stride
		// The stride we were left to choose is whole pages, and what lies between the
		// blocks is the Store's to fill then; it says so by asking for 0.
		if t.Gaps {
			rc.Stride = 0
		}
		return
	}
	p := t.Dest.Paged
	rc.To, rc.Order, rc.Stride, rc.Pages = frames.ToPages, p.Order, p.PageStride, p.Pages
	for l := range p.Planes {
		var pair [2]frames.Area
		if l >= t.Layers.From && l < t.Layers.To {
			for k := range t.Geometry.SlicesPerLayer() {
				pair[k] = where(p.Planes[l][k])
			}
		}
		rc.Planes = append(rc.Planes, pair[0], pair[1])
	}
}

// ringSession is a session that is answered through the ring.
type ringSession struct {
	s     *sharedMemory
	ses   *clientSession
	words atomic.Pointer[words] // that its claims go by
}

// session lists a session, which is answered through the ring from here on.
func (s *sharedMemory) session(ses *clientSession) {
	r := &ringSession{s: s, ses: ses}
	s.mu.Lock()
	s.sessions[ses.id], ses.ring = ses, r
	s.mu.Unlock()
}

func (r *ringSession) forget() {
	r.s.mu.Lock()
	if r.s.sessions[r.ses.id] == r.ses {
		delete(r.s.sessions, r.ses.id)
	}
	r.s.mu.Unlock()
}

// orphaned is called when the server did not say that the destinations are released, and will not in time: its drives
// may still write to them, unless it has taken the memory anew since. They are not lent again until it has.
func (s *clientSession) orphaned(op string) error {
	s.c.shared.taint(s.x, s)
	return s.standing(op)
}

// standing is NotReleased while a server may write to the destinations.
func (s *clientSession) standing(op string) error {
	if s.c.shared.inDoubt(s.pieces(false)) {
		return notReleased(op)
	}
	return nil
}

func (s *sharedMemory) inDoubt(list [][]byte) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settleLocked()
	return s.book.AnyTainted() && slices.ContainsFunc(s.spansLocked(list), s.book.Tainted)
}

// pieces are its destinations, unless the server has told of all that goes there, and its words, which are the server's
// until that has ended the session.
func (s *clientSession) pieces(told bool) (out [][]byte) {
	for _, t := range s.chains {
		if !told {
			out = append(out, destinations(t)...)
		}
	}
	if s.ring == nil {
		return out
	}
	for w := s.ring.words.Load(); w != nil; w = w.next {
		out = append(out, w.mem)
	}
	return out
}

func notReleased(op string) error {
	return &skep.Error{Op: op, Kind: skep.NotReleased, Err: errors.New("the server may still use the shared memory")}
}

// settleLocked has what servers had lent again whose processes have ended.
func (s *sharedMemory) settleLocked() {
	if s.book.AnyTainted() {
		s.book.Gone(s.peers.Ended(s.rest)...)
	}
}

// spansLocked is where pieces lie, of those that do.
func (s *sharedMemory) spansLocked(pieces [][]byte) (out []reuse.Span) {
	for _, p := range pieces {
		if off, ok := s.placeLocked(p); ok {
			out = append(out, reuse.Span{Off: int64(off), Len: int64(len(p))})
		}
	}
	return out
}

// taint notes what the server of a connection may still write to for a session, by what came to it over that.
func (s *sharedMemory) taint(x *clientConn, ses *clientSession) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taintBy(x, ses, ses.pieces(false))
}

// taintBy is taint for a session or a put; nil: for one that nobody ends. REQUIRES: mu.
func (s *sharedMemory) taintBy(x *clientConn, use any, pieces [][]byte) {
	for _, m := range s.spansLocked(pieces) {
		s.book.Taint(x.taken, use, m)
	}
}

// tell has f called when no server may use the pieces any more.
func (s *sharedMemory) tell(pieces [][]byte, f func()) {
	s.mu.Lock()
	s.book.Tell(s.spansLocked(pieces), f)
	s.mu.Unlock()
}

// over notes that the server has ended a session: it writes to none of its destinations any more.
func (s *sharedMemory) over(ses *clientSession) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions[ses.id] == ses {
		delete(s.sessions, ses.id)
	}
	s.book.Untaint(ses.x.taken, ses)
}

// underWay is what a put that is under way has the server of a connection read.
type underWay struct {
	by     *clientConn
	pieces [][]byte
}

// lend notes a put that begins.
func (s *sharedMemory) lend(by *clientConn, pieces [][]byte) *underWay {
	l := &underWay{by: by, pieces: pieces}
	s.mu.Lock()
	s.puts[l] = true
	s.mu.Unlock()
	return l
}

// back notes that it has ended: with an answer, or lost, and the server may read there yet.
func (s *sharedMemory) back(l *underWay, lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.puts, l)
	if lost {
		s.taintBy(l.by, nil, l.pieces)
	}
	s.book.Untaint(l.by.taken, l)
}

// taintLocked notes what the server may use of mem, nil for all there is: for sessions that it has not ended, as one that
// was given up, because a drive hangs, is written to yet, and for puts under way.
func (s *sharedMemory) taintLocked(mem []byte) {
	for _, ses := range s.sessions {
		s.taintBy(ses.x, ses, within(mem, ses.pieces(ses.told())))
	}
	for l := range s.puts {
		s.taintBy(l.by, l, within(mem, l.pieces))
	}
}

// within are those of pieces that lie in mem; all of them where that is nil.
func within(mem []byte, pieces [][]byte) (out [][]byte) {
	for _, p := range pieces {
		if _, in := inside(mem, p); in || mem == nil {
			out = append(out, p)
		}
	}
	return out
}

// told says that the ring has told of every chunk: then no drive writes to the destinations.
func (s *clientSession) told() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Is(s.ended, io.EOF)
}

// read takes completions off the ring as they are signalled.
func (s *sharedMemory) read() {
	defer close(s.done)
	var taken uint64
	var of *shm.Reader // the ring it is counted on: a server attached anew begins with all the credit
	for s.event.Wait() == nil {
		for more := true; more; {
			s.mu.Lock()
			if s.ring == nil {
				s.mu.Unlock()
				break
			}
			if of != s.ring {
				of, taken = s.ring, 0
			}
			e, ok, err := s.ring.Next()
			ses, x := s.sessions[e.Session], s.conn
			if ok && err == nil && ses != nil {
				err = ses.completion(&e) // under mu: once it is forgotten, nothing of that try comes
			}
			s.mu.Unlock()
			if ok {
				taken++
				if err != nil && x != nil {
					x.end(link.Gone("shared ring", err))
				}
			}
			// What was not sent is sent with more of it, and with the last that is here: the server may wait for it.
			due := taken >= ringEntries/4 && (!ok || taken%(ringEntries/4) == 0) && x != nil && !link.IsClosed(x.dead)
			switch {
			case due && x.credit(0, taken):
				taken = 0
			case !due && !ok:
				more = false
			}
		}
	}
}

// completion takes one entry of the ring.
func (s *clientSession) completion(e *shm.Entry) error {
	defer s.signal()
	if e.What == shm.End {
		s.finish(io.EOF)
		return nil
	}
	if int(e.Chain) >= len(s.chains) {
		return frames.Broken("chain of a chunk", e.Chain, len(s.chains))
	}
	t := s.chains[e.Chain]
	layers := skep.Range{From: int(e.Layers[0]), To: int(e.Layers[1])}
	item, ok := s.itemOf(int(e.Chain), int(e.Block), layers)
	if !ok {
		return frames.Broken("chunk", item, "one that was asked for")
	}
	if e.What == shm.Miss {
		return s.answer(int(e.Chain), item, skep.Chunk{Err: link.ErrorOf(opRestore, e.Kind)})
	}
	if _, err := spansOf(t, layers, int64(e.Bytes)); err != nil {
		return err
	}
	return s.answer(int(e.Chain), item, skep.Chunk{Bytes: int64(e.Bytes), Tier: e.Tier})
}

// alloc lends n bytes, nil when no piece is large enough.
func (s *sharedMemory) alloc(n int64) skep.Memory {
	need := layout.Padded(n)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || need <= 0 {
		return nil
	}
	s.settleLocked()
	at, ok := s.book.Take(need)
	if !ok {
		return nil
	}
	return &lentMemory{s: s, at: at, b: s.all[at.Off : at.Off+n : at.Off+n]}
}

// lentMemory is skep.Memory of the shared memory.
type lentMemory struct {
	s  *sharedMemory
	at reuse.Span
	b  []byte
}

func (m *lentMemory) Bytes() []byte { return m.b }

func (m *lentMemory) Release() {
	s := m.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.b == nil {
		return
	}
	s.taintLocked(m.b)
	m.b = nil
	s.book.Give(m.at)
}
