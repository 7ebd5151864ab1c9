//go:build !(cuda && cgo && linux)

package cuda

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// Without the tag it is said what is missing.
func TestWithoutTheTag(t *testing.T) {
	t.Parallel()
	_, err := Count()
	require.ErrorIs(t, err, skep.Unsupported)
	_, err = Open(0, Options{})
	require.ErrorIs(t, err, skep.Unsupported)
	require.ErrorContains(t, err, "make cuda")
}

// The tests of this package with the tag, on the fake driver.
func TestOnTheFakeDriver(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds the CUDA back end: not in short mode")
	}
	for _, tool := range []string{"make", "gcc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("the fake driver needs " + tool)
		}
	}
	out, err := exec.Command("make", "-C", "../..", "cuda-test").CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Logf("%s", out)
}
