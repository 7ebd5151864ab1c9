package wire

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/link"
	"github.com/skepkv/skep/wire/server"
)

// pipes is a listener whose connections are pipes within the process, so that their time is a test's.
type pipes struct {
	come  chan net.Conn
	ended chan struct{}
}

func newPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.come:
		return c, nil
	case <-p.ended:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	select {
	case <-p.ended:
	default:
		close(p.ended)
	}
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Net: "pipe"} }

// piping is a server of pipes, and what it was made with.
type piping struct {
	*server.Server
	st     skep.Store
	limits server.Limits
	pipes  *pipes
}

// piped runs test in a bubble, with a server that holds the blocks of a chain, and a way to connect.
func piped(t *testing.T, test func(t *testing.T, s piping, dial func() *rawConn, ch skep.Chain)) {
	pipedTo(t, func(st skep.Store) skep.Store { return st }, test)
}

// pipedTo is piped, of a server to which wrap gives its Store.
func pipedTo(t *testing.T, wrap func(st skep.Store) skep.Store,
	test func(t *testing.T, s piping, dial func() *rawConn, ch skep.Chain)) {
	synctest.Test(t, func(t *testing.T) {
		st := wrap(newMemstore(storetest.Config{}))
		defer st.Close()
		ch := chainOf(t, st, auth.DefaultTenant, 64)
		p := piping{st: st, pipes: newPipes()}
		p.limits.EnsureDefaults()
		s, err := server.New(st, server.Options{})
		require.NoError(t, err)
		l := p.pipes
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Serve(ctx, l) }()
		var open []net.Conn
		defer func() {
			for _, c := range open {
				c.Close()
			}
			cancel()
			require.NoError(t, <-done)
		}()
		p.Server = s
		test(t, p, func() *rawConn {
			here, there := net.Pipe()
			l.come <- there
			open = append(open, here)
			c := &rawConn{here, link.New(here, time.Hour, frames.SlowestRate)}
			c.hello(t, "")
			require.NoError(t, c.SetReadDeadline(time.Time{}))
			return c
		}, ch)
	})
}

// trickle writes b, one byte every so often, and says how long the other side let it.
func trickle(w io.Writer, b []byte, every time.Duration) time.Duration {
	began := time.Now()
	for i := range b {
		if _, err := w.Write(b[i : i+1]); err != nil {
			break
		}
		time.Sleep(every)
	}
	return time.Since(began)
}

// putOf is a put's frame, of as many parts of one byte.
func putOf(t *testing.T, scope skep.Scope, parts int) []byte {
	payload := make([]byte, parts)
	b := frames.PutBlock{Key: skep.KeyOf([]byte("many"))}
	for i := range parts {
		b.Parts = append(b.Parts, frames.PutPart{Name: "p", Size: 1, Sum: frames.SumCRC32,
			Check: link.SumOver(frames.SumCRC32, payload[i:i+1])})
	}
	frame, err := frames.AppendFrame(nil, frames.Header{Type: frames.TypePut, Call: 1, Payload: uint32(parts)},
		&frames.PutRequest{Scope: scope, Blocks: []frames.PutBlock{b}})
	require.NoError(t, err)
	return frame
}

// A frame comes as a whole at the least rate, or its connection ends and what was held for it is given back: in however
// many parts its payload is, and whatever of it comes slowly.
func TestFramesThatTrickleIn(t *testing.T) {
	t.Parallel()
	piped(t, func(t *testing.T, s piping, dial func() *rawConn, ch skep.Chain) {
		const parts = 2000
		lim := &s.limits
		frame := putOf(t, ch.Scope, parts)
		most := lim.Stall + link.TimeOf(int64(len(frame)+parts), lim.Rate)
		for name, c := range map[string]struct {
			at    []byte // sent at once
			every time.Duration
			rest  []byte
		}{
			"the header":  {nil, lim.Stall / 16, frame},
			"the body":    {frame[:frames.HeaderSize], lim.Stall / 2, frame},
			"the payload": {frame, lim.Stall - time.Second, make([]byte, parts)},
			"what is refused": {func() []byte {
				b, err := frames.AppendFrame(nil, frames.Header{Type: frames.TypePut, Call: 1, Payload: parts},
					&frames.PutRequest{Scope: skep.Scope{Namespace: 999}})
				require.NoError(t, err)
				return b
			}(), lim.Stall - time.Second, make([]byte, parts)},
		} {
			x := dial()
			if len(c.at) > 0 {
				_, err := x.Write(c.at)
				require.NoError(t, err)
			}
			go func() { _, _ = io.Copy(io.Discard, x) }()
			require.LessOrEqual(t, trickle(x, c.rest, c.every), most+c.every, name)
			synctest.Wait()
			require.Zero(t, s.Stats().Memory, name)
			require.Zero(t, s.Stats().Connections, name)
		}
	})
}

