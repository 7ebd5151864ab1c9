package kvevents

import (
	"bytes"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// hello is a greeting of ZMTP 3.minor with that mechanism.
func hello(minor byte, mechanism string) string {
	b := make([]byte, greetingBytes)
	b[0], b[9], b[10], b[11] = 0xff, 0x7f, 3, minor
	copy(b[12:], mechanism)
	return string(b)
}

func framed(flags byte, body string) string { return string([]byte{flags, byte(len(body))}) + body }

func ready(kind string) string {
	return framed(flagCommand, "\x05READY"+string(property("Socket-Type", kind)))
}

// Whoever connects has not said who it is. What does not keep to the protocol, or to its limits, is hung up on, and
// nobody else notices.
func TestStrangersAreHungUpOn(t *testing.T) {
	t.Parallel()
	st, n := memory(t, "a")
	w := start(t, st, Options{})
	c := w.subscriber("")
	c.replay0(w)
	many := ""
	for i := range maxSubscriptions + 1 {
		many += framed(0, "\x01"+strings.Repeat("x", i))
	}
	old, null := "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x01", hello(0, "NULL")
	sub, dealer := null+ready("SUB"), hello(1, "NULL")+ready("DEALER")
	more, number := framed(flagMore, ""), framed(0, "12345678")
	for name, s := range map[string]struct{ at, says string }{
		"it speaks HTTP":                     {w.pub, "GET / HTTP/1.1\r\nHost: " + strings.Repeat("x", 64) + "\r\n\r\n"},
		"ZMTP 2":                             {w.pub, old + strings.Repeat("\x00", 64)},
		"another mechanism":                  {w.pub, hello(0, "CURVE")},
		"no READY":                           {w.pub, hello(0, "NULL") + framed(0, "hello")},
		"an empty command":                   {w.pub, hello(0, "NULL") + framed(flagCommand, "")},
		"metadata that is not whole":         {w.pub, null + framed(flagCommand, "\x05READY\x0bSocket-Type\xff\xff\xff\xff")},
		"a socket of another type":           {w.pub, hello(0, "NULL") + ready("PULL")},
		"a subscriber that asks":             {w.again, sub},
		"a frame of 2^62 bytes":              {w.pub, sub + "\x02\x40\x00\x00\x00\x00\x00\x00\x00"},
		"a frame of 2^63 bytes":              {w.again, dealer + "\x02\x80\x00\x00\x00\x00\x00\x00\x00"},
		"a topic of 2 KiB":                   {w.pub, sub + "\x02\x00\x00\x00\x00\x00\x00\x08\x00"},
		"flags that nobody knows":            {w.pub, sub + framed(0x80, "")},
		"too many subscriptions":             {w.pub, sub + many},
		"a message without an end":           {w.again, dealer + strings.Repeat(framed(flagMore, ""), maxFrames+1)},
		"a command within a message":         {w.again, dealer + more + framed(flagCommand, "\x04PING\x00\x00")},
		"a command without a name":           {w.again, dealer + framed(flagCommand, "\x09PI")},
		"it reports an error":                {w.pub, sub + framed(flagCommand, "\x05ERROR\x00")},
		"a request without a delimiter":      {w.again, dealer + framed(0, "12345678")},
		"a request of more than a number":    {w.again, dealer + framed(flagMore, "") + framed(0, "123456789")},
		"a request that names a topic first": {w.again, dealer + more + framed(flagMore, "t") + number},
	} {
		before := w.p.count.refused.Load()
		conn, err := net.Dial("tcp", s.at)
		require.NoError(t, err, name)
		require.NoError(t, conn.SetDeadline(time.Now().Add(patience)), name)
		_, err = io.WriteString(conn, s.says)
		require.NoError(t, err, name)
		_, err = io.Copy(io.Discard, conn) // until it hangs up
		if err != nil {
			require.ErrorContains(t, err, "reset", name)
		}
		require.NoError(t, conn.Close(), name)
		require.Eventually(t, func() bool { return w.p.count.refused.Load() == before+1 }, patience, time.Millisecond, name)
	}
	put(t, n[0], 1)
	h := c.hear()
	for h.kinds()[0] == "AllBlocksCleared" { // the stream's first snapshot came after the subscription
		h = c.hear()
	}
	require.Equal(t, []uint64{1}, h.numbers(0))
}

// FuzzPeer: whatever a peer says, reading it ends in no panic, and allocates no more than the limits.
func FuzzPeer(f *testing.F) {
	for _, s := range []string{
		hello(0, "NULL") + ready("SUB") + framed(0, "\x01kv@") + framed(0, "\x00kv@"),
		hello(1, "NULL") + ready("SUB") + framed(flagCommand, "\x09SUBSCRIBEkv@") +
			framed(flagCommand, "\x06CANCELkv@") + framed(flagCommand, "\x04PING\x00\x00x"),
		hello(1, "NULL") + ready("SUB") + "\x02\x40\x00\x00\x00\x00\x00\x00\x00",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		p, err := greet(&said{r: bytes.NewReader(in)}, "PUB", "SUB")
		if err != nil {
			return
		}
		subs := &subscriptions{want: map[string]int{}}
		require.Error(t, subscribe(p, subs), "it ends with what is said")
		require.LessOrEqual(t, len(subs.want), maxSubscriptions)
	})
}

// said is a connection whose peer says that and nothing more.
type said struct {
	net.Conn
	r io.Reader
}

func (s *said) Read(b []byte) (int, error)       { return s.r.Read(b) }
func (s *said) Write(b []byte) (int, error)      { return len(b), nil }
func (s *said) SetDeadline(time.Time) error      { return nil }
func (s *said) SetWriteDeadline(time.Time) error { return nil }
