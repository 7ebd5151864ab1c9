package loan

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/gpu/lend"
	"github.com/skepkv/skep/layout/elastic"
)

// LenderOptions are those of Lend.
type LenderOptions struct {
	Socket string     // path; made with mode 0600, and removed by Close
	Name   string     // of the model, for people
	Device gpu.Sharer // whose memory it is
	Unit   elastic.Unit
	Units  int // of the arena
	Floor  int // of them never lent
	// Borrowers is how many there may be at a time, 1 to 64; 0 is 1. Each gets an equal share
	// of what is not the floor at most.
	Borrowers int
	// Lease is how long a borrower may be silent; 1 s. Reclaim is how long it has to give
	// back what is asked for; 250 ms. Then it is ended.
	Lease, Reclaim time.Duration
	// Window is how far back Relax looks for the peak of the lender's own use; 1 minute.
	Window time.Duration
	Log    *slog.Logger // nil: none
}

func (o *LenderOptions) ensureDefaults() {
	if o.Borrowers == 0 {
		o.Borrowers = 1
	}
	if o.Lease == 0 {
		o.Lease = time.Second
	}
	if o.Reclaim == 0 {
		o.Reclaim = 250 * time.Millisecond
	}
	if o.Window == 0 {
		o.Window = time.Minute
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
}

func (o *LenderOptions) validate() error {
	switch {
	case o.Device == nil:
		return skep.Invalidf(opLend, "device", "none", "one")
	case o.Borrowers < 1 || o.Borrowers > 64:
		return skep.Invalidf(opLend, "borrowers", o.Borrowers, "1 to 64")
	case len(o.Name) > maxName:
		return skep.Invalidf(opLend, "name length in bytes", len(o.Name), fmt.Sprintf("at most %d", maxName))
	case o.Lease < time.Millisecond || o.Reclaim < time.Millisecond:
		return skep.Invalidf(opLend, "lease and reclaim", fmt.Sprint(o.Lease, " ", o.Reclaim), "1ms or more each")
	case o.Window < time.Millisecond:
		return skep.Invalidf(opLend, "window", o.Window, "1ms or more")
	case o.Units > 0 && o.Unit.Bytes > maxArena/int64(o.Units):
		return skep.Invalidf(opLend, "arena in bytes", fmt.Sprint(o.Units, " x ", o.Unit.Bytes), int64(maxArena))
	}
	return nil
}

const (
	opLend   = "lend GPU memory"
	maxArena = 1 << 40
)

// Lender is a process's arena of GPU memory, of which it uses the lower part for its own
// blocks and lends the upper one. Its methods may be called from any goroutine.
type Lender struct {
	o        LenderOptions
	memory   gpu.Memory
	file     *os.File
	listener *net.UnixListener
	stop     chan struct{}
	wg       sync.WaitGroup
	end      func() error // close, once

	mu      sync.Mutex
	machine *lend.Lender
	arena   *elastic.Arena // the lender's own blocks; its border is never above machine's
	peak    elastic.Peak   // of the lender's own blocks, in use or asked for by Demand
	offer   int            // units from here on may be lent
	peers   map[int]*peer
	conns   map[*net.UnixConn]bool // all that are open
	changed chan struct{}          // closed, and made anew, whenever something came back
	closing bool
	counts  Counts
}

// peer is a borrower.
type peer struct {
	id   int
	life uint64
	name string
	want int
	conn *net.UnixConn // nil once it is gone
	left bool          // it gave all back, and takes no more
	out  chan lend.Message
	proc *process
}

// Lend allocates the arena, all of it the lender's own, and begins to listen. Nothing is lent
// before Move says so.
func Lend(o LenderOptions) (*Lender, error) {
	o.ensureDefaults()
	if supported != nil {
		return nil, supported
	}
	if err := o.validate(); err != nil {
		return nil, err
	}
	l := &Lender{o: o, stop: make(chan struct{}), peak: elastic.Peak{Window: int64(o.Window)}, offer: o.Units, peers: map[int]*peer{}, conns: map[*net.UnixConn]bool{}, changed: make(chan struct{})}
	l.end = sync.OnceValue(l.close)
	var err error
	if l.arena, err = elastic.New(o.Unit, o.Units, o.Floor); err != nil {
		return nil, err
	}
	if l.machine, err = lend.NewLender(o.Units, o.Floor, lend.Config{Lease: o.Lease, Reclaim: o.Reclaim}); err != nil {
		return nil, err
	}
	if l.listener, err = listen(o.Socket); err != nil {
		return nil, err
	}
	if l.memory, l.file, err = o.Device.AllocShared(int64(o.Units) * o.Unit.Bytes); err != nil {
		l.listener.Close()
		return nil, err
	}
	l.wg.Add(2)
	go l.accept()
	go l.tick()
	return l, nil
}

func listen(socket string) (*net.UnixListener, error) {
	if socket == "" {
		return nil, skep.Invalidf(opLend, "socket", "empty", "a path")
	}
	switch c, err := dial(opLend, socket); {
	case err == nil:
		c.Close()
		return nil, &skep.Error{Op: opLend, Kind: skep.Locked, Field: "socket", Value: socket}
	case errors.Is(err, syscall.ECONNREFUSED): // what is there was left by a process that ended
		if st, err := os.Lstat(socket); err == nil && st.Mode()&os.ModeSocket != 0 {
			_ = os.Remove(socket)
		}
	case errors.Is(err, os.ErrNotExist):
	default: // EPROTOTYPE: a server of another kind listens there
		return nil, &skep.Error{Op: opLend, Kind: skep.Locked, Field: "socket", Value: socket, Limit: "one that nobody uses", Err: err}
	}
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err == nil {
		if err = os.Chmod(socket, 0o600); err == nil {
			return ln, nil
		}
		ln.Close()
	}
	return nil, &skep.Error{Op: opLend, Kind: skep.Invalid, Field: "socket", Value: socket, Limit: "a path to make a socket at", Err: err}
}

// Memory is the arena, and Place where one of the lender's blocks lies in it.
func (l *Lender) Memory() gpu.Memory { return l.memory }

// Place is where one of the lender's own blocks lies.
func (l *Lender) Place(block int) gpu.Place {
	return gpu.Place{Memory: l.memory, Offset: l.arena.Offset(elastic.Lender, block)}
}

// Alloc takes a block for the lender itself: the lowest free one below the border.
func (l *Lender) Alloc() (block int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	block, ok = l.arena.Alloc(elastic.Lender)
	l.peak.See(int64(now()), l.arena.Used(elastic.Lender))
	return block, ok
}

// Free gives one back. Invalid when it is not in use.
func (l *Lender) Free(block int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.peak.See(int64(now()), l.arena.Used(elastic.Lender)) // until now
	err := l.arena.Free(elastic.Lender, block)
	l.grantLocked()
	return err
}

// Border is how many units are the lender's own now.
func (l *Lender) Border() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.arena.Border()
}

