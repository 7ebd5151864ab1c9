package drawn_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/tools/drawn"
)

// Alone: the environment is the process's.
func TestSeed(t *testing.T) {
	t.Setenv("SKEP_SEED", "")
	require.NotEqual(t, drawn.Seed(t), drawn.Seed(t))
	t.Setenv("SKEP_SEED", "18446744073709551615")
	require.Equal(t, uint64(1<<64-1), drawn.Seed(t))
}
