package resp

import (
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
)

// Little values that are put from the store's memory count for what they take of it: a page each.
func TestALittlePieceCountsAPage(t *testing.T) {
	t.Parallel()
	mem := memstore.New(memstore.Options{})
	defer mem.Close()
	var under atomic.Int64
	gate := make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	f := serve(t, &wrapped{Store: mem, put: func(*skep.PutRequest) ([]skep.PutResult, error) {
		under.Add(1)
		<-gate
		return nil, nil
	}}, Options{})
	defer open()
	args := []string{"MSET"}
	for i := range heldBytes / inlineBytes { // all that is kept of one command
		args = append(args, "large "+strconv.Itoa(i), strings.Repeat("v", inlineBytes))
	}
	const little = 64
	for i := range little {
		args = append(args, "little "+strconv.Itoa(i), "v")
	}
	c := f.dial()
	c.send(args...)
	storetest.Eventually(t, "all of them are being put", func() bool { return under.Load() == little })
	f.server.mu.Lock()
	require.Len(t, f.server.conns, 1)
	var command int64 // what is charged for the command itself
	for c := range f.server.conns {
		command = c.claimed
	}
	f.server.mu.Unlock()
	require.EqualValues(t, little*4096, f.server.Held().Receiving-command)
	open()
	require.Equal(t, "+OK", c.reply())
	require.Equal(t, `"v"`, c.do("GET", "little 7"))
	require.Zero(t, f.server.Held().Receiving)
}

// A store with more calls under way than it may have is an overload that passes: neither a miss, nor an error for good.
func TestAnOverloadedStoreIsToBeTriedAgain(t *testing.T) {
	t.Parallel()
	mem := memstore.New(memstore.Options{})
	defer mem.Close()
	var full atomic.Bool
	refuses := func() error {
		if full.Load() {
			return &skep.Error{Op: "store", Kind: skep.Overloaded, RetryAfter: 50 * time.Millisecond}
		}
		return nil
	}
	put := func(*skep.PutRequest) ([]skep.PutResult, error) { return nil, refuses() }
	f := serve(t, &wrapped{Store: mem, restore: func(*skep.RestoreRequest) error { return refuses() }, put: put}, Options{})
	c := f.dial()
	large := strings.Repeat("v", 2*inlineBytes)
	require.Equal(t, "+OK", c.do("SET", "small", "v"))
	require.Equal(t, "+OK", c.do("SET", "large", large))
	full.Store(true)
	for _, cmd := range [][]string{{"SET", "k", "v"}, {"SET", "k", large}, {"GET", "small"}, {"GET", "large"},
		{"MGET", "small", "large"}, {"STRLEN", "small"}} {
		said := c.do(cmd...)
		assert.Contains(t, said, "-TRYAGAIN", "%s %s", cmd[0], cmd[1])
		assert.Contains(t, said, "try again in 50ms", "%s %s", cmd[0], cmd[1])
	}
	full.Store(false)
	require.Equal(t, `"v"`, c.do("GET", "small"))
	require.Equal(t, quoted([]byte(large)), c.do("GET", "large"))
}
