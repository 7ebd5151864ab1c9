package wire

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
	"unsafe"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/link"
	"github.com/skepkv/skep/wire/reuse"
	"github.com/skepkv/skep/wire/shm"
)

// Attached memory, as its client has it: a file that the caller has mapped, and the server, too. While it is
// attached to the connection that the shared memory is attached to, what lies in it is treated as what lies there.

// AttachedMemory is memory of the caller's that the server maps, too.
type AttachedMemory struct {
	c      *Client
	number uint64
	mem    []byte
	fd     int // our own
	offset int64
	// Guarded by the shared memory's mu.
	conn *clientConn // that it is attached to; nil: none yet
	why  error       // it is not
}

// Attach has the server map what the caller has mapped, shared, at mem: len(mem) bytes from offset on of a file of
// tmpfs (/dev/shm, a memfd) or hugetlbfs. Until Detach restores into it and puts from it go past the socket, also
// over connections made later. The descriptor stays the caller's. The file may be unlinked; where it is cut short,
// restores into what was cut off, and puts from it, are errors, and from then on the server takes none of mem.
//
// Errors: Invalid (the range, the descriptor), Unsupported (Options.SharedMemory is 0; the file is not in memory; a
// server that has no such call), Denied (a server of another user), Overloaded (the server's limit of such memory),
// those of a connection.
func (c *Client) Attach(ctx context.Context, mem []byte, fd int, offset int64) (*AttachedMemory, error) {
	const op = "attach memory"
	if c.shared == nil {
		return nil, &skep.Error{Op: op, Kind: skep.Unsupported, Field: "shared memory", Value: 0,
			Limit: "some, over a Unix socket"}
	}
	if at := uintptr(unsafe.Pointer(unsafe.SliceData(mem))); len(mem) == 0 || len(mem)%frames.PageSize != 0 ||
		at%frames.PageSize != 0 || offset < 0 || offset%frames.PageSize != 0 {
		return nil, skep.Invalidf(op, "memory", fmt.Sprintf("%d bytes at %#x, offset %d", len(mem), at, offset),
			fmt.Sprintf("multiples of %d", frames.PageSize))
	}
	own, err := link.DupFile(fd)
	if err != nil {
		return nil, &skep.Error{Op: op, Kind: skep.Invalid, Field: "descriptor", Value: fd, Err: err}
	}
	return c.attachOwn(ctx, mem, own, offset)
}

// AttachFound is Attach of memory whose file this finds: a mapping of this process, shared and writable, of a file
// that it can open or has open.
//
// Errors: Attach's; Unsupported (mem is private memory, or lies in several mappings).
func (c *Client) AttachFound(ctx context.Context, mem []byte) (*AttachedMemory, error) {
	if c.shared == nil { // nothing is looked for
		return c.Attach(ctx, mem, -1, 0)
	}
	fd, offset, err := shm.Find(mem)
	if err != nil {
		return nil, err
	}
	return c.attachOwn(ctx, mem, fd, offset)
}

func (c *Client) attachOwn(ctx context.Context, mem []byte, own int, offset int64) (*AttachedMemory, error) {
	s := c.shared
	a := &AttachedMemory{c: c, mem: mem, fd: own, offset: offset}
	if err := s.enlistFile(a); err != nil {
		link.CloseReceived([]int{own})
		return nil, err
	}
	x, err := c.conn(ctx, 0) // one that is made now attaches it
	if err == nil {
		if err = s.offerFile(ctx, x, a); err == nil {
			return a, nil
		}
	}
	s.forgetFile(a)
	return nil, err
}

// Attached says whether the server maps the memory now: nil, or why it does not.
func (a *AttachedMemory) Attached() error {
	s := a.c.shared
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case a.conn != nil && a.conn == s.conn:
		return nil
	case a.why != nil:
		return a.why
	}
	return &skep.Error{Op: "attach memory", Kind: skep.Unavailable, Field: "connection", Value: "none",
		Limit: "one that it is attached to"}
}

