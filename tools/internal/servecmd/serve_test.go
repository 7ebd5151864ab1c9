package servecmd

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/tools/internal/command"
)

// A server that cannot start ends with 2 where its settings are wrong, which starting again does not mend, and with 4
// where the next start may find it well: skep.service has systemd try the one and not the other.
func TestAServerThatCannotStartSaysWhetherToTryAgain(t *testing.T) {
	t.Parallel()
	skep := command.Program{Name: "skep", Commands: func(a *command.App) []*cobra.Command { return []*cobra.Command{New(a)} }}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	locked, missing := t.TempDir(), t.TempDir()
	st, err := store.Open(t.Context(), store.Options{Dir: locked, DeviceCount: 1, CapacityBytes: 64 << 20, IOBytes: 64 << 20, CacheBytes: -1})
	require.NoError(t, err)
	defer st.Close()
	gone, err := store.Open(t.Context(), store.Options{Dir: missing, DeviceCount: 1, CapacityBytes: 64 << 20, IOBytes: 64 << 20, CacheBytes: -1})
	require.NoError(t, err)
	require.NoError(t, gone.Close())
	require.NoError(t, os.Remove(filepath.Join(missing, "device-0")))
	wrong := filepath.Join(t.TempDir(), "skep.yaml")
	require.NoError(t, os.WriteFile(wrong, []byte("nope: 1\n"), 0o600))

	for what, c := range map[string]struct {
		code int
		args []string
	}{
		"a flag there is not":       {2, []string{"--dir", t.TempDir(), "--nope"}},
		"a value that is none":      {2, []string{"--dir", t.TempDir(), "--capacity", "much"}},
		"a cap too small":           {2, []string{"--dir", t.TempDir(), "--capacity", "1"}},
		"a setting there is not":    {2, []string{"--dir", t.TempDir(), "--config", wrong}},
		"a file that is not there":  {2, []string{"--dir", t.TempDir(), "--config", wrong + "x"}},
		"an address in use":         {4, []string{"--dir", t.TempDir(), "--http", taken.Addr().String()}},
		"a store somebody has open": {4, []string{"--dir", locked}},
		"a device that is missing":  {4, []string{"--dir", missing}},
	} {
		args := append([]string{"serve", "--listen", "none", "--resp", "none", "--unix", "none", "--http", "127.0.0.1:0", "--dram", "0"}, c.args...)
		var out, errs bytes.Buffer
		code := skep.Main(context.Background(), args, strings.NewReader(""), &out, &errs)
		assert.Equal(t, c.code, code, "%s: %s", what, errs.String())
	}
	assert.True(t, errors.Is(asPassing(syscall.EADDRINUSE), syscall.EADDRINUSE))
	unit, err := os.ReadFile("../../deploy/skep.service")
	require.NoError(t, err)
	assert.Contains(t, string(unit), "RestartPreventExitStatus=2\n")
}

// What skep config show prints is a file that skep config check finds in order, and that means the same; all that is wrong
// with one is named at once, with exit code 2.
func TestSettingsAreShownAndChecked(t *testing.T) {
	t.Parallel()
	skep := command.Program{Name: "skep", Commands: func(a *command.App) []*cobra.Command { return []*cobra.Command{New(a), Config(a)} }}
	run := func(args ...string) (int, string, string) {
		var out, errs bytes.Buffer
		code := skep.Main(context.Background(), args, strings.NewReader(""), &out, &errs)
		return code, out.String(), errs.String()
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "skep.yaml")
	code, shown, errs := run("config", "show", "--dir", dir, "--capacity", "2TB", "--dram", "0")
	require.Zero(t, code, errs)
	require.Contains(t, shown, "capacity_bytes: 2TB")
	require.NoError(t, os.WriteFile(file, []byte(shown), 0o600))
	code, said, errs := run("config", "check", file)
	require.Zero(t, code, errs)
	require.Contains(t, said, "in order")
	code, again, errs := run("config", "show", "--config", file)
	require.Zero(t, code, errs)
	require.Equal(t, shown, again)

	code, old, errs := run("serve", "--print-config", "--config", file)
	require.Zero(t, code)
	require.Equal(t, shown, old)
	require.Contains(t, errs, "skep config show", "the older form says the new one")

	require.NoError(t, os.WriteFile(file, []byte("dir: "+dir+"\nnope: 1\nstore:\n  capacity_bytes: much\n  policy: best\n"), 0o600))
	code, _, errs = run("config", "check", file)
	require.Equal(t, 2, code)
	for _, wrong := range []string{"nope", "much", "best"} {
		require.Contains(t, errs, wrong)
	}
	code, _, errs = run("config", "check")
	require.Equal(t, 2, code, errs)
}

// A store was given another drive than its settings name: to check the settings says which it has. A drive is known by
// what is written on it, whatever leads to it.
func TestCheckSaysThatSettingsNameOtherDrives(t *testing.T) {
	t.Parallel()
	program := command.Program{Name: "skep"}
	program.Commands = func(a *command.App) []*cobra.Command { return []*cobra.Command{Config(a)} }
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	check := func(devices string) string {
		require.NoError(t, os.WriteFile(at("skep.yaml"), []byte("dir: store\n"+devices+"\n"), 0o600))
		var out, errs bytes.Buffer
		code := program.Main(t.Context(), []string{"config", "check", at("skep.yaml")}, strings.NewReader(""), &out, &errs)
		require.Zero(t, code, errs.String())
		return errs.String()
	}
	require.Empty(t, check("devices: [a, b]"), "there is no store yet")
	st, err := store.Open(t.Context(), store.Options{Dir: at("store"), Devices: []string{at("a"), at("b")},
		CapacityBytes: 128 << 20, IOBytes: 64 << 20, CacheBytes: -1})
	require.NoError(t, err)
	require.Empty(t, check("devices: [b, a]"), "in any order, while it is open")
	_, err = st.ReplaceDevice(t.Context(), "0", store.NewDevice{Path: at("new")}, store.MoveOptions{})
	require.NoError(t, err)
	require.NoError(t, st.Close())
	require.NoError(t, os.Symlink(at("new"), at("by-id")))

	has := "write devices: [" + at("b") + ", " + at("new") + "]"
	require.Contains(t, check("devices: [a, b]"), has)
	require.Contains(t, check("devices: [b]"), has)
	require.Contains(t, check("devices: [a, b, new]"), has)
	require.Empty(t, check("devices: [by-id, b]"))
	require.Empty(t, check("file_devices: 2"))
}
