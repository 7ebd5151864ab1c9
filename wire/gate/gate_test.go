package gate

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/tools/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// Gates within one share it, and each keeps to its own limit besides.
func TestGatesWithinOne(t *testing.T) {
	t.Parallel()
	all := New(10, nil)
	one, two := New(7, all), New(7, all)
	require.True(t, one.Enter(7))
	assert.False(t, one.Enter(1), "its own limit")
	require.True(t, two.Enter(3))
	assert.False(t, two.Enter(1), "the limit of all")
	assert.Equal(t, 10, all.Used())
	assert.Equal(t, 3, two.Used(), "a refusal takes nothing")
	one.Leave(7)
	assert.True(t, two.Enter(4))
	assert.False(t, two.Enter(1))
	two.Leave(3)
	two.Leave(4)
	assert.Zero(t, all.Used()+one.Used()+two.Used())
	assert.EqualValues(t, 1, one.Refused())
	assert.EqualValues(t, 2, two.Accepted())
}

// A connection of several descriptors that finds no room takes none of them.
func TestARefusalTakesNothing(t *testing.T) {
	t.Parallel()
	all := New(3, nil)
	one := New(5, all)
	require.False(t, one.Enter(4))
	require.Zero(t, one.Used()+all.Used())
	require.False(t, one.Enter(6))
	require.True(t, one.Enter(3))
	one.Leave(3)
	require.Zero(t, one.Used()+all.Used())
}

// From many goroutines the limit holds at every moment.
func TestTheLimitHolds(t *testing.T) {
	t.Parallel()
	all := New(5, nil)
	var wg sync.WaitGroup
	var mu sync.Mutex
	in, most := 0, 0
	for range 8 {
		g := New(3, all)
		wg.Go(func() {
			for range 2000 {
				if g.Enter(1) {
					mu.Lock()
					in++
					most = max(most, in)
					in--
					mu.Unlock()
					g.Leave(1)
				}
			}
		})
	}
	wg.Wait()
	assert.LessOrEqual(t, most, 5)
	assert.Zero(t, all.Used())
}

// A connection too many is hung up on at once, and its place is free again when another ends.
func TestListenerRefusesQuickly(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g := New(2, nil)
	bounded := g.Listener(l)
	accepted := make(chan net.Conn, 8)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := bounded.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	dial := func() net.Conn {
		c, err := net.DialTimeout("tcp", l.Addr().String(), 10*time.Second)
		require.NoError(t, err)
		return c
	}
	a, b := dial(), dial()
	first, second := <-accepted, <-accepted
	for range 5 {
		c := dial()
		require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
		_, err := c.Read(make([]byte, 1))
		assert.ErrorIs(t, err, io.EOF, "closed, not left waiting")
		require.NoError(t, c.Close())
	}
	assert.EqualValues(t, 5, g.Refused())
	require.NoError(t, first.Close())
	_ = first.Close() // twice gives back once
	assert.Equal(t, 1, g.Used())
	c := dial()
	third := <-accepted
	assert.Equal(t, 2, g.Used())
	for _, c := range []net.Conn{a, b, c, second, third} {
		require.NoError(t, c.Close())
	}
	require.NoError(t, bounded.Close())
	<-ended
	assert.Zero(t, g.Used())
}
