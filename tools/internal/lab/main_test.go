package lab_test

import (
	"context"
	"os"
	"testing"

	"github.com/skepkv/skep/store/unjudged"
	"github.com/skepkv/skep/tools/internal/command/commandtest"
	"github.com/skepkv/skep/tools/internal/lab"
	"github.com/skepkv/skep/tools/internal/self"
	"github.com/skepkv/skep/tools/leaks"
)

// TestMain lets the test binary be the command when a test, or the command itself,
// starts it as a process of its own.
func TestMain(m *testing.M) {
	unjudged.Drives()
	if os.Getenv(self.Env) != "" {
		os.Exit(lab.Program.Main(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	leaks.Main(m)
}

// benchIn runs the command in this process with the given standard input.
func benchIn(t *testing.T, stdin string, args ...string) commandtest.Output {
	t.Helper()
	return commandtest.Run(t, &lab.Program, stdin, args...)
}

func benchRun(t *testing.T, args ...string) commandtest.Output {
	t.Helper()
	return benchIn(t, "", args...)
}

func TestEveryCommandRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	commandtest.RefusesWhatItDoesNotKnow(t, &lab.Program, commandtest.Commands(&lab.Program))
}

func TestEveryCommandFailsWhereItsOutputIsLost(t *testing.T) {
	t.Parallel()
	commandtest.FailsWhereItsOutputIsLost(t, &lab.Program, commandtest.Commands(&lab.Program), []string{"version"}, []string{"stream", "--requests", "100"}, []string{"completion", "bash"})
}
