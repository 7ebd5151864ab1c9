//go:build unix

package link

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// Who waits to send descriptors to a peer that reads nothing waits no longer than its context.
func TestDescriptorsAreSentWithinTheContext(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	require.NoError(t, err)
	defer l.Close()
	c, err := net.Dial("unix", l.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	x := New(c, time.Minute, 1)
	full := func() bool { return x.now.write(make([]byte, 4096)) < 4096 }
	for !full() {
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 8 { // whether it has the turn or its context's end first is left to chance
		require.ErrorIs(t, x.SendFiles(ctx, make([]byte, 4096), nil), skep.Deadline)
	}
}