// Frames that each come at once may be as far from one another as the idle time allows.
func TestFramesThatComeNowAndThen(t *testing.T) {
	t.Parallel()
	piped(t, func(t *testing.T, s piping, dial func() *rawConn, ch skep.Chain) {
		x := dial()
		for range 100 {
			time.Sleep(s.limits.Idle - time.Second)
			x.send(t, frames.Header{Type: frames.TypePing, Call: 7}, nil, "")
			h, _, err := x.next()
			require.NoError(t, err)
			require.Equal(t, frames.TypePing|frames.Answer, h.Type)
		}
	})
}

// restoring begins a restore that streams, with so much credit.
func (c *rawConn) restoring(t *testing.T, ch skep.Chain, window uint64) {
	c.send(t, frames.Header{Type: frames.TypeRestore, Call: 1}, &frames.RestoreRequest{Window: window,
		Chains: []frames.RestoreChain{{Scope: ch.Scope, Keys: ch.Keys}}}, "")
	h, _, err := c.next()
	require.NoError(t, err)
	require.Equal(t, frames.TypeRestore|frames.Answer, h.Type)
	require.NoError(t, c.SetReadDeadline(time.Time{}))
}

// Who reads nothing, a byte or an answer now and then, or gives credit for a block now and then, is ended by the same
// least rate; what was held for it is given back.
func TestReadersBelowTheLeastRate(t *testing.T) {
	t.Parallel()
	const total = 64 * blockSize
	for name, read := range map[string]func(t *testing.T, s piping, x *rawConn, ch skep.Chain){
		"nothing": func(t *testing.T, s piping, x *rawConn, ch skep.Chain) { x.restoring(t, ch, 1<<20) },
		"a byte now and then": func(t *testing.T, s piping, x *rawConn, ch skep.Chain) {
			x.restoring(t, ch, 1<<20)
			for {
				if _, err := x.Read(make([]byte, 1)); err != nil {
					return
				}
				time.Sleep(s.limits.Stall / 4)
			}
		},
		"credit for a block now and then": func(t *testing.T, s piping, x *rawConn, ch skep.Chain) {
			x.restoring(t, ch, blockSize)
			go func() { _, _ = io.Copy(io.Discard, x) }()
			for began := time.Now(); s.Stats().Sessions > 0 && time.Since(began) < time.Hour; {
				time.Sleep(s.limits.Stall - time.Second)
				x.send(t, frames.Header{Type: frames.TypeCredit}, &frames.Credit{Session: 1, Amount: blockSize}, "")
			}
		},
		"an answer now and then": func(t *testing.T, s piping, x *rawConn, ch skep.Chain) {
			go func() {
				for i := range uint64(32) {
					x.send(t, frames.Header{Type: frames.TypeNamespaces, Call: i}, nil, "")
				}
			}()
			for {
				if _, _, err := x.next(); err != nil {
					return
				}
				time.Sleep(s.limits.Stall - time.Second)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			piped(t, func(t *testing.T, s piping, dial func() *rawConn, ch skep.Chain) {
				x := dial()
				began := time.Now()
				read(t, s, x, ch)
				for s.Stats().Memory > 0 || s.Stats().Sessions > 0 {
					require.Less(t, time.Since(began), time.Hour)
					time.Sleep(time.Second)
				}
				lim := &s.limits
				require.LessOrEqual(t, time.Since(began), 2*lim.Stall+link.TimeOf(total, lim.Rate))
			})
		})
	}
}

// Who takes its bytes at the least rate is never ended, however long that takes, and however long others have waited.
func TestAReaderAtTheLeastRate(t *testing.T) {
	t.Parallel()
	piped(t, func(t *testing.T, s piping, dial func() *rawConn, ch skep.Chain) {
		x := dial()
		x.restoring(t, ch, frames.LeastWindow)
		got := 0
		for {
			h, err := x.l.Header(0)
			require.NoError(t, err)
			require.NotEqual(t, frames.TypeError, h.Type)
			require.NoError(t, x.l.Discard(uint64(h.Body)+uint64(h.Payload)))
			time.Sleep(link.TimeOf(int64(h.Body)+int64(h.Payload), s.limits.Rate))
			got += int(h.Payload)
			if h.Flags&frames.FlagLast != 0 {
				break
			}
			x.send(t, frames.Header{Type: frames.TypeCredit}, &frames.Credit{Session: 1, Amount: uint64(h.Payload)}, "")
		}
		require.Equal(t, 64*blockSize, got)
	})
}

// A restore of which everything was sent ends by itself, though its client forgets to end it.
func TestAForgottenSessionEnds(t *testing.T) {
	t.Parallel()
	piped(t, func(t *testing.T, s piping, dial func() *rawConn, ch skep.Chain) {
		x := dial()
		x.restoring(t, ch, 1<<30)
		go func() { _, _ = io.Copy(io.Discard, x) }()
		began := time.Now()
		for s.Stats().Sessions > 0 && time.Since(began) < 24*time.Hour {
			time.Sleep(time.Minute)
			x.send(t, frames.Header{Type: frames.TypePing, Call: 7}, nil, "")
		}
		require.LessOrEqual(t, time.Since(began), s.limits.Call+time.Minute)
		require.Zero(t, s.Stats().Memory)
		require.Equal(t, 1, s.Stats().Connections)
	})
}
