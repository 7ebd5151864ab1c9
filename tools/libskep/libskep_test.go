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

// cudaProgram builds a program for the fake driver: make libskep says where that is.
func cudaProgram(t *testing.T, source string) string {
	lib, cuda := built(t), os.Getenv("SKEP_CUDADIR")
	if cuda == "" {
		t.Skip("SKEP_CUDADIR does not name a folder with include/ and fake/ of the fake driver; make libskep makes one")
	}
	cc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc")
	}
	fake := filepath.Join(cuda, "fake")
	program := filepath.Join(t.TempDir(), "engine")
	out, err := exec.Command(cc, "-O1", "-std=gnu99", "-Wall", "-Werror", "-I.", "-I"+filepath.Join(cuda, "include"), "-o", program, source, lib,
		filepath.Join(fake, "libcuda.so.1"), "-ldl", "-Wl,-rpath,"+filepath.Dir(lib), "-Wl,-rpath,"+fake).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// Engines on a GPU, on the fake driver.
func TestCUDAPrograms(t *testing.T) {
	for _, tt := range []struct {
		source, says string
		more         []string
	}{
		{"testdata/cuda.c", "16 caches filled\n", nil},
		{"testdata/large.c", "72 MiB in 3 pieces\n", nil},
		{"testdata/large.c", "failed in mid-copy\n", []string{"fail"}},
	} {
		t.Run(tt.says[:len(tt.says)-1], func(t *testing.T) {
			out, err := exec.Command(cudaProgram(t, tt.source), append([]string{t.TempDir()}, tt.more...)...).CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Equal(t, tt.says, string(out))
		})
	}
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