// Move moves the border: the units from there on may be lent, those below are the lender's.
// Moving down returns at once; units with blocks of the lender's own in them are lent when the
// last is freed. Moving up returns when the units are the lender's, at the latest a little
// after the time borrowers have to give back, when who did not has been ended; Deadline when
// ctx ends first (they still come back), Stopped when another Move took it down meanwhile.
func (l *Lender) Move(ctx context.Context, border int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closing:
		return &skep.Error{Op: opLend, Kind: skep.Closed}
	case border < l.o.Floor || border > l.o.Units:
		return skep.Invalidf(opLend, "border", border, fmt.Sprintf("%d to %d", l.o.Floor, l.o.Units))
	}
	return l.moveLocked(ctx, border)
}

func (l *Lender) moveLocked(ctx context.Context, border int) error {
	began := time.Now()
	took := border > l.machine.Border()
	l.offer = border
	l.sendLocked(l.machine.Reclaim(now(), border)...)
	l.settleLocked()
	for l.machine.Border() < border {
		changed := l.changed
		l.mu.Unlock()
		var err error
		select {
		case <-changed:
		case <-ctx.Done():
			err = &skep.Error{Op: opLend, Kind: skep.Deadline, Field: "border", Value: border, Err: ctx.Err()}
		}
		l.mu.Lock()
		if err == nil && l.offer < border {
			err = &skep.Error{Op: opLend, Kind: skep.Stopped, Field: "border", Value: l.offer, Limit: border}
		}
		if err != nil {
			return err
		}
	}
	if took {
		l.counts.reclaimed(time.Since(began))
	}
	return nil
}

