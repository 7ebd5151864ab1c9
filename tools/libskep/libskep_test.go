package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/unjudged"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/server"
)

// TestMain has no drive be judged: what was put is to be there, however busy the machine is.
func TestMain(m *testing.M) {
	unjudged.Drives()
	os.Exit(m.Run())
}

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
	t.Parallel()
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
	t.Parallel()
	for _, tt := range []struct {
		source, says string
		more         []string
	}{
		{"testdata/cuda.c", "16 caches filled\n", nil},
		{"testdata/large.c", "72 MiB in 3 pieces\n", nil},
		{"testdata/large.c", "failed in mid-copy\n", []string{"fail"}},
		{"testdata/lost.c", "one lost, the other goes on\n", nil},
		{"testdata/lost.c", "lost with all on its way\n", []string{"full"}},
	} {
		t.Run(tt.says[:len(tt.says)-1], func(t *testing.T) {
			out, err := exec.Command(cudaProgram(t, tt.source), append([]string{t.TempDir()}, tt.more...)...).CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Equal(t, tt.says, string(out))
		})
	}
}

func TestPython(t *testing.T) {
	t.Parallel()
	lib := built(t)
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no Python")
	}
	for program, says := range map[string]string{"example.py": "3 blocks restored\n", "testdata/claims.py": "every block loaded or granted, once\n"} {
		t.Run(program, func(t *testing.T) {
			out, err := exec.Command(python, program, lib, t.TempDir()).CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Equal(t, says, string(out))
		})
	}
}

// The Python package's own tests, on this library and a server of this build.
func TestPythonPackage(t *testing.T) {
	t.Parallel()
	lib, binary := built(t), os.Getenv("SKEP_BINARY")
	if binary == "" {
		t.Skip("SKEP_BINARY does not name a skep to run; make build makes one, and make libskep says where it is")
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no Python")
	}
	src, err := filepath.Abs("../skepkv/src")
	require.NoError(t, err)
	files, err := filepath.Glob("../skepkv/tests/test_*.py")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files { // most of it is waiting for servers
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), python, "-B", "-m", "unittest", "discover",
				"-s", filepath.Dir(file), "-p", filepath.Base(file))
			cmd.Env = append(os.Environ(), "SKEPKV_LIBRARY="+lib, "SKEP_BINARY="+binary, "PYTHONPATH="+src)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Contains(t, string(out), "\nRan ")
		})
	}
}

// A process that is forked has the library's memory and none of its threads: calls are refused there, and the store is
// its parent's to close and open again. When the parent has ended, who opens the store is told that the child has it.
func TestForkedProcesses(t *testing.T) {
	t.Parallel()
	lib := built(t)
	program := compiled(t, "testdata/fork.c", lib, "-Wl,-rpath,"+filepath.Dir(lib))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	run := func(args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Stderr = t.Output()
		out, err := cmd.Output()
		return string(out), err
	}
	out, err := run(t.TempDir())
	require.NoError(t, err)
	require.Equal(t, "refused in the child, and the parent goes on\n", out)

	dir := t.TempDir()
	out, _ = run(dir, "die")
	child, err := strconv.Atoi(strings.TrimSpace(out))
	require.NoError(t, err)
	kill := func() {
		p, err := os.FindProcess(child)
		require.NoError(t, err)
		require.NoError(t, p.Kill())
	}
	out, err = run(dir, "open")
	kill()
	require.NoError(t, err)
	require.Regexp(t, fmt.Sprintf(`^14 .*held by process %d \(\w+\), forked from process \d+ .*, which has ended`, child), out)
	require.Eventually(t, func() bool {
		out, err = run(dir, "open")
		return out == "0 \n"
	}, time.Minute, 10*time.Millisecond, "with the child gone it opens")
}

