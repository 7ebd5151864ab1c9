package resp

import (
	"bufio"
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/wire/auth"
)

// piped is a server in a bubble of time, and what dials it.
func piped(t *testing.T, o Options) (dial func() *client) {
	st := memstore.New(memstore.Options{})
	s, err := New(st, o)
	require.NoError(t, err)
	var open []net.Conn
	t.Cleanup(func() {
		for _, c := range open {
			c.Close()
		}
		require.NoError(t, s.Shutdown(context.Background()))
		require.NoError(t, st.Close())
	})
	return func() *client {
		c := pipedTo(t, s)
		open = append(open, c)
		return c
	}
}

// pipedTo is a connection to s that buffers nothing.
func pipedTo(t *testing.T, s *Server) *client {
	here, there := net.Pipe()
	s.begin(there, false)
	return &client{t, here, bufio.NewReader(here)}
}

// Who has not said who it is has ten seconds, however it spends them: saying nothing, beginning a command with the end
// of each it sends, a byte at a time, or taking no reply.
func TestStrangersHaveTenSeconds(t *testing.T) {
	t.Parallel()
	for name, spend := range map[string]func(c *client) error{
		"nothing": func(c *client) error {
			_, err := c.tryReply()
			return err
		},
		"the next command begins with each": func(c *client) error {
			go io.Copy(io.Discard, c.Conn)
			if _, err := io.WriteString(c, "*1\r\n$4\r\nPING\r\n*1"); err != nil {
				return err
			}
			for {
				if _, err := io.WriteString(c, "\r\n$4\r\nPING\r\n*1"); err != nil {
					return err
				}
				time.Sleep(time.Second)
			}
		},
		"a byte at a time": func(c *client) error {
			for {
				if _, err := io.WriteString(c, "x"); err != nil {
					return err
				}
				time.Sleep(time.Second)
			}
		},
		"no reply is taken": func(c *client) error {
			for {
				if _, err := c.Write(encode("PING")); err != nil {
					return err
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, err := auth.New([]auth.Credential{credential(t, "a", tokenOwner, auth.All)}, nil, nil)
				require.NoError(t, err)
				c := piped(t, Options{Auth: d})()
				ended := make(chan error, 1)
				begin := time.Now()
				go func() { ended <- spend(c) }()
				select {
				case <-ended:
				case <-time.After(time.Hour):
				}
				assert.LessOrEqual(t, time.Since(begin), strangerTimeout+time.Second)
			})
		})
	}
}

// Who was somebody and resets the connection has ten seconds again.
func TestResetLeavesTimeForAuth(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, err := auth.New([]auth.Credential{credential(t, "a", tokenOwner, auth.All)}, nil, nil)
		require.NoError(t, err)
		c := piped(t, Options{Auth: d})()
		require.Equal(t, "+OK", c.do("AUTH", tokenOwner))
		time.Sleep(time.Minute)
		require.Equal(t, "+RESET", c.do("RESET"))
		time.Sleep(strangerTimeout - time.Second)
		require.Equal(t, "+OK", c.do("AUTH", tokenOwner))
		time.Sleep(time.Minute)
		require.Equal(t, "+PONG", c.do("PING"))
	})
}
