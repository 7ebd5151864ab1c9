//go:build unix

package dirlock

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// An open that is refused says who has the store: where that process has ended, who has the lock from it.
func TestWhoHasTheLockIsNamed(t *testing.T) {
	t.Parallel()
	ended := exec.Command(os.Args[0], "-test.run=^$")
	require.NoError(t, ended.Run())
	host, err := os.Hostname()
	require.NoError(t, err)
	for _, tt := range []struct {
		name, wrote, says, not string
		found                  bool
	}{
		{"alive", fmt.Sprintf("process %d (engine) on %s since noon\n", os.Getpid(), host), "(engine) on " + host, "ended", false},
		{"ended", fmt.Sprintf("process %d (engine) on %s since noon\n", ended.Process.Pid, host), fmt.Sprintf("forked from process %d (engine) on %s since noon, which has ended", ended.Process.Pid, host), "", true},
		{"of another machine", fmt.Sprintf("process %d (engine) on %s-not since noon\n", ended.Process.Pid, host), "(engine) on " + host + "-not", "ended", false},
		{"says nothing", "", "held by ", "held by , ", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			f, err := os.Create(filepath.Join(dir, "LOCK")) // as a forked process has it
			require.NoError(t, err)
			defer f.Close()
			_, err = f.WriteString(tt.wrote)
			require.NoError(t, err)
			locked, err := tryLock(f)
			require.NoError(t, err)
			require.True(t, locked)
			_, err = Take(dir, false)
			require.Equal(t, skep.Locked, skep.KindOf(err), err)
			require.ErrorContains(t, err, tt.says)
			if tt.not != "" {
				require.NotContains(t, err.Error(), tt.not)
			}
			if tt.found && runtime.GOOS == "linux" {
				require.ErrorContains(t, err, fmt.Sprintf("held by process %d (", os.Getpid()), "who has the file open")
			}
		})
	}
}
