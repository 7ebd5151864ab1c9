package admin

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// The socket is there for as long as it is served, and for nobody else; what another process left there
// is in nobody's way.
func TestSocket(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, Socket), nil, 0o644))
	type request struct{ N int }
	s, err := Listen(dir, Requests{
		Views: map[string]func(context.Context) (any, error){
			"one":  func(context.Context) (any, error) { return 1, nil },
			"none": func(context.Context) (any, error) { return nil, errors.New("not now") },
		},
		Calls: map[string]func(context.Context, []byte) any{
			"double": Call(func(_ context.Context, r request) (int, error) {
				if r.N < 0 {
					return r.N, skep.Invalidf("double", "n", r.N, "0 or more")
				}
				return 2 * r.N, nil
			}),
		},
		Known: "one or double",
	})
	require.NoError(t, err)
	if runtime.GOOS != "windows" {
		info, err := os.Stat(filepath.Join(dir, Socket))
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o600), info.Mode().Perm())
	}
	ctx := t.Context()
	var n int
	require.NoError(t, Ask(ctx, dir, "one", &n))
	require.Equal(t, 1, n)
	require.Error(t, Ask(ctx, dir, "none", &n), "it is not answered")
	var no map[string]string
	require.NoError(t, Ask(ctx, dir, "two", &no))
	require.Equal(t, "asked for two, must be one or double", no["error"])
	n, err = Do[int](ctx, dir, "double", request{21})
	require.NoError(t, err)
	require.Equal(t, 42, n)
	n, err = Do[int](ctx, dir, "double", request{-1})
	require.Equal(t, skep.Invalid, skep.KindOf(err))
	require.ErrorContains(t, err, "0 or more")
	require.Equal(t, -1, n, "as far as it went")
	_, err = Do[int](ctx, dir, "double", "no request")
	require.Equal(t, skep.Invalid, skep.KindOf(err))
	s.Close()
	require.Equal(t, skep.Missing, skep.KindOf(Ask(ctx, dir, "one", &n)))
	(*Server)(nil).Close()
}

// Who hangs up ends its call, and so does the end of the server.
func TestCallsEnd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	began, ended := make(chan struct{}), make(chan error, 1)
	s, err := Listen(dir, Requests{Calls: map[string]func(context.Context, []byte) any{
		"wait": func(ctx context.Context, _ []byte) any {
			began <- struct{}{}
			<-ctx.Done()
			ended <- ctx.Err()
			return nil
		},
	}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan error, 1)
	ask := func(ctx context.Context) {
		_, err := Do[int](ctx, dir, "wait", 0)
		asked <- err
	}
	go ask(ctx)
	<-began
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.Equal(t, skep.Deadline, skep.KindOf(<-asked))
	go ask(t.Context())
	<-began
	s.Close()
	require.ErrorIs(t, <-ended, context.Canceled)
	<-asked
}

// The socket is not open to other users, whatever its mode was when they connected.
func TestOtherUsersMayNotAsk(t *testing.T) {
	t.Parallel()
	require.True(t, userMay(1000, 1000))
	require.True(t, userMay(0, 1000))
	require.False(t, userMay(1001, 1000))
	require.False(t, userMay(1000, 0))
	ours, theirs := net.Pipe()
	defer func() { require.NoError(t, errors.Join(ours.Close(), theirs.Close())) }()
	if runtime.GOOS == "linux" {
		require.False(t, peerMay(ours), "nothing is known of who is at the other end")
	}
}
