package lab_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// requireLoss requires that a kill cost a client in Go, of 8 blocks, no more than it may.
func requireLoss(t *testing.T, loss map[string]any, killed string) {
	t.Helper()
	first, last := loss["first"].(map[string]any), loss["last"].(map[string]any)
	assert.Equal(t, "go", loss["way"])
	assert.Equal(t, killed, loss["killed"])
	assert.EqualValues(t, 8, first["got"].(float64)+first["missed"].(float64)+first["failed"].(float64))
	assert.Zero(t, first["wrong"])
	assert.Zero(t, last["failed"])
	assert.EqualValues(t, 8, loss["back"].(map[string]any)["got"], "the process that was killed has its blocks again")
	if loss["copies"].(float64) == 2 {
		assert.EqualValues(t, 8, last["got"], "the other copy is there")
	}
}

// Alone: the environment is the process's.
func TestBench(t *testing.T) {
	dir := t.TempDir()
	rows := func(r map[string]any) []any { return r["rows"].([]any) }
	t.Run("restore", func(t *testing.T) {
		r := benchRun(t, "restore", "--dir", dir, "--rounds", "2", "--chain-size", "134217728", "--file-devices", "1,2", "--json").OK(t)
		require.Len(t, rows(r), 4, "two numbers of devices, two orders")
		for _, row := range rows(r) {
			row := row.(map[string]any)
			assert.Greater(t, row["gbps"], 0.0)
			assert.Greater(t, row["limit_gbps"], 0.0)
			assert.Len(t, row["samples"], 2)
			assert.Len(t, row["limit_samples"], 2)
		}
		assert.NotEmpty(t, r["limit"])
	})
	t.Run("restore without fio", func(t *testing.T) {
		t.Setenv("PATH", "")
		r := benchRun(t, "restore", "--dir", dir, "--rounds", "1", "--chain-size", "67108864", "--block-size", "65536", "--json").OK(t)
		require.Len(t, rows(r), 1, "65536 bytes are no layers of the model")
		assert.Contains(t, r["limit"], "fio is not installed")
		assert.Greater(t, rows(r)[0].(map[string]any)["limit_gbps"], 0.0)
	})
	t.Run("put", func(t *testing.T) {
		r := benchRun(t, "put", "--dir", dir, "--rounds", "2", "--chain-size", "134217728", "--json").OK(t)
		row := rows(r)[0].(map[string]any)
		assert.Greater(t, row["ratio"], 0.0)
		assert.GreaterOrEqual(t, row["device_bytes_written"], 134217728.0)
	})
	t.Run("device", func(t *testing.T) {
		r := benchRun(t, "device", "--dir", dir, "--rounds", "1", "--file-size", "16777216", "--seconds", "0.05", "--json").OK(t)
		assert.GreaterOrEqual(t, len(rows(r)), 2)
	})
	t.Run("lookup", func(t *testing.T) {
		r := benchRun(t, "lookup", "--dir", dir, "--rounds", "2", "--blocks", "50000", "--store-blocks", "3000", "--keys", "200", "--lookups", "50", "--json").OK(t)
		require.Len(t, rows(r), 4)
		for _, row := range rows(r) {
			assert.Zero(t, row.(map[string]any)["wrong"])
			assert.Greater(t, row.(map[string]any)["us_p50"], 0.0)
		}
	})
	t.Run("engines without Python", func(t *testing.T) {
		r := benchRun(t, "engines", "--dir", dir, "--rounds", "2", "--blocks", "8", "--block-size", "65536", "--batch", "3",
			"--python", "/nowhere/python", "--json").OK(t)
		require.Len(t, r["skipped"], 3)
		for i, way := range []string{"skepkv: ", "each: ", "mooncake: "} {
			assert.Contains(t, r["skipped"].([]any)[i], way)
		}
		require.Len(t, rows(r), 6, "put, put to memory and two gets of the embedded store, put and get of fio")
		for _, row := range rows(r) {
			if row.(map[string]any)["way"] != "fio" { // it tells milliseconds: of so little, none
				assert.Greater(t, row.(map[string]any)["gbps"], 0.0)
			}
			assert.Len(t, row.(map[string]any)["samples"], 2)
		}
		assert.EqualValues(t, 8, rows(r)[5].(map[string]any)["blocks_in_memory"])
		for flag, bad := range map[string]string{"--blocks": "0", "--batch": "65", "--block-size": "1", "--keys": "0"} {
			o := benchRun(t, "engines", "--dir", dir, flag, bad)
			assert.Equal(t, 2, o.Code)
			assert.Contains(t, o.Stderr, flag)
		}
	})
	t.Run("engines on nodes without Python", func(t *testing.T) {
		small := []string{"engines", "--dir", dir, "--rounds", "1", "--blocks", "8", "--block-size", "65536",
			"--batch", "3", "--nodes", "3", "--python", "/nowhere/python", "--json"}
		r := benchRun(t, small...).OK(t)
		require.Len(t, r["skipped"], 4, "each and mooncake, of one copy and of two")
		require.Len(t, rows(r), 8, "put, put to memory and two gets, of one copy and of two")
		for _, row := range rows(r) {
			assert.Equal(t, "go", row.(map[string]any)["way"])
			assert.Greater(t, row.(map[string]any)["gbps"], 0.0)
		}
		assert.EqualValues(t, 8, rows(r)[6].(map[string]any)["blocks_in_memory"])
		for _, killed := range []string{"node", "master"} {
			r := benchRun(t, append(small, "--kill", killed, "--seconds", "30")...).OK(t)
			require.Len(t, r["losses"], 2)
			for i, loss := range r["losses"].([]any) {
				loss := loss.(map[string]any)
				assert.EqualValues(t, i+1, loss["copies"])
				requireLoss(t, loss, killed)
			}
		}
		for flag, bad := range map[string]string{"--nodes": "2", "--kill": "all", "--seconds": "601"} {
			o := benchRun(t, "engines", "--dir", dir, "--nodes", "3", flag, bad)
			assert.Equal(t, 2, o.Code)
			assert.Contains(t, o.Stderr, flag)
		}
		assert.Contains(t, benchRun(t, "engines", "--dir", dir, "--kill", "node").Stderr, "--nodes")
	})
	t.Run("engines on nodes in Python", func(t *testing.T) {
		small := []string{"engines", "--dir", dir, "--rounds", "1", "--blocks", "8", "--block-size", "65536",
			"--batch", "3", "--nodes", "3", "--mooncake-python", "/nowhere/python", "--json"}
		r := benchRun(t, small...).OK(t)
		if missing := r["skipped"].([]any)[0].(string); !strings.HasPrefix(missing, "mooncake: ") {
			t.Skip("needs a python3 that has skepkv: " + missing)
		}
		require.Len(t, rows(r), 16, "put, put to memory and two gets, of one copy and of two, in Go and in Python")
		for i, row := range rows(r) {
			assert.Equal(t, []string{"go", "each"}[i%2], row.(map[string]any)["way"])
			assert.Greater(t, row.(map[string]any)["gbps"], 0.0)
		}
	})
	t.Run("recover", func(t *testing.T) {
		r := benchRun(t, "recover", "--dir", dir, "--blocks", "2000", "--check", "100", "--json").OK(t)
		assert.Zero(t, r["wrong"])
		assert.EqualValues(t, 100, r["chains_checked"])
		assert.GreaterOrEqual(t, r["blocks"], 2000.0)
		assert.Greater(t, r["bytes_compared"], 0.0)
	})
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, left, "nothing is left behind")
}
