package resp

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/redcon"

	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/wire/auth"
)

func ioReadFull(r io.Reader, b []byte) (int, error) { return io.ReadFull(r, b) }

// seeds are what peers may send: the scripts' commands and mistakes.
func seeds(f *testing.F) {
	for _, s := range []string{
		"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nhello\r\n", "PING\r\n", "SET a b\r\nGET a\r\n",
		"*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nINFO\r\n", "*0\r\n", "*-1\r\n", "\r\n", "*1\r\n$-2\r\n", "*99999999999\r\n", "*1\r\n$536870913\r\n",
		"*5\r\n$4\r\nMSET\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\nb\r\n$1\r\n2\r\n", "*2\r\n$4\r\nSCAN\r\n$1\r\n0\r\n", "$3 GET\r\n", "*1\r\n:1\r\n",
		"*5\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n$2\r\nEX\r\n$1\r\n9\r\n*2\r\n$3\r\nTTL\r\n$1\r\nk\r\n", "*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n",
	} {
		f.Add([]byte(s))
	}
	files, err := filepath.Glob("testdata/*.resp")
	require.NoError(f, err)
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(f, err)
		var all []byte
		for _, line := range bytes.Split(text, []byte("\n")) {
			if cmd, ok := bytes.CutPrefix(line, []byte("> ")); ok {
				var args []string
				for _, a := range bytes.Fields(cmd) {
					args = append(args, string(a))
				}
				all = append(all, encode(args...)...)
			}
		}
		f.Add(all)
	}
}

// FuzzParser: no panic, and no more memory than the limits say, whatever is announced.
func FuzzParser(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, in []byte) {
		for _, stranger := range []bool{true, false} {
			r := bufio.NewReaderSize(bytes.NewReader(in), readBuffer)
			p := parser{r: r, stranger: stranger}
			p.take = func(n int64) (*value, error) {
				k, err := io.CopyN(io.Discard, r, n)
				return &value{size: k}, err
			}
			limit := MaxArgBytes
			if stranger {
				limit = strangerArgBytes
			}
			for {
				p.buffered("GET", "EXISTS")
				p.next("SET")
				cmd, err := p.read()
				if cap(p.buf) > 2*limit+2*readBuffer || len(cmd.args) > MaxArgs {
					t.Fatalf("%d bytes and %d arguments held", cap(p.buf), len(cmd.args))
				}
				if err != nil {
					break
				}
				if i := indexOfNil(cmd.args); i == 0 || i > 0 && stranger {
					t.Fatalf("argument %d is a value", i)
				}
			}
		}
	})
}

func indexOfNil(args [][]byte) int {
	for i, a := range args {
		if a == nil {
			return i
		}
	}
	return -1
}

// FuzzConn: a whole server in front of a memory store takes anything and goes on.
func FuzzConn(f *testing.F) {
	seeds(f)
	d, err := auth.New(nil, nil, nil)
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, in []byte) {
		st := memstore.New(memstore.Options{CapacityBytes: 64 << 20})
		defer st.Close()
		s, err := New(st, Options{Auth: d, OpTimeout: 2 * time.Second, IOTimeout: 2 * time.Second})
		require.NoError(t, err)
		ours, theirs := net.Pipe()
		s.begin(theirs, false)
		go func() {
			_ = ours.SetDeadline(time.Now().Add(5 * time.Second))
			_, _ = ours.Write(in)
			_, _ = ours.Write(encode("QUIT"))
			ours.Close()
		}()
		_, _ = io.Copy(io.Discard, ours)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(t, s.Shutdown(ctx))
	})
}

// FuzzLockstep: whatever a lockstep connection sends, no reply is an error.
func FuzzLockstep(f *testing.F) {
	seeds(f)
	for _, s := range []string{
		"*2\r\n$6\r\nEXISTS\r\n$1\r\nk\r\n*1\r\n$6\r\nEXISTS\r\n", "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2\r\nab\r\n*1\r\n$3\r\nGET\r\n", "AUTH x\r\nEXISTS k\r\n",
		"SET k 12345678901\r\nGET x\r\nGET k\r\n", "SET k v NX\r\nSET k v NX\r\n", "HELLO 3\r\nSET k v\r\nSET k v NX\r\n", "*2\r\n$6\r\nEXISTS\r\n$70000\r\n",
	} {
		f.Add([]byte(s))
	}
	d, err := auth.New(nil, nil, nil)
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, in []byte) {
		st := memstore.New(memstore.Options{CapacityBytes: 1 << 20})
		defer st.Close()
		s, err := New(st, Options{Auth: d, OpTimeout: 2 * time.Second, IOTimeout: 2 * time.Second, lockstepWait: time.Millisecond})
		require.NoError(t, err)
		ours, theirs := net.Pipe()
		s.begin(theirs, true)
		go func() {
			_ = ours.SetDeadline(time.Now().Add(5 * time.Second))
			_, _ = ours.Write(in)
			_, _ = ours.Write([]byte("\r\n"))
			_, _ = ours.Write(bytes.Join([][]byte{encode("SET", "k", "0123456789"), encode("EXISTS", "k"), encode("GET", "k"), encode("QUIT")}, nil))
		}()
		c := &client{t, ours, bufio.NewReader(ours)}
		for {
			first, err := c.r.Peek(1)
			if err != nil {
				break
			}
			require.NotEqual(t, byte('-'), first[0], "an error")
			if _, err := c.tryReply(); err != nil {
				break
			}
		}
		ours.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(t, s.Shutdown(ctx))
	})
}

// FuzzHead: what decodes encodes to the same bytes.
func FuzzHead(f *testing.F) {
	f.Add((&head{key: []byte("k"), size: 3, inline: []byte("abc")}).encode())
	f.Add((&head{key: []byte("k"), size: 3 << 20, id: ids(), piece: pieceBytes, expiry: 1}).encode())
	f.Fuzz(func(t *testing.T, in []byte) {
		h, err := decodeHead(in)
		if err != nil {
			return
		}
		if n := h.pieces(); n < 0 || n > MaxValueBytes/4096+1 {
			t.Fatalf("%d pieces", n)
		}
		in[1], in[2], in[3] = 0, 0, 0 // reserved, and not looked at
		require.Equal(t, in, h.encode())
	})
}

// TestRedconsReaderPanics is why its reader is not used. When this fails, look again.
func TestRedconsReaderPanics(t *testing.T) {
	t.Parallel()
	require.Panics(t, func() { _, _, _, _, _ = redcon.ReadNextCommand([]byte("*1\r\n$-2\r\n"), nil) })
}
