package cli_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
)

// What is said of a copy of a store's directory is said of the copy, also where it lacks a device.
func TestACopyIsListedAsItself(t *testing.T) {
	t.Parallel()
	dir, copied := filepath.Join(t.TempDir(), "store"), filepath.Join(t.TempDir(), "copy")
	skepIn(t, inspected, "replay", "-", "--dir", dir, "--block-size", "8192", "--file-devices", "2", "--json").OK(t)
	require.NoError(t, exec.Command("cp", "-a", dir, copied).Run())
	list := func(want ...bool) {
		for _, cmd := range [][]string{{"inspect", "devices"}, {"device", "list"}} {
			r := skepRun(t, append(cmd, "--dir", copied, "--json")...).OK(t)
			for i, d := range r["devices"].([]any) {
				d := d.(map[string]any)
				assert.True(t, strings.HasPrefix(d["path"].(string), copied), "%v: %v", cmd, d["path"])
				assert.Equal(t, want[i], d["present"], "%v: %v", cmd, d)
			}
		}
	}
	list(true, true)
	require.NoError(t, os.Remove(filepath.Join(copied, "device-1")))
	list(true, false)
	o := skepRun(t, "verify", "--dir", copied)
	assert.Equal(t, 6, o.Code)
	assert.Contains(t, o.Stdout, "device-1")
}

// inTwoCopies makes a store on three devices with so many blocks of 8 KiB, each in two copies.
func inTwoCopies(t testing.TB, dir string, blocks int) (skep.Scope, []skep.Key) {
	ctx := context.Background()
	s, err := store.Open(ctx, store.Options{Dir: dir, DeviceCount: 3, SegmentBytes: 128 << 10, BlockBytes: 8 << 10, CapacityBytes: 12 << 20, CacheBytes: -1})
	require.NoError(t, err)
	n, err := s.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}, Class: skep.Durable, Copies: 2})
	require.NoError(t, err)
	r := &skep.PutRequest{Scope: skep.Scope{Namespace: n.ID}}
	var keys []skep.Key
	for i := range blocks {
		keys = append(keys, skep.KeyOf([]byte{byte(i)}))
		r.Blocks = append(r.Blocks, skep.Block{Key: keys[i], Parts: []skep.Part{{Name: skep.PartKV, Bytes: bytes.Repeat([]byte{byte(i)}, 8<<10)}}})
	}
	res, err := s.Put(ctx, r)
	require.NoError(t, err)
	for _, r := range res {
		require.Equal(t, skep.Committed, r.Outcome)
	}
	require.NoError(t, s.Close())
	return r.Scope, keys
}

// Two copies fill twice the space: the share that lives says so. And a scrub that changes nothing
// says nothing of having mended, a rebuilt store nothing of how often it was opened.
func TestInspectingSaysWhatIs(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	inTwoCopies(t, dir, 20)
	groups := skepRun(t, "inspect", "groups", "--dir", dir, "--json").OK(t)
	for _, g := range groups["groups"].([]any) {
		g := g.(map[string]any)
		room := g["segment_bytes"].(float64) * float64(len(g["devices"].([]any)))
		assert.InDelta(t, 2*g["block_bytes"].(float64)/room, g["live_share"], 1e-9)
	}
	f, err := os.OpenFile(filepath.Join(dir, "device-1"), os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(make([]byte, 4096), 0)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	o := skepRun(t, "scrub", "--dir", dir, "--dry-run")
	assert.Equal(t, 6, o.Code)
	assert.NotContains(t, o.Stdout, "entries mended")
	assert.Contains(t, o.Stdout, "nothing was changed")
	skepRun(t, "rebuild", "--dir", dir, "--json").OK(t)
	o = skepRun(t, "inspect", "devices", "--dir", dir)
	assert.Contains(t, o.Stdout, "its catalog was rebuilt")
	assert.NotContains(t, o.Stdout, "times")
}

// One drive that is gone is one cause: its segments by the dozen are counted, and an error says a thing once.
func TestALostDriveIsNotToldByTheSegment(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	inTwoCopies(t, dir, 250)
	require.NoError(t, os.Remove(filepath.Join(dir, "device-1")))
	o := skepRun(t, "verify", "--dir", dir)
	assert.Equal(t, 6, o.Code)
	assert.Regexp(t, `segment header \(.*device-1\): \d+ more of these`, o.Stdout)
	assert.Less(t, strings.Count(o.Stdout, "\n"), 20, o.Stdout)
	for line := range strings.Lines(o.Stdout) {
		if !strings.HasPrefix(line, "devices:") { // which tells of a rebuild's refusal, and of its cause
			assert.LessOrEqual(t, strings.Count(line, "missing device"), 1, line)
		}
	}
	all := skepRun(t, "verify", "--dir", dir, "--json")
	assert.Greater(t, strings.Count(all.Stdout, `"segment header"`), 3)
}

// What is said of a store that lacks a device names the ways out, with the right exit code.
func TestUnreadableDeviceAtTheCommandLine(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	skepIn(t, inspected, "replay", "-", "--dir", dir, "--block-size", "8192", "--file-devices", "2", "--json").OK(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "device-1"), []byte("noise"), 0o644))
	o := skepRun(t, "rebuild", "--dir", dir, "--dry-run")
	assert.Equal(t, 6, o.Code, o.Stderr)
	assert.Contains(t, o.Stdout, "--without-missing")
	o = skepRun(t, "rebuild", "--dir", dir)
	assert.Equal(t, 3, o.Code)
	assert.Contains(t, o.Stderr, "--without-missing")
	r := skepRun(t, "device", "list", "--dir", dir, "--json").OK(t)
	assert.NotEmpty(t, r["devices"].([]any)[1].(map[string]any)["problem"])
	o = skepRun(t, "verify", "--dir", dir)
	assert.Equal(t, 6, o.Code)
	assert.Contains(t, o.Stdout, "device-1")
}