// compiled is a program of testdata in C.
func compiled(t *testing.T, source string, args ...string) string {
	cc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc")
	}
	program := filepath.Join(t.TempDir(), "program")
	out, err := exec.Command(cc, append([]string{"-O1", "-std=gnu99", "-Wall", "-Wextra", "-Werror", "-I.", "-o", program, source}, args...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// Engines in C claim by a word: from another process that has no skep in it, and from threads, by the word and by
// calls at random.
func TestClaimsInC(t *testing.T) {
	t.Parallel()
	lib := built(t)
	claimer := compiled(t, "testdata/claimer.c")
	claims := compiled(t, "testdata/claims.c", lib, "-lpthread", "-Wl,-rpath,"+filepath.Dir(lib))
	check := func(t *testing.T, args ...string) {
		cmd := exec.Command(claims, append([]string{claimer}, args...)...)
		cmd.Stderr = t.Output()
		out, err := cmd.Output()
		require.NoError(t, err)
		require.Equal(t, "every block loaded or granted, once\n", string(out))
	}
	t.Run("embedded", func(t *testing.T) { check(t, t.TempDir()) })
	t.Run("server", func(t *testing.T) { check(t, "unix:"+serving(t), token) })
}

// Blocks as a whole. Those of a server on this machine never go through the socket: what is not in shared memory is
// staged there.
func TestBlocks(t *testing.T) {
	t.Parallel()
	program := compiled(t, "testdata/blocks.c", built(t), "-Wl,-rpath,"+filepath.Dir(built(t)))
	check := func(t *testing.T, args ...string) {
		cmd := exec.Command(program, args...)
		cmd.Stderr = t.Output()
		out, err := cmd.Output()
		require.NoError(t, err)
		require.Equal(t, "every block whole, and none else\n", string(out))
	}
	t.Run("embedded", func(t *testing.T) { check(t, t.TempDir()) })
	t.Run("server", func(t *testing.T) {
		socket, server := served(t)
		check(t, "unix:"+socket, token)
		st := server.Stats()
		require.Zero(t, st.SentBytes)
		require.Zero(t, st.TakenBytes)
	})
}

// What a store does besides blocks, in the process and of a server.
func TestBesidesBlocks(t *testing.T) {
	t.Parallel()
	program := compiled(t, "testdata/besides.c", built(t), "-Wl,-rpath,"+filepath.Dir(built(t)))
	for name, args := range map[string][]string{"embedded": {t.TempDir()}, "server": {"unix:" + serving(t), token}} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(program, args...)
			cmd.Stderr = t.Output()
			out, err := cmd.Output()
			require.NoError(t, err)
			require.Equal(t, "hinted, listed, counted and purged\n", string(out))
		})
	}
}

// An engine's own memory: nothing of what is saved from it and loaded into it goes through the socket. A server on
// a drive whose client cuts the file short goes on, and so does the drive.
func TestRegisteredMemory(t *testing.T) {
	t.Parallel()
	program := compiled(t, "testdata/registered.c", built(t), "-lrt", "-lpthread", "-Wl,-rpath,"+filepath.Dir(built(t)))
	check := func(t *testing.T, args ...string) {
		cmd := exec.Command(program, args...)
		cmd.Stderr = t.Output()
		out, err := cmd.Output()
		require.NoError(t, err)
		require.Equal(t, "saved and loaded in place\n", string(out))
	}
	t.Run("in place", func(t *testing.T) {
		socket, server := served(t)
		check(t, "unix:"+socket, token)
		st := server.Stats()
		require.Zero(t, st.SentBytes)
		require.Zero(t, st.TakenBytes)
	})
	t.Run("cut short", func(t *testing.T) {
		socket, server := servedOn(t, nil) // a drive in Go's memory is no drive
		check(t, "unix:"+socket, token, "cut")
		require.Zero(t, server.Stats().TakenBytes)
	})
}

const token = "the engine's token"

// serving is the socket of a server whose drive is slowed down to 64 MiB/s (simulated).
func serving(t *testing.T) string {
	path, _ := served(t)
	return path
}

func served(t *testing.T) (string, *server.Server) {
	return servedOn(t, func(_ int, _ string, _ bool, size int64) (device.Device, error) {
		return device.NewThrottled(device.NewMemory(size), device.Model{ReadBandwidth: 64 << 20,
			Latency: 100 * time.Microsecond})
	})
}

func servedOn(t *testing.T, open func(int, string, bool, int64) (device.Device, error)) (string, *server.Server) {
	dir, err := os.MkdirTemp("", "skep")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	st, err := store.Open(t.Context(), store.Options{Dir: filepath.Join(dir, "store"), DeviceCount: 1, BlockBytes: 32 << 10, CacheBytes: -1, CapacityBytes: 64 << 20, SegmentBytes: 2 << 20, LeasedBytes: 1 << 50,
		OpenDevice: open})
	require.NoError(t, err)
	hash, err := auth.TokenHash(token)
	require.NoError(t, err)
	who, err := auth.New([]auth.Credential{{Name: "engine", Tenant: auth.AnyTenant, Rights: auth.All, TokenSHA256: hash}}, nil, nil)
	require.NoError(t, err)
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	server, err := server.New(st, server.Options{Auth: who, Drain: time.Second})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
		require.NoError(t, st.Close())
	})
	return path, server
}