// settleLocked has the lender's own border follow what is agreed, lends what may be lent, and
// wakes who waits.
func (l *Lender) settleLocked() {
	if d := min(l.offer, l.machine.Border()) - l.arena.Border(); d != 0 {
		_ = l.arena.Move(d) // within floor and units: both numbers are
	}
	l.grantLocked()
	close(l.changed)
	l.changed = make(chan struct{})
}

// grantLocked lends what may be lent to those who want it, each its share.
func (l *Lender) grantLocked() {
	from := l.offer
	if unit, ok := l.arena.Stranded(elastic.Lender); ok {
		from = max(from, unit+1)
	}
	if !l.closing && l.machine.Border() >= l.offer { // else it wants units back itself
		var wants []lend.Want
		for id := range l.o.Borrowers {
			if p := l.peers[id]; p != nil && p.conn != nil && !p.left {
				wants = append(wants, lend.Want{Borrower: id, Life: p.life, Units: p.want})
			}
		}
		l.sendLocked(l.machine.Share(now(), from, l.o.Borrowers, wants)...)
	}
	if d := min(l.offer, l.machine.Border()) - l.arena.Border(); d != 0 {
		_ = l.arena.Move(d)
	}
}

// sendLocked gives messages to their borrowers; one that does not take them gets them again.
func (l *Lender) sendLocked(list ...lend.Message) {
	for _, m := range list {
		p := l.peers[m.Borrower]
		switch {
		case p == nil:
		case m.Kind == lend.Kill:
			l.counts.Ended++
			l.o.Log.Warn("a borrower of GPU memory does not answer and is ended", "name", p.name, "pid", p.proc.pid, "units", l.machine.Lent(m.Borrower).Len())
			if err := p.proc.kill(); err != nil {
				l.o.Log.Error("a borrower of GPU memory cannot be ended: its units stay lent", "pid", p.proc.pid, "err", err)
			}
		default:
			select {
			case p.out <- m:
			default:
			}
		}
	}
}

func (l *Lender) tick() {
	defer l.wg.Done()
	t := time.NewTicker(max(min(l.o.Lease, l.o.Reclaim)/8, time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-t.C:
			l.mu.Lock()
			l.sendLocked(l.machine.Tick(now())...)
			l.mu.Unlock()
		}
	}
}

func (l *Lender) accept() {
	defer l.wg.Done()
	for {
		c, err := l.listener.AcceptUnix()
		if err != nil {
			select {
			case <-l.stop:
				return
			case <-time.After(10 * time.Millisecond): // out of descriptors, say
				continue
			}
		}
		l.mu.Lock()
		if many := len(l.conns) >= 4*64; many || l.closing {
			c.Close()
		} else {
			l.conns[c] = true
			l.wg.Add(1)
			go l.serve(c)
		}
		l.mu.Unlock()
	}
}

// serve answers one connection to its end.
func (l *Lender) serve(c *net.UnixConn) {
	defer l.wg.Done()
	defer func() {
		c.Close()
		l.mu.Lock()
		delete(l.conns, c)
		l.mu.Unlock()
	}()
	_ = c.SetReadDeadline(time.Now().Add(longest))
	for {
		f, file, err := receive(c)
		if file != nil {
			file.Close()
		}
		switch {
		case err != nil:
			return
		case f.Ask:
			s := l.Status()
			err = send(c, frame{Status: &s}, nil)
		case f.Hello != nil:
			l.borrower(c, f.Hello)
			return
		default:
			err = errProtocol
		}
		if err != nil {
			return
		}
	}
}

// borrower answers a borrower to the end of its connection.
func (l *Lender) borrower(c *net.UnixConn, h *hello) {
	p, err := l.admit(c, h)
	if err != nil {
		_ = send(c, frame{Refused: err.Error()}, nil)
		return
	}
	if err = send(c, frame{Welcome: &welcome{p.id, p.life, l.o.Name, l.o.Units, l.o.Unit, l.o.Lease}}, l.file); err != nil {
		l.mu.Lock() // it does not have the arena: nothing is lent to it, and it is not to be ended
		defer l.mu.Unlock()
		l.forgetLocked(p)
		return
	}
	l.wg.Add(2)
	go l.watch(p)
	gone := make(chan struct{})
	go func() {
		defer l.wg.Done()
		for {
			select {
			case m := <-p.out:
				if send(c, frame{Message: &m}, nil) != nil {
					c.Close()
				}
			case <-gone:
				return
			}
		}
	}()
	l.mu.Lock()
	p.conn = c
	l.settleLocked()
	l.mu.Unlock()
	for quiet := 0; quiet < 2; {
		// It renews four times in a lease, whether it has anything or not. A lender that was
		// stopped for as long finds the renewals when it looks once more.
		err = l.listenTo(p, c)
		switch {
		case err == nil:
			quiet = 0
		case errors.Is(err, os.ErrDeadlineExceeded):
			quiet++
		default:
			quiet = 2
		}
	}
	close(gone)
	l.mu.Lock()
	defer l.mu.Unlock()
	p.conn = nil
	l.forgetLocked(p)
}

