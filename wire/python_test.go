package wire

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/server"
)

// A client written from docs/reference/protocol.md alone, in Python: it makes and reads the
// vectors, and puts to and restores from a live server.
func TestPythonClient(t *testing.T) {
	t.Parallel()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 on this machine")
	}
	run := func(t *testing.T, env ...string) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, python, "-B", "-m", "unittest", "-v", "test_client")
		cmd.Dir = "python"
		cmd.Env = append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Equal(t, len(env) == 0, strings.Contains(string(out), "skipped"), "%s", out)
	}
	t.Run("vectors", func(t *testing.T) { run(t) })
	for name, x := range map[string]struct{ where, features string }{
		"live over TCP":                        {"tcp", "7"},
		"live over a Unix socket, CRC-32 only": {"unix", "0"},
	} {
		t.Run(name, func(t *testing.T) {
			r := serve(t, x.where, newMemstore(storetest.Config{}), server.Options{})
			run(t, "SKEP_ADDRESS="+r.addr, "SKEP_TOKEN="+operator, "SKEP_FEATURES="+x.features)
			require.Eventually(t, func() bool { return r.Stats().Connections == 0 }, time.Minute, time.Millisecond)
			require.Eventually(t, func() bool { return r.Stats().Sessions == 0 }, time.Minute, time.Millisecond)
		})
	}
}
