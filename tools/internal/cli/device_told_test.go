package cli_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store"
)

// It is not missing: nobody looks for it.
func TestInspectSaysThatADeviceIsRemoved(t *testing.T) {
	t.Parallel()
	_, dir := heldIn(t, 2)
	require.Zero(t, skepRun(t, "device", "add", filepath.Join(dir, "device-9"), "--dir", dir).Code)
	require.Zero(t, skepRun(t, "device", "remove", "0", "--dir", dir).Code)
	said := skepRun(t, "inspect", "devices", "--dir", dir)
	require.Zero(t, said.Code)
	assert.NotContains(t, said.Stdout, "MISSING")
}

// No open takes it.
func TestADeviceThatWasCutShortHasAProblem(t *testing.T) {
	t.Parallel()
	_, dir := heldIn(t, 2)
	require.NoError(t, os.Truncate(filepath.Join(dir, "device-1"), 1<<20))
	said := skepRun(t, "device", "list", "--dir", dir, "--json").OK(t)
	second := said["devices"].([]any)[1].(map[string]any)
	assert.NotEmpty(t, second["problem"], "device 1 was cut short: %v", second)
}

// As the command does itself.
func TestADryReplacementOfAStoreInUseLooksAtTheNewDevice(t *testing.T) {
	t.Parallel()
	o, dir := heldIn(t, 2)
	opt := o.optionsAt(o.place)
	opt.Admin = true
	s, err := store.Open(t.Context(), opt)
	require.NoError(t, err)
	defer s.Close()
	taken := filepath.Join(t.TempDir(), "taken")
	require.NoError(t, os.WriteFile(taken, []byte("somebody's"), 0o600))
	dry := skepRun(t, "device", "replace", "0", taken, "--dry-run", "--dir", dir)
	wet := skepRun(t, "device", "replace", "0", taken, "--dir", dir)
	assert.Equal(t, 2, wet.Code, "%s", wet.Stderr)
	assert.Equal(t, wet.Code, dry.Code, "a dry run says what the command would say: %s", dry.Stdout)
}

// A store takes one when it is opened.
func TestACapacityForAStoreInUseIsRefused(t *testing.T) {
	t.Parallel()
	o, dir := heldIn(t, 2)
	opt := o.optionsAt(o.place)
	opt.Admin = true
	s, err := store.Open(t.Context(), opt)
	require.NoError(t, err)
	defer s.Close()
	before, err := s.Stats(t.Context())
	require.NoError(t, err)
	said := skepRun(t, "compact", "--capacity", "3GiB", "--dir", dir)
	after, err := s.Stats(t.Context())
	require.NoError(t, err)
	assert.True(t, said.Code != 0 || after.CapacityBytes != before.CapacityBytes,
		"exit code 0, and the cap is still %d", after.CapacityBytes)
}

// One is where clients are served, the other where nodes are.
func TestANodeHasTwoAddresses(t *testing.T) {
	t.Parallel()
	said := skepRun(t, "cluster", "init", "--node", "n", "--dir", filepath.Join(t.TempDir(), "d"),
		"--addr", "127.0.0.1:7431", "--peer", "127.0.0.1:7431")
	assert.Equal(t, 2, said.Code, "%s", said.Stdout)
}
