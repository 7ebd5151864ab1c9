package hostile

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"time"
)

// Mutate gives a conversation that went wrong: messages dropped, doubled, moved, cut and joined, bits turned, numbers replaced.
func Mutate(r *rand.Rand, messages [][]byte) [][]byte {
	out := make([][]byte, len(messages))
	for i, m := range messages {
		out[i] = bytes.Clone(m)
	}
	for range 1 + r.IntN(4) {
		if len(out) == 0 {
			return out
		}
		i, j := r.IntN(len(out)), r.IntN(len(out))
		m := out[i]
		if len(m) == 0 {
			continue
		}
		switch from, to := r.IntN(len(m)), 1+r.IntN(len(m)); r.IntN(9) {
		case 0:
			m[from] ^= 1 << r.IntN(8)
		case 1:
			out[i] = m[:to]
		case 2:
			out[i] = m[from:]
		case 3:
			out = append(out, bytes.Clone(m))
		case 4:
			out[i], out[j] = out[j], out[i]
		case 5:
			out[i] = append(bytes.Clone(m[:from]), out[j]...)
		case 6:
			junk := make([]byte, r.IntN(64))
			for k := range junk {
				junk[k] = byte(r.Uint32())
			}
			out[i] = append(append(bytes.Clone(m[:from]), junk...), m[from:]...)
		case 7:
			out[i] = otherNumber(r, m)
		default:
			b := binary.LittleEndian.AppendUint64(nil, oddNumber(r))
			copy(m[from:], b[:1+r.IntN(8)])
		}
	}
	return out
}

// oddNumber is one that is on the edge of something.
func oddNumber(r *rand.Rand) uint64 {
	n := uint64(1) << r.IntN(64)
	return []uint64{0, n, n - 1, -n, r.Uint64(), 512 << 20, 4 << 20, 64 << 10}[r.IntN(8)]
}

// otherNumber replaces one decimal number in m.
func otherNumber(r *rand.Rand, m []byte) []byte {
	var at []int
	for i, c := range m {
		if c >= '0' && c <= '9' && (i == 0 || m[i-1] < '0' || m[i-1] > '9') {
			at = append(at, i)
		}
	}
	if len(at) == 0 {
		return m
	}
	from := at[r.IntN(len(at))]
	to := from
	for to < len(m) && m[to] >= '0' && m[to] <= '9' {
		to++
	}
	out := append(bytes.Clone(m[:from]), strconv.FormatInt(int64(oddNumber(r)), 10)...)
	return append(out, m[to:]...)
}

// Deliver sends what the server is to get, at some pace, reads what comes back at another, and ends the connection in some
// way. It gives ErrLeak for what is another's.
func Deliver(ctx context.Context, r *rand.Rand, c net.Conn, out []byte) error {
	defer c.Close()
	deadline, _ := ctx.Deadline()
	_ = c.SetDeadline(deadline)
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) })
	defer stop()
	var w Watcher
	end, pace := r.IntN(6), r.IntN(5)
	read := make(chan struct{})
	go func() {
		defer close(read)
		switch pace {
		case 0: // takes nothing
		case 1: // takes little, slowly
			b := make([]byte, 512)
			for range 200 {
				n, err := c.Read(b)
				_, _ = w.Write(b[:n])
				if err != nil || !pause(ctx, time.Millisecond) {
					return
				}
			}
		default:
			_, _ = io.Copy(&w, struct{ io.Reader }{c})
		}
	}()
	send(ctx, r, c, out)
	switch end {
	case 0: // hangs up
	case 1: // says nothing more, for a while
		pause(ctx, time.Duration(r.IntN(300))*time.Millisecond)
	case 2: // resets
		if t, ok := Plain(c).(*net.TCPConn); ok {
			_ = t.SetLinger(0)
		}
	default: // has said all it has to say
		if h, ok := Plain(c).(interface{ CloseWrite() error }); ok {
			_ = h.CloseWrite()
		}
		select {
		case <-read:
		case <-time.After(time.Duration(200+r.IntN(2000)) * time.Millisecond):
		case <-ctx.Done():
		}
	}
	_ = c.Close()
	<-read
	return w.Err()
}

// send writes b whole, in parts, or byte by byte, with pauses or without.
func send(ctx context.Context, r *rand.Rand, c net.Conn, b []byte) {
	part, wait := len(b), 0
	switch r.IntN(4) {
	case 0:
		part = 1 + r.IntN(64<<10)
	case 1:
		part, wait = 1+r.IntN(2048), r.IntN(10)
	case 2:
		if len(b) < 4096 {
			part = 1
		}
	}
	for len(b) > 0 && ctx.Err() == nil {
		n := min(part, len(b))
		if _, err := c.Write(b[:n]); err != nil {
			return
		}
		b = b[n:]
		if wait > 0 && !pause(ctx, time.Duration(r.IntN(wait+1))*time.Millisecond) {
			return
		}
	}
}

// pause waits; false when ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
