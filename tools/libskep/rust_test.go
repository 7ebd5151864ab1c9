package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// The example in Rust stores and loads by a queue. Its bindings measure their structures as they are compiled.
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
}

// The bindings for Rust are of today's skep.h: they have its version and its functions and, where bindgen is
// installed, are what it writes.
func TestRustBindings(t *testing.T) {
	t.Parallel()
	read := func(path string) string {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		return string(text)
	}
	const bindings = "../examples/rust/src/skep.rs"
	header, rust := read("skep.h"), read(bindings)
	all := func(expression, text string) (found []string) {
		for _, m := range regexp.MustCompile(expression).FindAllStringSubmatch(text, -1) {
			found = append(found, m[1])
		}
		slices.Sort(found)
		return found
	}
	require.Equal(t, all(`#define SKEP_VERSION (\d+)`, header), all(`SKEP_VERSION: u32 = (\d+)`, rust))
	calls := all(`(?m)^int (skep_\w+)\(`, header)
	require.NotEmpty(t, calls)
	require.Equal(t, calls, all(`pub fn (skep_\w+)\(`, rust), "tools/examples/rust/bindings.sh writes them anew")
	if _, err := exec.LookPath("bindgen"); err != nil {
		t.Skip("no bindgen: the bindings were read, not written anew")
	}
	again := filepath.Join(t.TempDir(), "skep.rs")
	out, err := exec.Command("../examples/rust/bindings.sh", again).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, read(again), rust, "tools/examples/rust/bindings.sh writes them anew")
}
