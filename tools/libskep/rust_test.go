package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The example in Rust stores and loads by a queue. Its bindings are written by hand, so their structures are measured
// against skep.h's.
func TestRustExample(t *testing.T) {
	t.Parallel()
	lib := built(t)
	cargo, err := exec.LookPath("cargo")
	if err != nil {
		t.Skip("no cargo: the example in Rust was not compiled")
	}
	dir := filepath.Dir(lib)
	build := exec.CommandContext(t.Context(), cargo, "build", "--quiet", "--offline", "--manifest-path",
		"../examples/rust/Cargo.toml", "--target-dir", t.TempDir())
	build.Env = append(os.Environ(), "RUSTFLAGS=-D warnings -L "+dir+" -C link-arg=-Wl,-rpath,"+dir)
	program := filepath.Join(build.Args[len(build.Args)-1], "debug", "skep-example")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.Command(program, t.TempDir()).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "8 blocks there and back\n", string(out))

	c := filepath.Join(t.TempDir(), "sizes.c")
	text := "#include <stdio.h>\n#include \"skep.h\"\nint main(void) {\n" +
		"printf(\"%zu %zu %zu %zu\\n\", sizeof(skep_error), sizeof(skep_scope), sizeof(skep_op), sizeof(skep_done));\n}\n"
	require.NoError(t, os.WriteFile(c, []byte(text), 0o600))
	theirs, err := exec.Command(program, "--sizes").Output()
	require.NoError(t, err)
	ours, err := exec.Command(compiled(t, c)).Output()
	require.NoError(t, err)
	require.Equal(t, string(ours), string(theirs))
}
