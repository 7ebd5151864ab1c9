package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// sanitized is a program of testdata that looks at each of its accesses.
func sanitized(t *testing.T, sanitizers, source string) string {
	cc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc")
	}
	check := exec.Command(cc, "-fsanitize="+sanitizers, "-x", "c", "-o", filepath.Join(t.TempDir(), "none"), "-")
	check.Stdin = strings.NewReader("int main(void) { return 0; }")
	if out, err := check.CombinedOutput(); err != nil {
		t.Skipf("gcc has no -fsanitize=%s: %s", sanitizers, out)
	}
	return compiled(t, "testdata/"+source, built(t), "-g", "-fsanitize="+sanitizers, "-fno-sanitize-recover=all",
		"-lpthread", "-lrt", "-Wl,-rpath,"+filepath.Dir(built(t)))
}

// The programs in C run under AddressSanitizer and UndefinedBehaviorSanitizer, whose malloc is the library's, too, and
// the one with threads that claim under ThreadSanitizer. All of it is about the C code, of which skep.h has some: what
// Go reads and writes no sanitizer looks at (blocks.c has edges around each place for that), and what Go's threads do
// among themselves is none of ThreadSanitizer's. Not under Valgrind: it takes the stacks of goroutines for wild memory.
func TestCProgramsSanitized(t *testing.T) {
	t.Parallel()
	claimer := compiled(t, "testdata/claimer.c")
	quiet := filepath.Join(t.TempDir(), "quiet")
	require.NoError(t, os.WriteFile(quiet, []byte("called_from_lib:libskep.so\n"), 0o600))
	for _, tt := range []struct {
		sanitizers, source, says string
		server                   bool
		before                   []string
	}{
		{sanitizers: "address,undefined", source: "engine.c", says: "32 caches filled"},
		{sanitizers: "address,undefined", source: "blocks.c", says: "every block whole, and none else"},
		{sanitizers: "address,undefined", source: "blocks.c", says: "every block whole, and none else", server: true},
		{sanitizers: "address,undefined", source: "besides.c", says: "hinted, listed, counted and purged"},
		{sanitizers: "address,undefined", source: "queue.c", says: "each operation once", server: true},
		{sanitizers: "thread", source: "queue.c", says: "each operation once"},
		{sanitizers: "address,undefined", source: "pieces.c", says: "every piece, page, layer and part"},
		{sanitizers: "address,undefined", source: "pieces.c", says: "every piece, page, layer and part", server: true},
		{sanitizers: "address,undefined", source: "registered.c", says: "saved and loaded in place", server: true},
		{sanitizers: "address,undefined", source: "fork.c", says: "refused in the child, and the parent goes on"},
		{sanitizers: "address,undefined", source: "claims.c", says: "every block loaded or granted, once",
			before: []string{claimer}},
		{sanitizers: "thread", source: "claims.c", says: "every block loaded or granted, once", before: []string{claimer}},
		{sanitizers: "thread", source: "claims.c", says: "every block loaded or granted, once", before: []string{claimer},
			server: true},
	} {
		name := tt.sanitizers + " " + tt.source
		if tt.server {
			name += " of a server"
		}
		t.Run(name, func(t *testing.T) {
			program, args := sanitized(t, tt.sanitizers, tt.source), tt.before
			if tt.server {
				args = append(args, "unix:"+serving(t), token)
			} else {
				args = append(args, t.TempDir())
			}
			cmd := exec.CommandContext(t.Context(), program, args...)
			// The programs end with memory that they have, and so does the library.
			cmd.Env = append(os.Environ(), "ASAN_OPTIONS=detect_leaks=0", "TSAN_OPTIONS=halt_on_error=1 suppressions="+quiet)
			var said strings.Builder
			cmd.Stderr = &said
			out, err := cmd.Output()
			require.NoError(t, err, "%s", said.String())
			require.Equal(t, tt.says+"\n", string(out))
		})
	}
}
