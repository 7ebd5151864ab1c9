package cli_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
