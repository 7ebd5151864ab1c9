package cli_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Three processes, one of them killed and started again: what it had is missed meanwhile, and found after.
func TestClusterDemo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := skepRun(t, "cluster", "demo", "--dir", dir, "--requests", "80", "--json").OK(t)
	assert.EqualValues(t, 80, r["requests"])
	assert.Len(t, r["nodes"], 3)
	found := r["recent_blocks_found"].(map[string]any)
	assert.Greater(t, found["before"], 0.0)
	assert.Less(t, found["without"], found["before"])
	assert.Equal(t, found["before"], found["after"])
	assert.Zero(t, r["wrong_bytes"])
	assert.Zero(t, r["broken_promises"])
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, left)
	assert.Equal(t, 2, skepRun(t, "cluster", "demo", "--requests", "1").Code)
}
