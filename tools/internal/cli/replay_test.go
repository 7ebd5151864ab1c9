package cli_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/tools/internal/chat"
	"github.com/skepkv/skep/tools/internal/self"
)

// writeTrace generates a workload into a file.
func writeTrace(t *testing.T, p chat.Params) string {
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	var b bytes.Buffer
	require.NoError(t, chat.Write(&b, p))
	require.NoError(t, os.WriteFile(path, b.Bytes(), 0o644))
	return path
}

// child starts the command as a process of its own.
func child(t *testing.T, args ...string) *exec.Cmd {
	cmd, err := self.Command(context.Background(), nil, args...)
	require.NoError(t, err)
	t.Cleanup(func() {
		if cmd.Process != nil && cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return cmd
}

func TestReplayThenAgain(t *testing.T) {
	t.Parallel()
	path, dir := writeTrace(t, chat.Params{Requests: 60}), filepath.Join(t.TempDir(), "store")
	first := skepRun(t, "replay", path, "--dir", dir, "--block-size", "4096", "--file-devices", "3", "--json").OK(t)
	assert.EqualValues(t, 60, first["requests"])
	assert.Zero(t, first["wrong_bytes"])
	assert.Zero(t, first["broken_promises"])
	assert.NotEmpty(t, first["backend"])
	assert.EqualValues(t, 3, first["devices"])
	assert.GreaterOrEqual(t, first["write_amplification"], 1.0)
	for i := range 3 {
		assert.FileExists(t, filepath.Join(dir, fmt.Sprintf("device-%d", i)))
	}
	assert.DirExists(t, filepath.Join(dir, "catalog"))

	second := skepRun(t, "replay", path, "--dir", dir, "--block-size", "4096", "--file-devices", "3", "--json").OK(t)
	assert.Equal(t, 1.0, second["hit_ratio"])
	assert.Zero(t, second["bytes_put"])
	assert.Zero(t, second["wrong_bytes"])

	other := skepRun(t, "replay", path, "--dir", dir, "--block-size", "4096", "--file-devices", "2", "--json")
	assert.Equal(t, 2, other.Code)
	assert.Equal(t, "--file-devices", other.JSON(t)["error"].(map[string]any)["field"])
}

func TestReplayStaysUnderItsCap(t *testing.T) {
	t.Parallel()
	path := writeTrace(t, chat.Params{Requests: 150})
	const blocks, size = 1000, 4096
	for _, policy := range []string{"cost", "lru", "s3fifo"} {
		t.Run(policy, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "store")
			r := skepRun(t, "replay", path, "--dir", dir, "--block-size", fmt.Sprint(size), "--capacity-blocks", fmt.Sprint(blocks), "--file-devices", "2", "--policy", policy, "--json").OK(t)
			limit := int64(blocks) * size * 107 / 100
			assert.EqualValues(t, limit, r["capacity_bytes"])
			var onDisk int64
			for i := range 2 {
				st, err := os.Stat(filepath.Join(dir, fmt.Sprintf("device-%d", i)))
				require.NoError(t, err)
				onDisk += st.Size()
			}
			assert.LessOrEqual(t, onDisk, limit)
			assert.Greater(t, r["blocks_evicted"], 0.0, "the workload is larger than the cap")
			assert.Equal(t, policy, r["policy"])
		})
	}
}

// What was put by a process that ended in order is found, all of it, after another one was killed that put more, and
// what that one put is right where it is found: what a kill costs of it depends on the drives (class Cache).
func TestReplaySameTraceAfterKillFindsWhatWasPut(t *testing.T) {
	t.Parallel()
	var args []string
	for requests, killed := 3000, false; !killed; requests *= 4 { // more, where a machine is done before it is killed
		path, dir := writeTrace(t, chat.Params{Requests: requests}), filepath.Join(t.TempDir(), "store")
		args = []string{"replay", path, "--dir", dir, "--block-size", "65536", "--json"}
		skepRun(t, append(args, "--limit", "50")...).OK(t)
		cmd := child(t, args...)
		stderr, err := cmd.StderrPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		lines := bufio.NewScanner(stderr)
		lines.Scan() // the first line of progress: in the middle of the work
		killed = cmd.Process.Kill() == nil
		killed = cmd.Wait() != nil && killed
	}
	r := skepRun(t, append(args, "--limit", "50")...).OK(t)
	assert.Equal(t, 1.0, r["hit_ratio"], "misses %v, found %v of %v", r["misses"], r["blocks_found"], r["blocks_referenced"])
	r = skepRun(t, append(args, "--limit", "500")...).OK(t)
	assert.Zero(t, r["wrong_bytes"])
	assert.Zero(t, r["broken_promises"])
}

