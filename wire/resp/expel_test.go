package resp

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/wire/auth"
)

// A connection ends with its credential: one that waits for a command, one whose client sends half of one, and one that
// takes nothing of a large value. One that has become somebody else meanwhile goes on.
func TestConnectionsEndWithTheirCredential(t *testing.T) {
	t.Parallel()
	engine, reader := credential(t, "a", tokenOwner, auth.All), credential(t, "a", tokenReader, auth.Read)
	d, err := auth.New([]auth.Credential{engine, reader}, nil, nil)
	require.NoError(t, err)
	f := serve(t, nil, Options{Auth: d})
	login := func(token string) *client {
		c := f.dial()
		require.Equal(t, "+OK", c.do("AUTH", token))
		return c
	}
	waits, half, takesNothing, changed, stays := login(tokenOwner), login(tokenOwner), login(tokenOwner), login(tokenOwner), login(tokenReader)
	require.Equal(t, "+OK", waits.do("SET", "k", string(bytes.Repeat([]byte("v"), 64<<20))))
	_, err = half.Write([]byte("*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$1000000\r\nabc"))
	require.NoError(t, err)
	takesNothing.send("GET", "k")
	first := make([]byte, 64)
	_, err = io.ReadFull(takesNothing.r, first)
	require.NoError(t, err)
	require.Equal(t, "+OK", changed.do("AUTH", tokenReader))

	require.NoError(t, d.Replace([]auth.Credential{reader}, nil))
	require.Eventually(t, func() bool { return len(f.server.connections()) == 2 }, time.Minute, time.Millisecond)
	_, err = waits.tryReply()
	require.Error(t, err)
	for _, c := range []*client{changed, stays} {
		require.Equal(t, "+PONG", c.do("PING"))
	}
}
