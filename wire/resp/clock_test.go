package resp

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
)

// The machine's clock is set by hours in both directions under a server: keys live as long as
// they were given, and what has expired stays expired.
func TestClockStepsAndKeys(t *testing.T) {
	t.Parallel()
	clock := newClock()
	wall := storetest.NewSteppingClock(1, clock.read)
	c := serve(t, nil, Options{Clock: clock.read, Wall: wall.Read}).dial()
	require.Equal(t, "+OK", c.do("SET", "kept", "v"))
	for i := range 200 {
		key := "k" + strconv.Itoa(i)
		require.Equal(t, "+OK", c.do("SET", key, "v", "EX", "3600"))
		require.Equal(t, "3600", c.do("TTL", key))
		require.Equal(t, `"v"`, c.do("GET", key))
		clock.advance(3600 * time.Second)
		require.Equal(t, "nil", c.do("GET", key))
		require.Equal(t, "-2", c.do("TTL", key))
		require.Equal(t, `"v"`, c.do("GET", "kept"))
	}
	require.Positive(t, wall.Steps())
}

// A moment that a client names is one of the machine's clock, also where that has been set
// since the server began; and it is the same moment when it is asked for.
func TestClockStepsAndMoments(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{0, 7 * time.Hour, -7 * time.Hour, 300 * time.Millisecond} {
		clock := newClock()
		wall := func() time.Time { return clock.read().Add(ahead) }
		mem := memstore.New(memstore.Options{Clock: clock.read})
		t.Cleanup(func() { require.NoError(t, mem.Close()) })
		c := serve(t, mem, Options{Clock: clock.read, Wall: wall}).dial()
		at := strconv.FormatInt(wall().Add(time.Hour).Unix(), 10)
		require.Equal(t, "+OK", c.do("SET", "a", "v", "EXAT", at))
		require.Equal(t, "+OK", c.do("SET", "b", "v"))
		require.Equal(t, "1", c.do("EXPIREAT", "b", at))
		require.Equal(t, "+OK", c.do("SET", "past", "v"))
		require.Equal(t, "1", c.do("EXPIREAT", "past", strconv.FormatInt(wall().Add(-time.Minute).Unix(), 10)))
		require.Equal(t, "nil", c.do("GET", "past"))
		require.Equal(t, "3600", c.do("TTL", "a"))
		require.Equal(t, "3600", c.do("TTL", "b"))
		clock.advance(59 * time.Minute)
		require.Equal(t, `"v"`, c.do("GET", "a"))
		clock.advance(2 * time.Minute)
		require.Equal(t, "nil", c.do("GET", "a"))
		require.Equal(t, "nil", c.do("GET", "b"))
		require.Equal(t, "-ERR invalid expire time in 'set' command", c.do("SET", "c", "v", "EXAT", "9223372036854775807"))
	}
}
