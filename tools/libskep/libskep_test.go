package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// built is the library: building it compiles all of skep once more, as a shared object, so
// make libskep does it first and says where it is.
func built(t *testing.T) string {
	lib := os.Getenv("SKEP_LIBSKEP")
	if lib == "" {
		t.Skip("SKEP_LIBSKEP does not name a libskep.so; make libskep builds it and runs this")
	}
	lib, err := filepath.Abs(lib)
	require.NoError(t, err)
	return lib
}

func TestCProgram(t *testing.T) {
	lib := built(t)
	cc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc")
	}
	program := filepath.Join(t.TempDir(), "engine")
	out, err := exec.Command(cc, "-std=c99", "-Wall", "-Wextra", "-Werror", "-I.", "-o", program, "testdata/engine.c", lib, "-Wl,-rpath,"+filepath.Dir(lib)).CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.Command(program, t.TempDir()).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "32 caches filled\n", string(out))
}

func TestPython(t *testing.T) {
	lib := built(t)
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no Python")
	}
	out, err := exec.Command(python, "example.py", lib, t.TempDir()).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "3 blocks restored\n", string(out))
}
