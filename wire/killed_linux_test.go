package wire

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/server"
)

// stuck is a Store whose restores never end.
type stuck struct{ skep.Store }

func (stuck) Restore(context.Context, *skep.RestoreRequest) (skep.Session, error) { select {} }

// A server is killed while a restore is under way. What it had of the client's memory, and of a file that was attached,
// is the client's again some time after its process has ended, although no server takes the memory anew.
func TestWhatAKilledServerHadIsGivenBack(t *testing.T) {
	t.Parallel()
	if os.Getenv("SKEP_TEST_KILLED") != "" { // the server
		r := serve(t, "unix", stuck{newMemstore(storetest.Config{})}, server.Options{})
		os.Stdout.WriteString("addr " + r.addr + "\n")
		select {}
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), "SKEP_TEST_KILLED=1", "TMPDIR="+t.TempDir())
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer cmd.Wait()
	defer cmd.Process.Kill()
	lines := bufio.NewScanner(out)
	require.True(t, lines.Scan())
	o := Options{Addr: strings.TrimPrefix(lines.Text(), "addr "), Token: operator, SharedMemory: 8 << 20, Conns: 1,
		Retries: -1}
	c, err := Dial(t.Context(), o)
	require.NoError(t, err)
	defer c.Close()
	c.shared.rest = time.Hour

	_, own := inMemory(t, 1<<20)
	a, err := c.AttachFound(t.Context(), own)
	require.NoError(t, err)
	lent, err := c.Alloc(t.Context(), 16*blockSize)
	require.NoError(t, err)
	ch := chainOf(t, c, "t", 16)
	for _, mem := range [][]byte{lent.Bytes(), own[:16*blockSize]} {
		ch.Dest = skep.Destination{Memory: mem, Stride: blockSize}
		soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		s, err := c.Restore(soon, &skep.RestoreRequest{Chains: []skep.Chain{ch}})
		cancel()
		if err == nil {
			soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			require.ErrorIs(t, s.Close(soon), skep.NotReleased)
			cancel()
		}
	}
	lent.Release()
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	<-c.slots[0].conn.stopped
	require.ErrorIs(t, a.Detach(t.Context()), skep.NotReleased, "a drive may be at it yet")
	require.NotZero(t, c.Withheld())
	c.shared.mu.Lock()
	c.shared.rest = 0
	c.shared.mu.Unlock()
	// A session is over a moment after its connection.
	given := func() bool { return a.Detach(t.Context()) == nil && c.Withheld() == 0 }
	require.Eventually(t, given, time.Minute, time.Millisecond)
}