func TestReplayFormats(t *testing.T) {
	t.Parallel()
	session := []byte(`{"block_size": 64, "hash_id_scope": "local", "requests": [
		{"t": 0, "in": 128, "out": 5, "hash_ids": [1, 2]}, {"t": 1, "in": 192, "out": 5, "hash_ids": [1, 2, 3]}]}`)
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for i := range 2 {
		require.NoError(t, w.WriteHeader(&tar.Header{Name: fmt.Sprintf("s%d.json", i), Mode: 0o644, Size: int64(len(session))}))
		_, err := w.Write(session)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	z, err := zstd.NewWriter(nil)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		data []byte
		hit  int
		refs int
	}{
		"kv-cache-tester": {session, 2, 5},
		"tar":             {archive.Bytes(), 4, 10}, // ids are local: two sessions share nothing
		"tar.zst":         {z.EncodeAll(archive.Bytes(), nil), 4, 10},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "trace")
			require.NoError(t, os.WriteFile(path, c.data, 0o644))
			r := skepRun(t, "replay", path, "--dir", filepath.Join(dir, "store"), "--block-size", "4096", "--json").OK(t)
			assert.EqualValues(t, c.hit, r["blocks_hit"])
			assert.EqualValues(t, c.refs, r["blocks_referenced"])
			in := skepIn(t, string(c.data), "replay", "-", "--dir", filepath.Join(dir, "stdin"), "--block-size", "4096", "--json").OK(t)
			assert.EqualValues(t, c.hit, in["blocks_hit"])
		})
	}
}

func TestAnInterruptEndsInOrder(t *testing.T) {
	t.Parallel()
	path, dir := writeTrace(t, chat.Params{Requests: 4000}), filepath.Join(t.TempDir(), "store")
	cmd := child(t, "replay", path, "--dir", dir, "--block-size", "4096", "--speed", "1x", "--json")
	var out bytes.Buffer
	cmd.Stdout = &out
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(stderr)
	require.True(t, lines.Scan(), "a line of progress")
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	for lines.Scan() {
	}
	_ = cmd.Wait()
	assert.Equal(t, 130, cmd.ProcessState.ExitCode())
	var r map[string]any
	require.NoError(t, json.Unmarshal(out.Bytes(), &r), out.String())
	assert.Equal(t, true, r["interrupted"])
	assert.Greater(t, r["requests"], 0.0)
	seen := skepRun(t, "inspect", "devices", "--dir", dir, "--json").OK(t)
	assert.Equal(t, true, seen["clean"], "closed in order")
}

func TestAMissingDeviceIsNamed(t *testing.T) {
	t.Parallel()
	path, dir := writeTrace(t, chat.Params{Requests: 5}), filepath.Join(t.TempDir(), "store")
	skepRun(t, "replay", path, "--dir", dir, "--block-size", "4096", "--json").OK(t)
	require.NoError(t, os.Rename(filepath.Join(dir, "device-2"), filepath.Join(dir, "elsewhere")))
	o := skepRun(t, "replay", path, "--dir", dir, "--block-size", "4096", "--json")
	assert.Equal(t, 3, o.Code)
	e := o.JSON(t)["error"].(map[string]any)
	assert.Equal(t, "missing device", e["kind"])
	assert.Contains(t, o.Stderr, "device-2")
	assert.NotEmpty(t, e["next"])

	seen := skepRun(t, "inspect", "devices", "--dir", dir, "--json").OK(t)
	devices := seen["devices"].([]any)
	require.Len(t, devices, 4)
	assert.Equal(t, false, devices[2].(map[string]any)["present"])
	assert.Equal(t, true, devices[1].(map[string]any)["present"])

	require.NoError(t, os.Rename(filepath.Join(dir, "elsewhere"), filepath.Join(dir, "device-2")))
	r := skepRun(t, "replay", path, "--dir", dir, "--block-size", "4096", "--json").OK(t)
	assert.Equal(t, 1.0, r["hit_ratio"])
}

