package redistest

import (
	"bufio"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// scripted answers what it is sent with lines of its own, each connection with its list, and tells what came first.
func scripted(t *testing.T, answers ...[]string) (addr string, asked <-chan string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	said := make(chan string, 100)
	go func() {
		for _, list := range answers {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r := bufio.NewReader(c)
			for _, a := range list {
				var n int
				if line, err := r.ReadString('\n'); err == nil {
					n = int(line[1] - '0')
				}
				for i := range n {
					_, _ = r.ReadString('\n')
					word, _ := r.ReadString('\n')
					if i == 0 {
						said <- word[:len(word)-2]
					}
				}
				_, _ = io.WriteString(c, a)
			}
			c.Close()
		}
	}()
	return l.Addr().String(), said
}

func TestReplies(t *testing.T) {
	t.Parallel()
	addr, _ := scripted(t, []string{"+OK\r\n", "+PONG\r\n", "$-1\r\n", "$2\r\nab\r\n", ":7\r\n", "*2\r\n$1\r\n0\r\n*2\r\n$1\r\na\r\n$-1\r\n", "-ERR no\r\n", "$1\r\nx\r\n"})
	c := New(Options{Addr: addr, Password: "p"})
	defer c.Close()
	ctx := t.Context()
	require.NoError(t, c.Ping(ctx))
	_, err := c.Get(ctx, "k")
	require.ErrorIs(t, err, ErrNil)
	b, err := c.Get(ctx, "k")
	require.NoError(t, err)
	assert.Equal(t, "ab", string(b))
	n, err := c.Int(ctx, "DBSIZE")
	require.NoError(t, err)
	assert.EqualValues(t, 7, n)
	list, err := c.Do(ctx, "SCAN", 0)
	require.NoError(t, err)
	assert.Equal(t, []any{[]byte("0"), []any{[]byte("a"), nil}}, list)
	var said Error
	require.ErrorAs(t, c.Set(ctx, "k", "v", time.Second), &said)
	assert.Equal(t, "ERR no", said.Error())
	b, err = c.Get(ctx, "k")
	require.NoError(t, err, "an error that the server answers leaves the connection")
	assert.Equal(t, "x", string(b))
}

func TestRefusedForNowAndHungUp(t *testing.T) {
	t.Parallel()
	addr, asked := scripted(t, []string{"-TRYAGAIN soon\r\n", "+OK\r\n", "$5\r\nha"}, []string{"-ERR wrong password\r\n"}, []string{"+OK\r\n", "+PONG\r\n"})
	c := New(Options{Addr: addr, Retries: 1})
	defer c.Close()
	ctx := t.Context()
	require.NoError(t, c.Set(ctx, "k", []byte{1}, 0), "it is asked again")
	_, err := c.Get(ctx, "k")
	require.Error(t, err)
	require.False(t, errors.Is(err, ErrNil))
	c.o.Password = "p"
	require.Error(t, c.Ping(ctx), "over a connection of its own, which does not let it in")
	require.NoError(t, c.Ping(ctx))
	for _, want := range []string{"SET", "SET", "GET", "AUTH", "AUTH", "PING"} {
		assert.Equal(t, want, <-asked)
	}
}
