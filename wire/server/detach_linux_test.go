package server

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/shm"
)

// A detach whose time is over as the memory is let go of ends, and with it the wait of all others for the region.
func TestADetachThatIsLateAndFreeEnds(t *testing.T) {
	t.Parallel()
	st := memstore.New(memstore.Options{})
	defer st.Close()
	srv, err := New(st, Options{})
	require.NoError(t, err)
	fd, err := unix.MemfdCreate("detach", 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Ftruncate(fd, 1<<20))
	over, cancel := context.WithCancel(t.Context())
	cancel()
	var body frames.Coder
	(&frames.Number{N: 7}).Walk(&body)
	for range 40 { // the call's end and the memory's are there at once: which one is seen is chance
		mem, err := shm.Map(fd, 0, 1<<20)
		require.NoError(t, err)
		g := &region{s: srv, holds: 1, shared: srv.shared.Of(&auth.Tenant{}),
			files: map[uint64]*attached{7: {number: 7, mem: mem}}}
		carry, err := prepareDetachMemory(&request{x: &serverConn{s: srv, region: g},
			h: frames.Header{Type: frames.TypeDetachMemory}, body: body.Body})
		require.NoError(t, err)
		ended := make(chan error, 1)
		go func() {
			_, err := carry(over)
			ended <- err
		}()
		require.Eventually(t, func() bool { return len(ended) == 1 }, time.Minute, time.Millisecond,
			"it waits for a lock that it has")
		require.NoError(t, <-ended)
		require.Empty(t, g.files)
	}
}
