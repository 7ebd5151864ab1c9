package consensus

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// text is what was written, for whoever asks meanwhile.
type text struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *text) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *text) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A node that stops, or hears that another one has, says nothing of its connections' ends.
func TestAConnectionThatEndsIsNoError(t *testing.T) {
	t.Parallel()
	var said text
	log := hclogOf(slog.New(slog.NewTextHandler(&said, nil)))
	log.Error("failed to decode incoming command", "error", "use of closed network connection")
	require.Empty(t, said.String())
	log.Error("something else")
	require.Contains(t, said.String(), "level=ERROR")
}

// A leader's log says once that a node is away, however long that takes, and once that it is back.
func TestANodeThatIsAwayIsToldOfOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		defer w.end(t)
		var said text // of the first node, which leads
		o := w.options(1)
		o.Found, o.Logger = mapOf(3), slog.New(slog.NewTextHandler(&said, nil))
		m, err := Open(o)
		require.NoError(t, err)
		w.nodes[1].m = m
		w.start(t, 2, nil)
		w.start(t, 3, nil)
		w.awaitVoters(t, 1, 2, 3)
		require.Equal(t, 1, w.awaitLeader(t))
		before := strings.Count(said.String(), "does not answer")
		w.stop(t, 2)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, before+1, strings.Count(said.String(), "does not answer"))
		require.Contains(t, said.String(), `does not answer" node=`+mapOf(3).Nodes[1].Name+" id=2")
		require.Less(t, strings.Count(said.String(), "\n"), 60)
		w.start(t, 2, nil)
		w.awaitVoters(t, 1, 2, 3)
		eventually(t, "it is said", func() bool { return strings.Contains(said.String(), "answers again") })
	})
}
