//go:build unix

package cli_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/tools/internal/self"
)

// installed puts skep, which is this test's program, into a directory of its own.
func installed(t *testing.T) (skep, dir string) {
	dir = t.TempDir()
	skep = filepath.Join(dir, "skep")
	copyProgram(t, skep)
	return skep, dir
}

func copyProgram(t *testing.T, to string) {
	own, err := os.Executable()
	require.NoError(t, err)
	if os.Link(own, to) == nil {
		return
	}
	b, err := os.ReadFile(own) // another file system
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to, b, 0o755))
}

// told is a skep-bench that says who it is, what it was told and what came in, and ends with 7.
func told(t *testing.T, dir, name string) {
	require.NoError(t, os.WriteFile(filepath.Join(dir, "skep-bench"),
		[]byte("#!/bin/sh\necho "+name+"\nfor w in \"$@\"; do echo \"<$w>\"; done\nwhile read -r line; do echo \"in $line\"; done\necho 'said' >&2\nexit 7\n"), 0o755))
}

// call runs a program as skep in a process of its own, with path for PATH.
func call(t *testing.T, program, path, stdin string, args ...string) (code int, stdout, stderr string) {
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), self.Env+"=1", "PATH="+path)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// Everything that is given to skep bench is skep-bench's: arguments, standard streams, exit code.
func TestBenchIsHandedOn(t *testing.T) {
	t.Parallel()
	skep, dir := installed(t)
	told(t, dir, "beside")
	elsewhere := t.TempDir()
	told(t, elsewhere, "on PATH")
	for name, c := range map[string]struct{ args, gets []string }{
		"arguments":       {[]string{"bench", "restore", "--dir", "a b", "--nope", "--", "--json"}, []string{"restore", "--dir", "a b", "--nope", "--", "--json"}},
		"flags before it": {[]string{"--json", "--log", "info", "bench", "put"}, []string{"--json", "--log", "info", "put"}},
		"nothing":         {[]string{"bench"}, nil},
		"help":            {[]string{"bench", "--help"}, []string{"--help"}},
	} {
		t.Run(name, func(t *testing.T) {
			want := "beside\n"
			for _, w := range c.gets {
				want += "<" + w + ">\n"
			}
			code, stdout, stderr := call(t, skep, elsewhere, "one\ntwo\n", c.args...)
			assert.Equal(t, 7, code)
			assert.Equal(t, want+"in one\nin two\n", stdout)
			assert.Equal(t, "said\n", stderr)
		})
	}
	require.NoError(t, os.Remove(filepath.Join(dir, "skep-bench")))
	code, stdout, _ := call(t, skep, elsewhere, "", "bench", "put")
	assert.Equal(t, 7, code)
	assert.Equal(t, "on PATH\n<put>\n", stdout)
}

// Where there is no skep-bench, that is told as what is missing, with how to get it.
func TestWithoutSkepBench(t *testing.T) {
	t.Parallel()
	skep, dir := installed(t)
	code, stdout, stderr := call(t, skep, t.TempDir(), "", "bench", "restore", "--json")
	assert.Equal(t, 3, code)
	var said struct {
		Error struct{ Kind, Field, Value, Next string }
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &said), stdout)
	assert.Equal(t, "not found", said.Error.Kind)
	assert.Equal(t, "skep-bench", said.Error.Field)
	assert.Contains(t, said.Error.Value, dir)
	assert.Contains(t, said.Error.Next, "go install")
	assert.Contains(t, stderr, "next: go install")

	require.NoError(t, os.Mkdir(filepath.Join(dir, "skep-bench"), 0o700))
	code, _, stderr = call(t, skep, t.TempDir(), "", "bench", "put")
	assert.NotZero(t, code)
	assert.Contains(t, stderr, filepath.Join(dir, "skep-bench"), "what lies there and cannot be run is named")
}

// A replay needs no skep-bench: who has skep alone checks a trace with it.
func TestReplayWithoutSkepBench(t *testing.T) {
	t.Parallel()
	skep, dir := installed(t)
	code, stdout, stderr := call(t, skep, t.TempDir(), inspected, "replay", "-", "--dir", filepath.Join(dir, "store"), "--block-size", "8192", "--json")
	require.Zero(t, code, stderr)
	var r struct {
		Requests   int
		WrongBytes int64 `json:"wrong_bytes"`
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &r), stdout)
	assert.Positive(t, r.Requests)
	assert.Zero(t, r.WrongBytes)
}

// The real one measures, from skep's process and from a program that has skep in its own; an interrupt is its too.
//
// Alone: the environment is the process's.
func TestSkepBenchIsRun(t *testing.T) {
	skep, dir := installed(t)
	copyProgram(t, filepath.Join(dir, "skep-bench"))
	code, stdout, stderr := call(t, skep, dir, "", "bench", "stream", "--requests", "100", "--json")
	require.Zero(t, code, stderr)
	assert.Contains(t, stdout, `"exposed"`)
	code, _, stderr = call(t, skep, dir, "", "bench", "restore", "--rounds", "0")
	assert.Equal(t, 2, code)
	assert.Contains(t, stderr, "--rounds is 0")

	t.Setenv("PATH", dir)
	t.Setenv(self.Env, "1")
	o := skepRun(t, "bench", "stream", "--requests", "100", "--json")
	require.Zero(t, o.Code, o.Stderr)
	assert.Contains(t, o.Stdout, `"exposed"`)
	assert.Equal(t, 2, skepRun(t, "bench", "restore", "--rounds", "0").Code)

	trace, store := filepath.Join(t.TempDir(), "trace.jsonl"), filepath.Join(t.TempDir(), "store")
	late := `{"timestamp": 3600000, "input_length": 512, "output_length": 10, "hash_ids": [9]}`
	require.NoError(t, os.WriteFile(trace, []byte(inspected+late+"\n"), 0o600))
	cmd := exec.Command(skep, "bench", "replay", trace, "--dir", store, "--block-size", "8192", "--speed", "1x", "--json")
	require.NoError(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill() }()
	require.Eventually(t, func() bool { _, err := os.Stat(filepath.Join(store, "device-0")); return err == nil }, time.Minute, time.Millisecond, "it works")
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	_ = cmd.Wait()
	assert.Equal(t, 130, cmd.ProcessState.ExitCode())
}

// A shell's completion of what is handed on is skep-bench's.
func TestCompletionsOfWhatIsHandedOn(t *testing.T) {
	t.Parallel()
	skep, dir := installed(t)
	copyProgram(t, filepath.Join(dir, "skep-bench"))
	_, stdout, _ := call(t, skep, dir, "", "__complete", "bench", "re")
	for _, name := range []string{"rebuild", "reclaim", "recover", "resp", "restore"} {
		assert.Contains(t, stdout, name+"\t")
	}
	_, stdout, _ = call(t, skep, dir, "", "__complete", "replay", "--capa")
	assert.Contains(t, stdout, "--capacity-blocks\t")
}
