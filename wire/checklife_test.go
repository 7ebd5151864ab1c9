package wire

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// A server need not speak while nothing is asked of it: a connection that was idle for an hour lives, and the first call
// after that has all its time.
func TestAnIdleConnectionIsNotSilent(t *testing.T) {
	t.Parallel()
	const silence = time.Minute
	x := &clientConn{dead: make(chan struct{}), pending: map[uint64]*pendingCall{}}
	x.heard.Store(nanos() - int64(time.Hour))
	x.checkLife(silence)
	assert.True(t, x.alive())
	assert.Less(t, time.Duration(nanos()-x.heard.Load()), silence/4, "the clock begins again for who calls next")

	lately := nanos() - int64(silence/3)
	x.heard.Store(lately)
	x.checkLife(silence)
	assert.Equal(t, lately, x.heard.Load(), "who spoke lately is left alone")
}
