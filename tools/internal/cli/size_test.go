package cli_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/tools/internal/serve"
)

// What skep size answers is what a server is started with.
func TestSizeWritesSettings(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	model, file := filepath.Join(dir, "config.json"), filepath.Join(dir, "skep.yaml")
	require.NoError(t, os.WriteFile(model, []byte(`{"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}`), 0o644))
	r := skepRun(t, "size", "--config", model, "--kv", "fp8_e4m3", "--copies", "2", "--drives", "6", "--settings", file, "--json").OK(t)
	assert.InDelta(t, 65_536, r["bytes_per_token"], 0)
	assert.Equal(t, file, r["settings"])
	c, err := serve.Load(file, nil, map[string]string{"dir": dir})
	require.NoError(t, err)
	assert.Equal(t, 6, c.FileDevices)
	assert.Equal(t, serve.Size(1<<20), c.Store.BlockBytes)
	assert.Equal(t, 2, c.Redis.Copies)
	assert.Positive(t, c.Store.CapacityBytes)
	skepRun(t, "config", "check", file, "--json").OK(t)

	little := filepath.Join(dir, "little.yaml") // which would be all there is, were it written as 0
	skepRun(t, "size", "--prompts", "1e-6", "--prompt-tokens", "16", "--keep", "1s",
		"--settings", little, "--json").OK(t)
	c, err = serve.Load(little, nil, map[string]string{"dir": dir})
	require.NoError(t, err)
	assert.Equal(t, serve.Size(1<<20), c.Store.CapacityBytes)

	again := skepRun(t, "size", "--settings", file)
	assert.Equal(t, 2, again.Code)
	assert.Contains(t, again.Stderr, "not there yet")
	fleet := skepRun(t, "size", "--prompts", "1000", "--settings", filepath.Join(dir, "fleet.yaml"))
	assert.Equal(t, 2, fleet.Code)
	assert.Contains(t, fleet.Stderr, "at most 64, which one server has")
	assert.NoFileExists(t, filepath.Join(dir, "fleet.yaml"), "a server would refuse it")
	both := skepRun(t, "size", "--model", "llama-3.1-8b", "--config", model)
	assert.Equal(t, 2, both.Code)
}

// A recorded workload says what its prompts are, and which of them begin alike.
func TestSizeOfATrace(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "trace.jsonl")
	require.NoError(t, os.WriteFile(file, []byte(`{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]}
{"timestamp": 4000, "input_length": 1024, "output_length": 1, "hash_ids": [1, 3]}
`), 0o644))
	r := skepRun(t, "size", "--trace", file, "--json").OK(t)
	assert.InDelta(t, 2*512*131_072/4, r["read_bytes_per_second"].(float64)*2, 1, "512 tokens of 128 KiB are found in 4 s")
	text := skepRun(t, "size", "--trace", file)
	assert.Contains(t, text.Stdout, "2 prompts in 4s: 0.5 a second of 1024 tokens, 25.0 % of them found within 24h0m0s")

	both := skepRun(t, "size", "--trace", file, "--repeat", "0.5")
	assert.Equal(t, 2, both.Code)
	assert.Contains(t, both.Stderr, "--trace and --repeat")
	require.NoError(t, os.WriteFile(file, []byte("{\"timestamp\": 0}\n"), 0o644))
	bad := skepRun(t, "size", "--trace", file)
	assert.Equal(t, 2, bad.Code)
	assert.Contains(t, bad.Stderr, "mend or re-download")
}
