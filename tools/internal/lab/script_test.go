package lab_test

import (
	"testing"

	"github.com/skepkv/skep/tools/internal/command/commandtest"
	"github.com/skepkv/skep/tools/internal/lab"
)

func TestScripts(t *testing.T) {
	t.Parallel()
	commandtest.Scripts(t, &lab.Program)
}
