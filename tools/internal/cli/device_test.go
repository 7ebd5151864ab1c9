package cli_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
)

// Who adds a device that the store has is told so, by a dry run too, and not to remove it: there are blocks on it.
func TestADeviceThatTheStoreHasIsNotAddedAgain(t *testing.T) {
	t.Parallel()
	o, dir := heldIn(t, 1)
	add := []string{"device", "add", filepath.Join(dir, "device-1"), "--dir", dir}
	refused := func(args []string) {
		t.Helper()
		said := skepRun(t, args...)
		assert.Equal(t, 2, said.Code, "%s%s", said.Stdout, said.Stderr)
		assert.Contains(t, said.Stderr, "device 1 of this store already")
		assert.NotContains(t, said.Stderr, "remove")
	}
	refused(add)
	refused(append(add, "--dry-run"))
	opt := o.optionsAt(o.place)
	opt.Admin = true
	s, err := store.Open(t.Context(), opt)
	require.NoError(t, err)
	refused(add)
	require.NoError(t, s.Close())
}

func statsOf(t *testing.T, o store.Options) skep.Stats {
	t.Helper()
	s, err := store.Open(t.Context(), o)
	require.NoError(t, err)
	st, err := s.Stats(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.Close())
	return st
}

// A device that was added has the size it was given, beyond the cap, too. The cap stays as it is: a server that is
// started again with the same one opens the store.
func TestAnAddedDeviceIsBeyondTheCap(t *testing.T) {
	t.Parallel()
	o, dir := heldIn(t, 2)
	opt := o.optionsAt(o.place)
	before := statsOf(t, opt)
	require.Positive(t, before.CapacityBytes)
	skepRun(t, "device", "add", filepath.Join(dir, "device-9"), "--size", "8MiB", "--dir", dir, "--json").OK(t)
	opt.CapacityBytes = before.CapacityBytes
	after := statsOf(t, opt)
	assert.Equal(t, before.CapacityBytes, after.CapacityBytes)
	assert.Greater(t, after.DeviceBytes, before.DeviceBytes)
	assert.LessOrEqual(t, after.DeviceBytes, before.DeviceBytes+8<<20)
	assert.Greater(t, after.DeviceBytes, after.CapacityBytes)
}
