package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/skepkv/skep/tools/internal/bench"
	"github.com/skepkv/skep/tools/internal/cli"
)

// TestMain lets the test binary be the command when a test, or the command itself,
// starts it as a process of its own.
func TestMain(m *testing.M) {
	if os.Getenv(bench.SelfEnv) != "" {
		os.Exit(cli.Main(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	goleak.VerifyTestMain(m)
}

// output is what one run of the command left behind.
type output struct {
	code           int
	stdout, stderr string
}

// skepIn runs the command in this process with the given standard input.
func skepIn(t *testing.T, stdin string, args ...string) output {
	t.Helper()
	var out, err bytes.Buffer
	code := cli.Main(t.Context(), args, strings.NewReader(stdin), &out, &err)
	return output{code, out.String(), err.String()}
}

func skepRun(t *testing.T, args ...string) output { t.Helper(); return skepIn(t, "", args...) }

// ok requires exit code 0 and decodes the JSON on standard output.
func (o output) ok(t *testing.T) map[string]any {
	t.Helper()
	require.Equal(t, 0, o.code, "stderr: %s\nstdout: %s", o.stderr, o.stdout)
	return o.json(t)
}

func (o output) json(t *testing.T) map[string]any {
	t.Helper()
	var v map[string]any
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &v), "stdout: %s", o.stdout)
	return v
}
