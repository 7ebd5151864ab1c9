package cli_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/skepkv/skep/store/unjudged"
	"github.com/skepkv/skep/tools/internal/cli"
	"github.com/skepkv/skep/tools/internal/command/commandtest"
	"github.com/skepkv/skep/tools/internal/lab"
	"github.com/skepkv/skep/tools/internal/self"
	"github.com/skepkv/skep/tools/leaks"
)

// TestMain lets the test binary be the command when a test, or the command itself,
// starts it as a process of its own; and skep-bench under that name. No drive is judged,
// however busy the machine is.
func TestMain(m *testing.M) {
	unjudged.Drives()
	if os.Getenv(self.Env) != "" {
		if filepath.Base(os.Args[0]) == "skep-bench" {
			os.Exit(lab.Program.Main(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
		}
		os.Exit(cli.Main(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	leaks.Main(m)
}

// skepIn runs the command in this process with the given standard input.
func skepIn(t *testing.T, stdin string, args ...string) commandtest.Output {
	t.Helper()
	return commandtest.Run(t, &cli.Program, stdin, args...)
}

func skepRun(t *testing.T, args ...string) commandtest.Output {
	t.Helper()
	return skepIn(t, "", args...)
}
