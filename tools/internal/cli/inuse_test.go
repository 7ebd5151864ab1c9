//go:build unix

package cli_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/tools/internal/cli"
	"github.com/skepkv/skep/tools/internal/redistest"
)

// What looks after a store is asked of the server that has it open, by the same commands.
func TestAStoreInUseIsLookedAfter(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	s := serveUnder(t, ":", "--dir", dir, "--capacity", "256MiB", "--file-devices", "3", "--unix", "none")
	rc := redistest.New(redistest.Options{Addr: s.at["resp"]})
	for i := range 20 {
		require.NoError(t, rc.Set(t.Context(), fmt.Sprint("k", i), bytes.Repeat([]byte{byte(i)}, 1<<20), 0))
	}
	run := func(args ...string) string {
		var out, errs bytes.Buffer
		code := cli.Main(t.Context(), append(args, "--dir", dir), strings.NewReader(""), &out, &errs)
		require.Zero(t, code, "%v: %s%s", args, out.String(), errs.String())
		return out.String()
	}
	require.Regexp(t, `^[1-9]\d* blocks in .* 0 lost`, run("scrub"))
	require.Contains(t, run("scrub", "--dry-run", "--json"), `"dry_run": true`)
	require.Contains(t, run("compact", "--json"), `"dry_run": false`)
	for _, args := range [][]string{{"drain", "0"}, {"remove", "0"}, {"replace", "0", filepath.Join(dir, "new")}} {
		require.Contains(t, run(append(append([]string{"device"}, args...), "--dry-run")...), "nothing was changed", args)
		require.NotRegexp(t, `draining|removed|store/new\b`, run("device", "list"), args)
	}
	require.Contains(t, run("device", "drain", "0"), "store in use")
	require.Contains(t, run("device", "list"), "draining")
	require.Contains(t, run("device", "drain", "0", "--cancel"), "keep (of a store in use)")
	require.NotContains(t, run("device", "list"), "draining")
	for i := range 20 {
		b, err := rc.Get(t.Context(), fmt.Sprint("k", i))
		require.NoError(t, err)
		require.Equal(t, bytes.Repeat([]byte{byte(i)}, 1<<20), b)
	}
	require.Contains(t, run("namespace", "delete", "default", "resp/0", "--dry-run"), "would delete")
	require.NoError(t, rc.Ping(t.Context()))
	require.Contains(t, run("namespace", "delete", "default", "resp/0", "--yes"), "20 blocks")
	_, err := rc.Get(t.Context(), "k1")
	require.ErrorIs(t, err, redistest.ErrNil)
	require.NoError(t, rc.Set(t.Context(), "k1", "again", 0), "the next SET makes it anew")
	b, err := rc.Get(t.Context(), "k1")
	require.NoError(t, err)
	require.Equal(t, "again", string(b))
	require.NoError(t, rc.Close())
	s.stop()
	require.Contains(t, run("device", "drain", "0", "--cancel"), "keep", "it is in use as it is")
}

// A path is one from where the command is given: the server that has the store open is in another directory.
//
// Alone: the working directory is the process's.
func TestARelativePathIsTheCallers(t *testing.T) {
	dir, there, here := filepath.Join(t.TempDir(), "store"), t.TempDir(), t.TempDir()
	s := serveUnder(t, "cd '"+there+"'", "--dir", dir, "--capacity", "256MiB", "--file-devices", "2", "--unix", "none")
	t.Chdir(here)
	skepRun(t, "device", "add", "another", "--dir", dir, "--json").OK(t)
	require.FileExists(t, filepath.Join(here, "another"))
	require.NoFileExists(t, filepath.Join(there, "another"))
	skepRun(t, "device", "replace", "2", "yet another", "--dir", dir, "--json").OK(t)
	require.FileExists(t, filepath.Join(here, "yet another"))
	require.NoFileExists(t, filepath.Join(there, "yet another"))
	s.stop()
}
