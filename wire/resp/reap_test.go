package resp

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
)

// unreadable is a store of which nothing can be read while the switch is on.
func unreadable(t *testing.T) (skep.Store, *atomic.Bool) {
	mem := memstore.New(memstore.Options{})
	t.Cleanup(func() { require.NoError(t, mem.Close()) })
	var on atomic.Bool
	return &wrapped{Store: mem, restore: func(*skep.RestoreRequest) error {
		if on.Load() {
			return &skep.Error{Kind: skep.Overloaded}
		}
		return nil
	}}, &on
}

// A key that was seen to have expired, and was set anew since, stays: its turn to be deleted comes, and it has not expired.
func TestWhatWasSetAnewHasNotExpired(t *testing.T) {
	t.Parallel()
	clock := newClock()
	f := serve(t, memstore.New(memstore.Options{}), Options{Clock: clock.read})
	c := f.dial()
	expire := func() {
		f.server.reap.expire(t.Context(), f.server.database(f.server.tenantOf("default"), 0), []byte("k"))
	}
	for _, anew := range []string{"SET k new", "SET k new EX 100"} {
		require.Equal(t, "+OK", c.words("SET k old EX 100"))
		clock.advance(101 * time.Second)
		require.Equal(t, "+OK", c.words(anew))
		expire()
		require.Equal(t, `"new"`, c.words("GET k"))
	}
	clock.advance(101 * time.Second)
	expire()
	require.Equal(t, "nil", c.words("GET k"))
}

// A key that was seen to have expired, and was set anew since, stays when it cannot be read as its turn to be deleted
// comes. What a client deletes goes unread.
func TestWhatCannotBeReadHasNotExpired(t *testing.T) {
	t.Parallel()
	st, off := unreadable(t)
	f := serve(t, st, Options{})
	c := f.dial()
	require.Equal(t, "+OK", c.words("SET k new"))
	off.Store(true)
	f.server.reap.expire(t.Context(), f.server.database(f.server.tenantOf("default"), 0), []byte("k"))
	off.Store(false)
	require.Equal(t, `"new"`, c.words("GET k"))

	off.Store(true)
	assert.Equal(t, "1", c.words("DEL k"))
	off.Store(false)
	assert.Equal(t, "nil", c.words("GET k"))
}

// SET with KEEPTTL of a key whose expiry cannot be read is refused: value and expiry stay.
func TestAnExpiryThatCannotBeReadIsNotDropped(t *testing.T) {
	t.Parallel()
	st, off := unreadable(t)
	c := serve(t, st, Options{Clock: newClock().read}).dial()
	require.Equal(t, "+OK", c.words("SET k first EX 100"))
	off.Store(true)
	assert.Regexp(t, "^-", c.words("SET k second KEEPTTL"))
	assert.Equal(t, "+OK", c.words("SET none v KEEPTTL"), "there is nothing to keep")
	off.Store(false)
	assert.Equal(t, `"first"`, c.words("GET k"))
	assert.Equal(t, "100", c.words("TTL k"))
	assert.Equal(t, "+OK", c.words("SET k second KEEPTTL"))
	assert.Equal(t, "100", c.words("TTL k"))
}
