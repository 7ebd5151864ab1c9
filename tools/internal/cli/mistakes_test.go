package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/tools/internal/cli"
	"github.com/skepkv/skep/tools/internal/command/commandtest"
	"github.com/skepkv/skep/tools/internal/self"
)

// own are the commands that are skep's: bench and replay are handed on with all that is given to them.
func own() []commandtest.Command {
	return slices.DeleteFunc(commandtest.Commands(&cli.Program), func(c commandtest.Command) bool {
		return len(c.Path) > 0 && (c.Path[0] == "bench" || c.Path[0] == "replay")
	})
}

// A mistake on the command line ends every command with 2.
func TestEveryCommandRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	commandtest.RefusesWhatItDoesNotKnow(t, &cli.Program, own())
}

// What a command prints is its result: lost output is a failure, whatever else went well.
func TestEveryCommandFailsWhereItsOutputIsLost(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	skepIn(t, inspected, "replay", "-", "--dir", dir, "--block-size", "8192", "--json").OK(t)
	commandtest.FailsWhereItsOutputIsLost(t, &cli.Program, own(),
		[]string{"version"}, []string{"doctor", "--dir", dir}, []string{"config", "show", "--dir", dir},
		[]string{"device", "list", "--dir", dir}, []string{"verify", "--dir", dir}, []string{"scrub", "--dir", dir}, []string{"scrub", "--dir", dir, "--dry-run"},
		[]string{"compact", "--dir", dir}, []string{"rebuild", "--dir", dir, "--dry-run"}, []string{"inspect", "devices", "--dir", dir}, []string{"inspect", "groups", "--dir", dir},
		[]string{"inspect", "namespaces", "--dir", dir}, []string{"inspect", "memory", "--dir", dir}, []string{"completion", "bash"})
}

func TestOutputToAFullDevice(t *testing.T) {
	t.Parallel()
	out, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("there is no /dev/full")
	}
	defer out.Close()
	cmd := exec.Command(os.Args[0], "version", "--json")
	cmd.Env = append(os.Environ(), self.Env+"=1")
	cmd.Stdout = out
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Run(), &exit)
	assert.Equal(t, 1, exit.ExitCode())
}

// An interrupt is named as one; a wait that ran out of time is another thing.
func TestAnInterruptIsNoDeadline(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	skepIn(t, inspected, "replay", "-", "--dir", dir, "--block-size", "8192", "--json").OK(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, args := range [][]string{
		{"verify", "--dir", dir}, {"scrub", "--dir", dir}, {"compact", "--dir", dir}, {"rebuild", "--dir", dir},
		{"inspect", "memory", "--dir", dir}, {"device", "drain", "0", "--dir", dir},
	} {
		var stdout, stderr bytes.Buffer
		code := cli.Main(ctx, append(args, "--json"), strings.NewReader(""), &stdout, &stderr)
		assert.Equal(t, 130, code, "%v: %s", args, stderr.String())
		assert.NotContains(t, stderr.String()+stdout.String(), "deadline", "%v", args)
		var said struct{ Error struct{ Kind string } }
		if d := json.NewDecoder(&stdout); assert.NoError(t, d.Decode(&said), "%v", args) && said.Error.Kind != "" {
			assert.Equal(t, "canceled", said.Error.Kind, "%v", args)
		}
	}
}
