package cli_test

import (
	"testing"

	"github.com/skepkv/skep/tools/internal/cli"
	"github.com/skepkv/skep/tools/internal/command/commandtest"
)

func TestScripts(t *testing.T) {
	t.Parallel()
	commandtest.Scripts(t, &cli.Program)
}