// listenTo takes one message. An error is the end of the connection.
func (l *Lender) listenTo(p *peer, c *net.UnixConn) error {
	if err := c.SetReadDeadline(time.Now().Add(l.o.Lease)); err != nil {
		return err
	}
	f, file, err := receive(c)
	if file != nil {
		file.Close()
	}
	if err != nil {
		return err
	}
	m := f.Message
	if m == nil || m.Borrower != p.id || m.Life != p.life {
		return errProtocol
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.machine.Border()
	p.left = p.left || m.Kind == lend.Return
	l.sendLocked(l.machine.Receive(now(), *m)...)
	if l.machine.Border() != before || m.Kind != lend.Renew {
		l.settleLocked()
	}
	if m.Kind == lend.Return && l.machine.Lent(p.id).Len() == 0 {
		return net.ErrClosed // it has nothing any more, and hears so by the end of the connection
	}
	return nil
}

var errFull = errors.New("as many borrowers as there may be")

// admit gives a borrower its number.
func (l *Lender) admit(c *net.UnixConn, h *hello) (*peer, error) {
	if h.Version != version || len(h.Name) > maxName || h.Want < 0 {
		return nil, fmt.Errorf("%w: version %d, and this is %d", errProtocol, h.Version, version)
	}
	proc, err := peerOf(c)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range l.o.Borrowers {
		if l.peers[id] == nil && !l.closing {
			p := &peer{id: id, life: rand.Uint64(), name: h.Name, want: h.Want, out: make(chan lend.Message, 16), proc: proc}
			l.peers[id] = p
			return p, nil
		}
	}
	return nil, errors.Join(errFull, proc.close())
}

// watch waits for a borrower's end: then what it had is the lender's.
func (l *Lender) watch(p *peer) {
	defer l.wg.Done()
	ended := p.proc.wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !ended || l.peers[p.id] != p {
		return
	}
	if l.machine.Lent(p.id).Len() > 0 {
		l.counts.Died++
		l.machine.Gone(p.id)
	}
	if p.conn != nil {
		p.conn.Close()
		p.conn = nil
	}
	l.forgetLocked(p)
	l.settleLocked()
}

// forgetLocked drops a borrower that neither says anything nor has anything any more.
func (l *Lender) forgetLocked(p *peer) {
	if l.peers[p.id] == p && p.conn == nil && l.machine.Lent(p.id).Len() == 0 {
		delete(l.peers, p.id)
		_ = p.proc.close()
	}
}

// Close takes everything back, ending borrowers that do not give it, and frees the arena.
// NotReleased when one cannot be ended: the arena stays as it is. Whoever closes it again waits for the same, and has
// the same answer.
func (l *Lender) Close() error { return l.end() }

func (l *Lender) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), l.o.Reclaim+longest)
	defer cancel()
	l.mu.Lock()
	l.closing = true
	err := l.moveLocked(ctx, l.o.Units)
	close(l.stop)
	conns := l.conns
	for c := range conns {
		c.Close()
	}
	for _, p := range l.peers {
		_ = p.proc.close()
	}
	l.mu.Unlock()
	l.listener.Close() // removes the socket
	l.wg.Wait()
	if err != nil {
		return &skep.Error{Op: opLend, Kind: skep.NotReleased, Field: "lent units", Value: l.o.Units - l.machine.Border(), Err: err}
	}
	return errors.Join(l.file.Close(), l.memory.Free())
}

func (l *Lender) peersLocked() []*peer {
	list := make([]*peer, 0, len(l.peers))
	for _, p := range l.peers {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b *peer) int { return a.id - b.id })
	return list
}
