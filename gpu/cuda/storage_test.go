package cuda

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// Alone: the environment is the process's.
func TestDirectStorage(t *testing.T) {
	root := t.TempDir()
	t.Setenv("LD_LIBRARY_PATH", "")
	for _, tt := range []struct{ make, missing string }{
		{"", "nvidia-fs"},
		{"proc/driver/nvidia-fs/version", "libcufile.so"},
		{"usr/lib64/libcufile.so.0", ""},
	} {
		if tt.make != "" {
			path := filepath.Join(root, tt.make)
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			require.NoError(t, os.WriteFile(path, nil, 0o644))
		}
		err := directStorage(root)
		if tt.missing == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, skep.Unsupported)
		require.ErrorContains(t, err, tt.missing)
	}
	if err := DirectStorage(); err != nil {
		require.ErrorIs(t, err, skep.Unsupported)
	}
}
