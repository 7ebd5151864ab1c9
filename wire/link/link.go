package link

import (
	"context"
	"crypto/tls"
	"errors"
	"hash/crc32"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/near"
)

// ReadBuffer holds headers and short bodies. Anything longer is read straight to where
// it belongs, so a small buffer means few copies.
const ReadBuffer = 4 << 10

// MaxFiles is how many descriptors wait for the frame they belong to; more are closed.
const MaxFiles = 2

// Link reads and writes frames on a connection. Reading is for one goroutine; writing
// for any.
type Link struct {
	Conn  net.Conn
	Files *FileReader // of a Unix socket that may carry descriptors; else nil

	buf        [ReadBuffer]byte
	have, next int           // buf[next:have] is read and not used
	Filled     time.Time     // the last of it was read
	Check      Summer        // the reader's
	Epochs     bool          // headers may have one
	left       time.Duration // how much longer the rest of the frame may be waited for, by the reader

	Write chan struct{}  // holds one token: who has it writes
	sends atomic.Int64   // bytes of the frames that are, or wait to be, written
	Sent  atomic.Int64   // bytes of frames that were written
	Moved atomic.Int64   // bytes that the other side has sent, or made room for in the middle of a frame: it lives
	queue int64          // what was not taken yet when Progress was asked last
	now   *writeNow      // the writer's; nil: not this way
	under *near.Gatherer // of TLS; else nil
	tls   bool           // no write may be cut off and be followed by another one
	stall time.Duration  // how long the other side may take nothing
	rate  int            // bytes a second it must at least send of what a header announced, and take of what it is sent
}

// New is the end that c is of. The other side may take nothing for stall, and must else make rate bytes a second.
func New(c net.Conn, stall time.Duration, rate int) *Link {
	l := &Link{Conn: c, Write: make(chan struct{}, 1), stall: stall, left: stall, rate: rate, now: newWriteNow(c),
		under: near.GathererOf(c)}
	_, l.tls = c.(*tls.Conn)
	l.Write <- struct{}{}
	return l
}

// patience is how long n bytes may take.
func (l *Link) patience(n int64) time.Duration { return l.stall + TimeOf(n, l.rate) }

// Header waits for the next frame: for its first byte until idle has passed (0: for
// ever), for the rest as long as a frame of its length may take.
func (l *Link) Header(idle time.Duration) (frames.Header, error) {
	if l.next == l.have {
		l.SetRead(idle)
		if err := l.Fill(); err != nil {
			return frames.Header{}, err
		}
	}
	if l.left = l.patience(frames.HeaderSize); l.have-l.next < frames.HeaderSize {
		err := l.patiently(func() (err error) {
			for err == nil && l.have-l.next < frames.HeaderSize {
				err = l.Fill()
			}
			return err
		})
		if err != nil {
			return frames.Header{}, midFrame(err)
		}
	}
	h, err := frames.ParseHeader(l.buf[l.next:l.have])
	if err == nil && h.Epoch != 0 && !l.Epochs {
		err = frames.Broken("epoch", h.Epoch, 0)
	}
	l.next += frames.HeaderSize
	l.left += TimeOf(int64(h.Body)+int64(h.Payload), l.rate)
	return h, err
}

// patiently reads for as long as there is patience left for the frame, and takes what it waited from that: a frame
// has its time as a whole, in however many steps it is read. The time between the steps is the reader's own.
func (l *Link) patiently(read func() error) error {
	began := time.Now()
	l.Conn.SetReadDeadline(began.Add(l.left))
	err := read()
	l.left -= time.Since(began)
	return err
}

// HoldsFrame says whether the next frame lies in the buffer whole; if not, whether it may still come to: it
// is short, and has no payload.
func (l *Link) HoldsFrame() (whole, short bool) {
	n := l.have - l.next
	if n < frames.HeaderSize {
		return false, true
	}
	h, err := frames.ParseHeader(l.buf[l.next:l.have])
	if err != nil || h.Payload > 0 || uint64(h.Body) > ReadBuffer-frames.HeaderSize {
		return false, false
	}
	return n >= frames.HeaderSize+int(h.Body), true
}