func TestDamagedBytesNeverReachTheCaller(t *testing.T) {
	t.Parallel()
	path, dir := writeTrace(t, chat.Params{Requests: 20}), filepath.Join(t.TempDir(), "store")
	skepRun(t, "replay", path, "--dir", dir, "--block-size", "65536", "--file-devices", "1", "--json").OK(t)
	damage(t, filepath.Join(dir, "device-0"))
	o := skepRun(t, "replay", path, "--dir", dir, "--block-size", "65536", "--file-devices", "1", "--json")
	r := o.JSON(t)
	assert.Zero(t, r["wrong_bytes"])
	assert.NotEmpty(t, r["misses"], "damage is a miss")
	assert.Equal(t, 1, o.Code, "and, under a lease, a broken promise")
}

// damage writes over a stretch of the device, well past its superblocks.
func damage(t *testing.T, path string) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	st, err := f.Stat()
	require.NoError(t, err)
	junk := bytes.Repeat([]byte{0xA5}, 4096)
	for off := int64(256 << 10); off < st.Size()/2; off += 64 << 10 {
		_, err := f.WriteAt(junk, off)
		require.NoError(t, err)
	}
	require.NoError(t, f.Sync())
}

func TestARefusedStoreIsTold(t *testing.T) {
	t.Parallel()
	path, dir := writeTrace(t, chat.Params{Requests: 5}), filepath.Join(t.TempDir(), "store")
	o := skepRun(t, "replay", path, "--dir", dir, "--block-size", "4096", "--capacity-blocks", "1", "--json")
	assert.Equal(t, 2, o.Code)
	e := o.JSON(t)["error"].(map[string]any)
	assert.Equal(t, "invalid", e["kind"])
	assert.NotEmpty(t, e["limit"])
	// With a cap that fits it works in the same place.
	skepRun(t, "replay", path, "--dir", dir, "--block-size", "4096", "--json").OK(t)
}

// A damaged line is found before anything is made.
func TestADamagedTraceMakesNothing(t *testing.T) {
	t.Parallel()
	path, dir := filepath.Join(t.TempDir(), "trace.jsonl"), filepath.Join(t.TempDir(), "store")
	require.NoError(t, os.WriteFile(path, []byte("{\"timestamp\": 0, \"input_length\": -1, \"output_length\": 10, \"hash_ids\": [1]}\n"), 0o644))
	o := skepRun(t, "replay", path, "--dir", dir, "--json")
	assert.Equal(t, 2, o.Code)
	e := o.JSON(t)["error"].(map[string]any)
	assert.Equal(t, path+":1: input_length", e["field"])
	assert.Contains(t, e["next"], "nothing was read past this place")
	assert.NoDirExists(t, dir)
}

// What a killed process wrote is still there and right when another workload is replayed on it.
func TestReplayAfterKill(t *testing.T) {
	t.Parallel()
	var trace strings.Builder
	require.NoError(t, chat.Write(&trace, chat.Params{Requests: 4000}))
	dir := filepath.Join(t.TempDir(), "store")
	cmd, err := self.Command(context.Background(), nil, "demo-worker", "--dir", dir, "--requests", "100000", "--block-size", "4096", "--capacity-blocks", "20000")
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	for n := 0; n < 200 && lines.Scan(); n++ {
	}
	require.NoError(t, cmd.Process.Kill())
	assert.Error(t, cmd.Wait())
	r := skepIn(t, trace.String(), "replay", "-", "--limit", "200", "--dir", dir, "--block-size", "4096", "--capacity-blocks", "20000", "--json").OK(t)
	assert.EqualValues(t, 200, r["requests"])
	assert.Zero(t, r["wrong_bytes"])
	seen := skepRun(t, "inspect", "namespaces", "--dir", dir, "--json").OK(t)
	assert.Len(t, seen["namespaces"], 2, "the killed process's and this one's")
}
