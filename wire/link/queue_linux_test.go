package link

import (
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/wire/frames"
)

// What the other side takes of what was written long ago shows that it lives; what is written to it does not.
func TestWhatIsTakenOfTheQueueIsProgress(t *testing.T) {
	t.Parallel()
	at := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", at)
	require.NoError(t, err)
	defer listener.Close()
	c, err := net.Dial("unix", at)
	require.NoError(t, err)
	defer c.Close()
	other, err := listener.Accept()
	require.NoError(t, err)
	defer other.Close()
	l := New(c, time.Minute, frames.SlowestRate)
	before := l.Progress()
	for range 2 {
		_, err = c.Write(make([]byte, 16<<10))
		require.NoError(t, err)
		require.Equal(t, before, l.Progress(), "nobody has taken any of it")
	}
	_, err = io.ReadFull(other, make([]byte, 16<<10))
	require.NoError(t, err)
	now := l.Progress()
	require.Greater(t, now, before)
	require.Equal(t, now, l.Progress())
	require.NoError(t, c.Close())
	l.Progress()
	require.Zero(t, queued(&net.TCPConn{}))
}