// Detach has the server unmap the memory once no session and no put uses it, and waits for that: nobody writes to it
// afterwards.
//
// Errors: NotReleased (the server may write to it yet: it stays attached, as far as it was, and Detach may be called
// again), Conflict (another Detach of it is under way), Deadline.
func (a *AttachedMemory) Detach(ctx context.Context) error {
	const op = "detach memory"
	s := a.c.shared
	for ended := (*clientConn)(nil); ; { // a connection that has ended since, whose server unmaps it by itself
		s.mu.Lock()
		s.settleLocked()
		x, known := s.conn, slices.Contains(s.files, a)
		live := known && a.conn != nil && a.conn == x && x != ended
		tainted := s.book.Tainted(reuse.Span{Off: a.at(), Len: int64(len(a.mem))})
		used := tainted || known && s.usedLocked(a.mem)
		if !live && !used { // under the lock: nobody attaches it to another connection in between
			s.forgetLocked(a)
		}
		s.mu.Unlock()
		switch {
		case !live && used: // an unknown one: the Client was closed
			return notReleased(op)
		case !live:
			return nil
		}
		within, cancel := context.WithTimeout(ctx, a.c.opt.Patience)
		_, err := x.call(within, frames.TypeDetachMemory, &frames.Number{N: a.number}, nil, nil)
		cancel()
		switch k := skep.KindOf(err); {
		case err == nil || k == skep.Invalid: // an earlier Detach had no answer, and has been carried out
			s.forgetFile(a)
			return nil
		case k != skep.Unavailable && k != skep.Closed:
			return err
		}
		ended = x
	}
}

// usedLocked says whether a session that is not over has destinations in mem, or a put under way reads there.
func (s *sharedMemory) usedLocked(mem []byte) bool {
	for l := range s.puts {
		if len(within(mem, l.pieces)) > 0 {
			return true
		}
	}
	for _, ses := range s.sessions {
		if len(within(mem, ses.pieces(false))) > 0 {
			return true
		}
	}
	return false
}

// at is where the memory begins among the places that are told to the server.
func (a *AttachedMemory) at() int64 { return int64(a.number << frames.FileShift) }

// enlistFile gives the memory a number.
func (s *sharedMemory) enlistFile(a *AttachedMemory) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	if len(s.files) >= frames.MostAttached {
		return skep.Invalidf("attach memory", "files", len(s.files)+1, frames.MostAttached)
	}
	for _, b := range s.files {
		_, in := inside(b.mem, a.mem[:1])
		if _, around := inside(a.mem, b.mem[:1]); in || around {
			return skep.Invalidf("attach memory", "memory", "attached already", "memory that is not")
		}
	}
	for used := true; used; { // one that was not in use of late: a call on its way may still name that
		s.number = s.number%(nowhere>>frames.FileShift-1) + 1
		used = slices.ContainsFunc(s.files, func(b *AttachedMemory) bool { return b.number == s.number })
	}
	a.number = s.number
	s.files = append(slices.Clone(s.files), a)
	return nil
}

func (s *sharedMemory) forgetFile(a *AttachedMemory) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLocked(a)
}

func (s *sharedMemory) forgetLocked(a *AttachedMemory) {
	if i := slices.Index(s.files, a); i >= 0 {
		s.files = slices.Delete(slices.Clone(s.files), i, i+1)
		link.CloseReceived([]int{a.fd})
	}
}

// offerFiles attaches what was attached to an earlier connection.
func (s *sharedMemory) offerFiles(ctx context.Context, x *clientConn) {
	s.mu.Lock()
	files := s.files
	s.mu.Unlock()
	for _, a := range files {
		if err := s.offerFile(ctx, x, a); err != nil {
			x.c.log.Warn("memory not attached: restores into it go through the socket", "error", err)
		}
	}
}

