package remote

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// A file appears when all of it is written, with what was there before until then; one that is not whole is removed.
func TestAFileAppearsWhole(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	names := func() (out []string) {
		list, err := os.ReadDir(dir)
		require.NoError(t, err)
		for _, e := range list {
			out = append(out, e.Name())
		}
		return out
	}
	write := func(text string, end error) error {
		f, err := createFile(path)
		require.NoError(t, err)
		_, err = f.WriteString(text)
		require.NoError(t, err)
		b, err := os.ReadFile(path)
		if err == nil {
			assert.Equal(t, "first", string(b))
		}
		return f.end(end)
	}
	broken := errors.New("broken off")
	require.ErrorIs(t, write("half", broken), broken)
	require.Empty(t, names())
	require.NoError(t, write("first", nil))
	require.ErrorIs(t, write("half", broken), broken)
	require.NoError(t, write("second", nil))
	require.Equal(t, []string{"out"}, names())
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "second", string(b))

	_, err = createFile(filepath.Join(dir, "none", "out"))
	require.ErrorIs(t, err, skep.Invalid)
	for _, dir := range []string{dir, dir + "/", filepath.Join(dir, "none") + "/", path + "/"} {
		_, err = createFile(dir)
		require.ErrorIs(t, err, skep.Invalid, dir)
		require.ErrorContains(t, err, "--to")
	}
	if null, err := createFile(os.DevNull); assert.NoError(t, err) { // which stays what it is
		require.NoError(t, null.end(nil))
	}
	require.Equal(t, []string{"out"}, names())
}

// A file that is there keeps its mode, and a link to it stays one; what a process has open is written where it is.
func TestAFileStaysWhatItIs(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("modes and links of files are others there")
	}
	dir := t.TempDir()
	real, link, chain := filepath.Join(dir, "real"), filepath.Join(dir, "link"), filepath.Join(dir, "d", "chain")
	require.NoError(t, os.WriteFile(real, []byte("first"), 0o640))
	require.NoError(t, os.Chmod(real, 0o600))
	require.NoError(t, os.Mkdir(filepath.Dir(chain), 0o700))
	require.NoError(t, os.Symlink("real", link))
	require.NoError(t, os.Symlink("../link", chain))
	write := func(path, text string) {
		f, err := createFile(path)
		require.NoError(t, err)
		_, err = f.WriteString(text)
		require.NoError(t, err)
		require.NoError(t, f.end(nil))
	}
	holds := func(path, text string) {
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, text, string(b))
	}
	write(chain, "second")
	holds(real, "second")
	for _, path := range []string{link, chain} {
		st, err := os.Lstat(path)
		require.NoError(t, err)
		require.NotZero(t, st.Mode()&os.ModeSymlink, path)
	}
	st, err := os.Stat(real)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), st.Mode().Perm())

	away := filepath.Join(dir, "away")
	require.NoError(t, os.Symlink("made", away))
	write(away, "new")
	holds(filepath.Join(dir, "made"), "new")
	require.NoError(t, os.Symlink(away+"2", away+"1"))
	require.NoError(t, os.Symlink(away+"1", away+"2"))
	_, err = createFile(away + "1")
	require.ErrorIs(t, err, skep.Invalid)

	if runtime.GOOS != "linux" {
		return
	}
	held, err := os.OpenFile(real, os.O_RDWR, 0)
	require.NoError(t, err)
	defer held.Close()
	write(fmt.Sprintf("/proc/self/fd/%d", held.Fd()), ", third")
	holds(real, "second, third")
	now, err := os.Stat(real)
	require.NoError(t, err)
	was, err := held.Stat()
	require.NoError(t, err)
	require.True(t, os.SameFile(was, now))
}

// A file that is there stays its owner's, also where root writes it.
func TestAFileStaysItsOwners(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" || os.Getuid() != 0 {
		t.Skip("only root gives files away")
	}
	path := filepath.Join(t.TempDir(), "out")
	require.NoError(t, os.WriteFile(path, []byte("first"), 0o640))
	require.NoError(t, os.Chown(path, 12, 34))
	was, err := os.Stat(path)
	require.NoError(t, err)
	f, err := createFile(path)
	require.NoError(t, err)
	require.NoError(t, f.end(nil))
	is, err := os.Stat(path)
	require.NoError(t, err)
	sys := reflect.ValueOf(is.Sys()).Elem() // this is compiled for Windows, too
	require.EqualValues(t, 12, sys.FieldByName("Uid").Uint())
	require.EqualValues(t, 34, sys.FieldByName("Gid").Uint())
	require.Equal(t, was.Mode(), is.Mode())
}

