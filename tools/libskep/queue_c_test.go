package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/wire/server"
)

// An engine in C waits in poll for what it has submitted; eight threads share a queue.
func TestQueuesInC(t *testing.T) {
	t.Parallel()
	inC(t, "queue.c", "each operation once")
}

// Blocks lie in pieces, go to a paged cache, come by layers, and have parts; operations of an older skep.h are done,
// too.
func TestQueuesOfPiecesInC(t *testing.T) {
	t.Parallel()
	inC(t, "pieces.c", "every piece, page, layer and part")
}

// inC has a program of testdata run with a store of its own, and with a server's.
func inC(t *testing.T, source, says string) {
	t.Helper()
	program := compiled(t, "testdata/"+source, built(t), "-lpthread", "-Wl,-rpath,"+filepath.Dir(built(t)))
	for name, args := range map[string][]string{"embedded": {t.TempDir()}, "server": {"unix:" + serving(t), token}} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(program, args...)
			cmd.Stderr = t.Output()
			out, err := cmd.Output()
			require.NoError(t, err)
			require.Equal(t, says+"\n", string(out))
		})
	}
}

// A queue outlives its server: what finds none ends, with a code, and what is submitted to the next one is done.
func TestAQueueOutlivesItsServer(t *testing.T) {
	t.Parallel()
	program := compiled(t, "testdata/queue.c", built(t), "-lpthread", "-Wl,-rpath,"+filepath.Dir(built(t)))
	st := memstore.New(memstore.Options{})
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	dir, err := os.MkdirTemp("", "skep")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	start := func() (stop func()) {
		l, err := net.Listen("unix", path)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- server.Serve(ctx, l, st, server.Options{}) }()
		return func() {
			cancel()
			<-ended
		}
	}
	stop := start()
	cmd := exec.CommandContext(t.Context(), program, "unix:"+path, "", "restart")
	cmd.Stderr = t.Output()
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	said := func(want string) {
		require.True(t, lines.Scan())
		require.Equal(t, want, lines.Text())
	}
	said("kill")
	stop()
	fmt.Fprintln(in, "killed")
	said("start")
	stop = start()
	defer func() { stop() }()
	fmt.Fprintln(in, "started")
	said("each operation once")
	require.NoError(t, cmd.Wait())
}