// offerFile attaches a file to the connection that the shared memory is attached to, unless it is.
func (s *sharedMemory) offerFile(ctx context.Context, x *clientConn, a *AttachedMemory) (err error) {
	const op = "attach memory"
	select {
	case s.offering <- struct{}{}:
	case <-ctx.Done():
		return link.Ended(op, ctx)
	}
	free := func() { <-s.offering }
	defer func() { free() }()
	s.mu.Lock()
	conn, done, listed, why := s.conn, a.conn == x, slices.Contains(s.files, a), s.why
	s.mu.Unlock()
	switch {
	case done:
		return nil
	case !listed:
		return errClosed
	case conn != x && why != nil:
		return why
	case conn != x:
		return &skep.Error{Op: op, Kind: skep.Unavailable, Field: "connection", Value: "another one since",
			Limit: "one that is attached"}
	case x.hi.Features&frames.FeatureMemory == 0:
		err = &skep.Error{Op: op, Kind: skep.Unsupported, Field: "server", Value: "knows no attached files"}
	default:
		within, cancel := context.WithTimeout(ctx, x.c.opt.Patience)
		defer cancel()
		for err = s.sendFile(within, x, a); errors.Is(err, skep.Overloaded); err = s.sendFile(within, x, a) {
			select { // what an earlier connection had is being unmapped
			case <-time.After(10 * time.Millisecond):
				continue
			case <-within.Done():
			}
			break
		}
	}
	s.mu.Lock()
	if a.why = err; err == nil {
		a.conn = x
	}
	detached := err == nil && !slices.Contains(s.files, a)
	s.mu.Unlock()
	switch { // nobody else has the server unmap it
	case detached: // while it was offered
		x.unmap(a.number)
		return errClosed
	case errors.Is(err, skep.Deadline): // the server may have it, or take it yet: nobody offers it again before
		go func(free func()) { x.unmap(a.number); free() }(free)
		free = func() {}
	}
	return err
}

// unmap has the server unmap a file; where that fails the connection's end does.
func (x *clientConn) unmap(number uint64) {
	within, cancel := context.WithTimeout(x.c.ctx, x.c.opt.Patience)
	defer cancel()
	_, _ = x.call(within, frames.TypeDetachMemory, &frames.Number{N: number}, nil, nil)
}

// sendFile sends a descriptor of its own: the memory's is closed when it is detached, and is another file's then.
func (s *sharedMemory) sendFile(ctx context.Context, x *clientConn, a *AttachedMemory) error {
	fd, err := s.dup(a)
	if err != nil {
		return err
	}
	defer link.CloseReceived([]int{fd})
	return x.sendWith(ctx, frames.TypeAttachMemory, &frames.AttachMemoryRequest{Memory: a.number,
		Offset: uint64(a.offset), Size: uint64(len(a.mem))}, fd)
}

func (s *sharedMemory) dup(a *AttachedMemory) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.files, a) {
		return -1, errClosed
	}
	return link.DupFile(a.fd)
}

// sendWith carries a call out whose frame descriptors come with.
func (x *clientConn) sendWith(ctx context.Context, t frames.Type, m frames.Message, fds ...int) error {
	p := &pendingCall{t: t, reply: make(chan reply, 1)}
	id, err := x.enlist(p)
	if err != nil {
		return err
	}
	defer x.delist(id)
	b, err := frames.AppendFrame(nil, frames.Header{Type: t, Call: id}, m)
	if err != nil {
		return err
	}
	if err := x.l.SendFiles(ctx, b, fds); err != nil {
		return err
	}
	x.rouse()
	select {
	case r := <-p.reply:
		return r.err
	case <-ctx.Done():
		return link.Ended(t.String(), ctx)
	}
}

// inside is where p lies in mem; false when it does not.
func inside(mem, p []byte) (int64, bool) {
	base, here := uintptr(unsafe.Pointer(unsafe.SliceData(mem))), uintptr(unsafe.Pointer(unsafe.SliceData(p)))
	if len(p) == 0 || len(mem) == 0 || here < base || here-base > uintptr(len(mem)) ||
		uintptr(len(p)) > uintptr(len(mem))-(here-base) {
		return 0, false
	}
	return int64(here - base), true
}