// Names of servers, as they may be written, and what is dialled then.
func TestNamesOfServers(t *testing.T) {
	t.Parallel()
	none := func(string) string { return "" }
	for name, addr := range map[string]string{
		"unix:///run/skep/skep.sock": "unix:/run/skep/skep.sock", "unix:kv/skep.sock": "unix:kv/skep.sock", "skep://host": "host:7420", "skep://host:1/": "host:1",
		"host": "host:7420", "10.0.0.1:7": "10.0.0.1:7", "skep://[::1]": "[::1]:7420", "skeps://host": "host:7420",
	} {
		target := Target{Server: name, Getenv: none}
		all, err := target.resolve()
		require.NoError(t, err, name)
		require.Len(t, all, 1)
		assert.Equal(t, addr, all[0].addr, name)
		assert.Equal(t, name == "skeps://host", all[0].secure != nil, name)
	}
	for _, name := range []string{"unix:", "unix://", "skep://", "skep://u@host", "skep://host/path", "skep://host?x", "http://host", "rediss://host", "ftp://host", "skep://host:x", "::1",
		"127.0.0.1:99999", "skep://host:65536", "skeps://[::1]:0", "a,", ",a", "a,,b", "a,b,a", "a,unix:", strings.Repeat("a,", 64) + "b"} {
		target := Target{Server: name, Getenv: none}
		_, err := target.resolve()
		require.ErrorIs(t, err, skep.Invalid, name)
		require.ErrorContains(t, err, "--server", name)
	}
	several := Target{Server: "unix:///run/s, skeps://b,c:1", Getenv: none}
	all, err := several.resolve()
	require.NoError(t, err)
	require.Len(t, all, 3)
	assert.Equal(t, []string{"unix:/run/s", "b:7420", "c:1"}, []string{all[0].addr, all[1].addr, all[2].addr})
	assert.Equal(t, []bool{false, true, false}, []bool{all[0].secure != nil, all[1].secure != nil, all[2].secure != nil})
	env := map[string]string{EnvServer: "skeps://of-the-environment,other", EnvToken: "its-token-0123456789"}
	target := Target{Getenv: func(name string) string { return env[name] }}
	require.True(t, target.Named())
	all, err = target.resolve()
	require.NoError(t, err)
	require.Len(t, all, 2)
	assert.Equal(t, "of-the-environment:7420", all[0].addr)
	assert.Equal(t, "other:7420", all[1].addr)
	assert.Equal(t, env[EnvToken], all[1].token)
	target = Target{Server: "skep://of-a-flag", Getenv: target.Getenv}
	all, err = target.resolve()
	require.NoError(t, err)
	assert.Equal(t, "of-a-flag:7420", all[0].addr, "a flag wins")
}

// Waiting ends with what waiting does not change, and goes on over what it may.
func TestWaitingForAServer(t *testing.T) {
	t.Parallel()
	away := &skep.Error{Kind: skep.Unavailable}
	answers := []error{away, away, nil}
	n := 0
	require.NoError(t, untilReady(t.Context(), time.Hour, func(context.Context) (bool, error) {
		err := answers[n]
		n++
		return err == nil, err
	}))
	require.Equal(t, 3, n)
	denied := &skep.Error{Kind: skep.Denied}
	require.ErrorIs(t, untilReady(t.Context(), time.Hour, func(context.Context) (bool, error) { return false, denied }), skep.Denied)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, untilReady(ctx, time.Hour, func(context.Context) (bool, error) { return false, away }), context.Canceled)
}

// A token that leaves the machine unencrypted is told of, before anything is sent.
func TestATokenInTheClearIsToldOf(t *testing.T) {
	t.Parallel()
	ctx, over := context.WithCancel(t.Context())
	over() // nobody is called
	for server, want := range map[string]bool{
		"skep://10.255.255.1": true, "skep://cache.example": true, "skep://[2001:db8::1]:7": true,
		"skeps://cache.example": false, "skep://127.0.0.1": false, "skep://localhost:1": false, "skep://[::1]": false, "unix:///skep.sock": false,
	} {
		for _, token := range []string{"", "a-token-0123456789"} {
			var said strings.Builder
			target := Target{Server: server, Err: &said, Getenv: func(name string) string { return map[string]string{EnvToken: token}[name] }}
			_, err := target.Dial(ctx, "test")
			require.Error(t, err)
			assert.Equal(t, want && token != "", strings.Contains(said.String(), server+" unencrypted"), "%s, token %q", server, token)
			assert.NotContains(t, said.String(), "0123456789")
		}
	}
}