// midFrame is an error within a frame, where an end is not an orderly one.
func midFrame(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// SetRead lets reads wait for so long; 0: for ever.
func (l *Link) SetRead(d time.Duration) {
	if d <= 0 {
		l.Conn.SetReadDeadline(time.Time{})
		return
	}
	l.Conn.SetReadDeadline(time.Now().Add(d))
}

// get reads once from the connection.
func (l *Link) get(p []byte) (n int, err error) {
	if l.Files != nil {
		n, err = l.Files.read(p)
	} else {
		n, err = l.Conn.Read(p)
	}
	l.Moved.Add(int64(n))
	return n, err
}

// put writes buffers, in steps: what is written after the first had to be given room.
func (l *Link) put(all net.Buffers) (n int64, err error) {
	room := make(net.Buffers, 0, len(all))
	for len(all) > 0 && err == nil {
		step, left := room, ReadStep
		for left > 0 && len(all) > 0 {
			k := min(left, len(all[0]))
			step, left = append(step, all[0][:k]), left-k
			if all[0] = all[0][k:]; len(all[0]) == 0 {
				all = all[1:]
			}
		}
		before := n
		n, err = step.WriteTo(l.Conn)
		if n += before; before > 0 {
			l.Moved.Add(n - before)
		}
	}
	return n, err
}

// Progress is Moved, and what the other side has taken of what was written: the end of a large frame lies in the socket
// for long where the network is slow, and nothing else comes or goes meanwhile. It is for one goroutine at a time.
func (l *Link) Progress() int64 {
	now := queued(l.Conn)
	l.Moved.Add(max(l.queue-now, 0))
	l.queue = now
	return l.Moved.Load()
}

// reads is a function as an io.Reader.
type reads func(p []byte) (int, error)

func (r reads) Read(p []byte) (int, error) { return r(p) }

// Fill reads once into the buffer.
func (l *Link) Fill() error {
	if l.next > 0 {
		copy(l.buf[:], l.buf[l.next:l.have])
		l.have -= l.next
		l.next = 0
	}
	n, err := l.get(l.buf[l.have:])
	l.have += n
	if n > 0 {
		l.Filled = time.Now()
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// Body reads the body h announces into b, which is as long, and compares it with its
// checksum.
func (l *Link) Body(h *frames.Header, b []byte) error {
	if err := l.Read(b); err != nil {
		return err
	}
	if s := crc32.ChecksumIEEE(b); s != h.BodySum {
		return frames.Broken("body checksum", h.BodySum, s)
	}
	return nil
}

// Read fills p with the next bytes of the frame.
func (l *Link) Read(p []byte) (err error) { _, err = l.ReadWhile(p, nil); return err }

// ReadWhile is Read, as long as goesOn says so (nil: it does). Who changes that cuts the wait off by the connection's
// deadline for reading. n bytes of p came.
func (l *Link) ReadWhile(p []byte, goesOn func() bool) (n int, err error) {
	n = copy(p, l.buf[l.next:l.have])
	l.next += n
	if n == len(p) {
		return n, nil
	}
	err = midFrame(l.patiently(func() error {
		if goesOn != nil && !goesOn() { // the deadline is set: from here on it is cut off
			return errGoesOnNoMore
		}
		k, err := io.ReadFull(reads(l.get), p[n:])
		n += k
		return err
	}))
	return n, err
}

// errGoesOnNoMore ends a read that its caller called off.
var errGoesOnNoMore = errors.New("the read was called off")

// ReadStep is how much is read before it is hashed: little enough to be in the cache
// of the core still.
const ReadStep = 256 << 10

// ReadSummed fills p with the next bytes of the frame and gives them to s.
func (l *Link) ReadSummed(p []byte, s *Summer) error {
	for len(p) > 0 {
		n := min(len(p), ReadStep)
		if err := l.Read(p[:n]); err != nil {
			return err
		}
		s.Write(p[:n])
		p = p[n:]
	}
	return nil
}

var trash = sync.Pool{New: func() any { return new([64 << 10]byte) }}

// Discard reads n bytes for nobody.
func (l *Link) Discard(n uint64) error {
	b := trash.Get().(*[64 << 10]byte)
	defer trash.Put(b)
	for n > 0 {
		k := min(n, uint64(len(b)))
		if err := l.Read(b[:k]); err != nil {
			return err
		}
		n -= k
	}
	return nil
}

// small is the largest payload that is copied behind its body to be written at once.
const small = 16 << 10

// atOnce is the longest frame that is first tried without waiting: what sockets mostly have room for.
const atOnce = 128 << 10

// Send writes a frame and its payload. The payload's memory is read until it returns.
// An error that is not a broken connection means that no byte was sent (unsent).
//
// The other side's time for a frame begins when it is there to be sent, also where others are written first: what
// waits behind them holds memory, too.
func (l *Link) Send(ctx context.Context, frame []byte, payload net.Buffers) error {
	total := len(frame)
	for _, p := range payload {
		total += len(p)
	}
	due := time.Now().Add(l.patience(l.sends.Add(int64(total))))
	defer l.sends.Add(-int64(total))
	select {
	case <-l.Write:
	case <-ctx.Done():
		return &Unsent{Ended("send", ctx)}
	}
	defer func() { l.Write <- struct{}{} }()
	if ctx.Err() != nil {
		return &Unsent{Ended("send", ctx)}
	}
	whole := total-len(frame) <= small
	if whole {
		for _, p := range payload {
			frame = append(frame, p...)
		}
	}
	begun := 0
	if whole && total <= atOnce {
		if begun = l.now.write(frame); begun == total {
			l.Sent.Add(int64(total))
			return nil // what never waits needs no deadline, and nobody who cuts it off
		}
		frame = frame[begun:]
	}
	l.Conn.SetWriteDeadline(due)
	defer l.cutOff(ctx, due, begun > 0)()
	var err error
	var n int64
	if whole {
		var k int
		k, err = l.Conn.Write(frame)
		n = int64(k)
	} else {
		all := make(net.Buffers, 0, 1+len(payload))
		all = append(append(all, frame), payload...)
		l.under.Hold()
		n, err = l.put(all)
		err = errors.Join(err, l.under.Flush())
	}
	if err == nil {
		l.Sent.Add(int64(total))
		return nil
	}
	if n == 0 && begun == 0 && ctx.Err() != nil && !l.tls {
		return &Unsent{Ended("send", ctx)}
	}
	l.Conn.Close()
	if ctx.Err() != nil {
		return Ended("send", ctx)
	}
	return Gone("send", err)
}

// grace is how much longer than its context a write may take that ends the connection where it is cut off, and with it
// what other calls have under way: one of which a part was written, and any under TLS, also where nothing was.
const grace = 100 * time.Millisecond

// cutOff has a write that hangs be cut off, and the connection with it, when a context ends, before it is due: the
// caller's memory is its own again then. begun says that a part was written before. It is over when it says so, before
// others write: the deadline is theirs then.
func (l *Link) cutOff(ctx context.Context, due time.Time, begun bool) (over func()) {
	if ctx.Done() == nil {
		return func() {}
	}
	cut := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		at := time.Unix(1, 0)
		if l.tls || begun {
			if at = time.Now().Add(grace); at.After(due) {
				at = due
			}
		}
		l.Conn.SetWriteDeadline(at)
		close(cut)
	})
	return func() {
		if !stop() {
			<-cut
		}
	}
}

// SendFiles writes a short frame with descriptors. It has the time of a frame of its own: a connection keeps the
// deadline of what was written with one before.
func (l *Link) SendFiles(ctx context.Context, frame []byte, fds []int) error {
	select {
	case <-l.Write:
	case <-ctx.Done():
		return Ended("send", ctx)
	}
	defer func() { l.Write <- struct{}{} }()
	due := time.Now().Add(l.patience(int64(len(frame))))
	l.Conn.SetWriteDeadline(due)
	defer l.cutOff(ctx, due, false)()
	err := SendFiles(l.Conn, frame, fds...)
	if err != nil && ctx.Err() != nil {
		l.Conn.Close() // some of it may have been sent
		return Ended("send", ctx)
	}
	return err
}

// Unsent wraps the error of a frame of which no byte was sent.
type Unsent struct{ Err error }

// Error implements error.
func (u *Unsent) Error() string { return u.Err.Error() }

// Unwrap is the error itself.
func (u *Unsent) Unwrap() error { return u.Err }

// Summer computes one checksum over bytes that come in pieces.
type Summer struct {
	kind uint8
	crc  uint32
	h    xxh3.Hasher
}

// Reset begins another sum, of a kind of the protocol.
func (s *Summer) Reset(kind uint8, seed uint64) {
	s.kind, s.crc = kind, 0
	if kind == frames.SumXXH3 {
		s.h.ResetSeed(seed)
	}
}

// Write adds bytes.
func (s *Summer) Write(p []byte) {
	switch s.kind {
	case frames.SumCRC32:
		s.crc = crc32.Update(s.crc, crc32.IEEETable, p)
	case frames.SumXXH3:
		s.h.Write(p)
	}
}

// Sum is that of what was written since Reset.
func (s *Summer) Sum() uint64 {
	switch s.kind {
	case frames.SumCRC32:
		return uint64(s.crc)
	case frames.SumXXH3:
		return s.h.Sum64()
	}
	return 0
}

// SumOver is the checksum of bufs together, with seed 0.
func SumOver(kind uint8, bufs ...[]byte) uint64 {
	if kind == frames.SumXXH3 && len(bufs) == 1 {
		return xxh3.Hash(bufs[0])
	}
	var s Summer
	s.Reset(kind, 0)
	for _, b := range bufs {
		s.Write(b)
	}
	return s.Sum()
}

// KnownSum says whether k is a checksum of bytes that travel.
func KnownSum(k uint8) error {
	if k != frames.SumCRC32 && k != frames.SumXXH3 {
		return skep.Invalidf("frame", "kind of checksum", k, "1 or 2")
	}
	return nil
}

// Cut is bytes [off, off+n) of data.
func Cut(dst net.Buffers, data [][]byte, off, n int64) net.Buffers {
	for _, d := range data {
		if n == 0 {
			break
		}
		if off >= int64(len(d)) {
			off -= int64(len(d))
			continue
		}
		d = d[off:min(int64(len(d)), off+n)]
		dst, off, n = append(dst, d), 0, n-int64(len(d))
	}
	return dst
}

// HeaderWithin reads a header under a deadline that is set already.
func (l *Link) HeaderWithin(ctx context.Context) (frames.Header, error) {
	for l.have-l.next < frames.HeaderSize {
		if err := l.Fill(); err != nil {
			if ctx.Err() != nil {
				return frames.Header{}, Ended("hello", ctx)
			}
			return frames.Header{}, midFrame(err)
		}
	}
	h, err := frames.ParseHeader(l.buf[l.next:l.have])
	l.next += frames.HeaderSize
	return h, err
}

// BodyWithin reads the body after it likewise.
func (l *Link) BodyWithin(ctx context.Context, h *frames.Header, b []byte) error {
	n := copy(b, l.buf[l.next:l.have])
	l.next += n
	if n < len(b) {
		if _, err := io.ReadFull(reads(l.get), b[n:]); err != nil {
			return midFrame(err)
		}
	}
	if s := crc32.ChecksumIEEE(b); s != h.BodySum {
		return frames.Broken("body checksum", h.BodySum, s)
	}
	return nil
}

// IsClosed says whether a channel that is never sent to is closed.
func IsClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
