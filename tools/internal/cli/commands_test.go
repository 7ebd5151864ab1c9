package cli_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/tools/internal/replay"
)

const inspected = `{"timestamp": 0, "input_length": 1300, "output_length": 10, "hash_ids": [1, 2, 3]}
{"timestamp": 100, "input_length": 2048, "output_length": 10, "hash_ids": [1, 2, 4, 5]}
`

func TestInspect(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	skepIn(t, inspected, "replay", "-", "--dir", dir, "--block-size", "8192", "--file-devices", "2", "--json").OK(t)
	one := func(v any) map[string]any { return v.([]any)[0].(map[string]any) }

	ns := skepRun(t, "inspect", "namespaces", "--dir", dir, "--json").OK(t)
	assert.EqualValues(t, 5, one(ns["namespaces"])["blocks"])
	assert.EqualValues(t, 5*8192, one(ns["namespaces"])["block_bytes"])
	assert.NotEmpty(t, ns["backend"])

	groups := skepRun(t, "inspect", "groups", "--dir", dir, "--json").OK(t)
	blocks := 0.0
	for _, g := range groups["groups"].([]any) {
		blocks += g.(map[string]any)["blocks"].(float64)
	}
	assert.Equal(t, 5.0, blocks)

	last := replay.Key("", 5).String()
	b := one(skepRun(t, "inspect", "block", last[:10], "--dir", dir, "--json").OK(t)["blocks"])
	assert.Equal(t, last, b["key"])
	assert.Equal(t, replay.Key("", 4).String(), b["parent"])
	assert.EqualValues(t, 3, b["depth"])
	assert.EqualValues(t, 8192, b["bytes"])
	tail := one(skepRun(t, "inspect", "block", replay.Key("", 3).String(), "--dir", dir, "--json").OK(t)["blocks"])
	assert.EqualValues(t, 1300-2*512, tail["valid_tokens"])

	// By its last key alone, and by all of its keys with one that is not there.
	chain := skepRun(t, "inspect", "chain", last, "--dir", dir, "--json").OK(t)
	assert.EqualValues(t, 4, chain["keys"])
	assert.EqualValues(t, 4, chain["restorable"])
	chain = skepRun(t, "inspect", "chain", replay.Key("", 1).String(), replay.Key("", 7).String(), replay.Key("", 4).String(), "--dir", dir, "--json").OK(t)
	assert.EqualValues(t, 1, chain["restorable"])
	links := chain["links"].([]any)
	assert.Equal(t, "not stored", links[1].(map[string]any)["problem"])
	assert.Equal(t, "stored under another parent", links[2].(map[string]any)["problem"])

	memory := skepRun(t, "inspect", "memory", "--dir", dir, "--json").OK(t)
	assert.EqualValues(t, 5, memory["blocks"])
	assert.NotEmpty(t, memory["memory"])

	for _, args := range [][]string{{"block", "00000000"}, {"chain", strings.Repeat("0", 64)}} {
		o := skepRun(t, append([]string{"inspect", "--dir", dir}, args...)...)
		assert.Equal(t, 3, o.Code, "%v", args)
		assert.Contains(t, o.Stderr, "not found")
	}
	for _, args := range [][]string{{"block", "xyz"}, {"block", "1234"}, {"chain", "12"}} {
		o := skepRun(t, append([]string{"inspect", "--dir", dir}, args...)...)
		assert.Equal(t, 2, o.Code, "%v", args)
		assert.Contains(t, o.Stderr, "invalid")
	}
	for _, what := range []string{"devices", "groups", "namespaces", "memory"} {
		assert.Zero(t, skepRun(t, "inspect", what, "--dir", dir).Code, "as a table: %s", what)
	}
	assert.Zero(t, skepRun(t, "inspect", "block", last, "--dir", dir).Code)
	assert.Zero(t, skepRun(t, "inspect", "chain", last, "--dir", dir).Code)
}

func TestInspectALiveStore(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	skepIn(t, inspected, "replay", "-", "--dir", dir, "--block-size", "8192", "--json").OK(t)
	st, err := store.Open(t.Context(), store.Options{Dir: dir})
	require.NoError(t, err)
	defer func() { require.NoError(t, st.Close()) }()
	for _, what := range []string{"devices", "groups", "namespaces", "memory"} {
		skepRun(t, "inspect", what, "--dir", dir, "--json").OK(t)
	}
	o := skepIn(t, inspected, "replay", "-", "--dir", dir, "--block-size", "8192", "--json")
	assert.Equal(t, 4, o.Code, "a second writer is refused")
	e := o.JSON(t)["error"].(map[string]any)
	assert.Equal(t, "locked", e["kind"])
	assert.Contains(t, e["next"], "skep inspect")
}

func TestDoctorAndVersion(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := skepRun(t, "doctor", "--dir", dir, "--json").JSON(t)
	assert.NotEmpty(t, r["backend"])
	assert.Greater(t, r["checksum_gbps"], 0.0)
	for _, c := range r["checks"].([]any) {
		c := c.(map[string]any)
		assert.Contains(t, []any{"ok", "warn", "fail"}, c["status"], c["name"])
		if c["status"] == "fail" {
			assert.NotEmpty(t, c["next"], c["name"])
		}
	}
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, left, "nothing is left behind")
	assert.Contains(t, skepRun(t, "doctor", "--dir", dir).Stdout, "O_DIRECT")
	assert.NotEmpty(t, skepRun(t, "version", "--json").OK(t)["go"])
	assert.Contains(t, skepRun(t, "version").Stdout, "skep ")
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	assert.Equal(t, 2, skepRun(t, "doctor", "--dir", file).Code)
}

func TestDemo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	page := filepath.Join(dir, "page.html")
	r := skepRun(t, "demo", "--dir", dir, "--page", page, "--requests", "120", "--block-size", "8192", "--capacity-blocks", "1500", "--json").OK(t)
	assert.EqualValues(t, 120, r["requests"])
	assert.Zero(t, r["wrong_bytes"])
	assert.Zero(t, r["broken_promises"])
	assert.GreaterOrEqual(t, r["killed_at_request"], 66.0)
	assert.Greater(t, r["blocks_recovered"], 0.0)
	assert.Greater(t, r["recent_blocks_found"], 0.0)
	html, err := os.ReadFile(page)
	require.NoError(t, err)
	for _, title := range []string{"Hit ratio", "Bytes read by device", "Lookup latency", "Restore latency"} {
		assert.True(t, bytes.Contains(html, []byte(title)), title)
	}
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, left, 1, "the page, and nothing else: %v", left)
}
