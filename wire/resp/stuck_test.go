package resp

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/storetest"
)

// stalled are n connections that ask for a key and read nothing.
func (f *fixture) stalled(n int, key string) {
	f.t.Helper()
	for range n {
		c := f.dial()
		require.NoError(f.t, c.Conn.(*net.TCPConn).SetReadBuffer(16<<10))
		c.send("GET", key)
	}
}

// writing is how many connections write a value.
func (f *fixture) writing() (n int) {
	for _, c := range f.server.connections() {
		c.stuck.mu.Lock()
		if !c.stuck.since.IsZero() {
			n++
		}
		c.stuck.mu.Unlock()
	}
	return n
}

// However a few readers take nothing of what they asked for, there is memory to send from for others.
func TestReadersThatTakeNothingLeaveRoom(t *testing.T) {
	t.Parallel()
	const readers = 8
	f := serve(t, nil, Options{SendBytes: 48 << 20, IOTimeout: time.Hour, ShedAfter: time.Millisecond, stuckAfter: time.Hour})
	c := f.dial()
	require.Equal(t, "+OK", c.do("SET", "large", string(randomBytes(40*pieceBytes))))
	value := randomBytes(8 * pieceBytes)
	require.Equal(t, "+OK", c.do("SET", "k", string(value)))
	f.stalled(readers, "large")
	storetest.Eventually(t, "each has begun", func() bool { return f.writing() == readers })
	for range 20 {
		require.Equal(t, quoted(value), c.do("GET", "k"))
	}
	assert.Equal(t, readers+1, f.server.count("default"), "nobody was cut off")
	assert.Zero(t, f.server.stats.shed.Load())
}

// When so many take nothing that there is no memory left, those who have taken nothing for long are cut off.
func TestReadersThatTakeNothingAreCutOff(t *testing.T) {
	t.Parallel()
	f := serve(t, nil, Options{SendBytes: MinSendBytes, IOTimeout: time.Hour, ShedAfter: 50 * time.Millisecond, stuckAfter: 2 * time.Second})
	c := f.dial()
	require.Equal(t, "+OK", c.do("SET", "large", string(randomBytes(40*pieceBytes))))
	value := randomBytes(2 * pieceBytes)
	require.Equal(t, "+OK", c.do("SET", "k", string(value)))
	f.stalled(40, "large")
	storetest.Eventually(t, "all memory is taken", func() bool { // or was, on a slow machine, before all had asked
		return f.server.o.SendBytes-f.server.Held().Sending < pieceBytes || f.server.stats.stuck.Load() > 0
	})
	storetest.Eventually(t, "it comes back", func() bool { return c.do("GET", "k") == quoted(value) })
	assert.Positive(t, f.server.stats.stuck.Load())
}
