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
	assert.Equal(t, "6", c.Devices)
	assert.Equal(t, serve.Size(1<<20), c.Store.BlockBytes)
	assert.Equal(t, 2, c.Redis.Copies)
	assert.Positive(t, c.Store.CapacityBytes)

	again := skepRun(t, "size", "--settings", file)
	assert.Equal(t, 2, again.Code)
	assert.Contains(t, again.Stderr, "not there yet")
	both := skepRun(t, "size", "--model", "llama-3.1-8b", "--config", model)
	assert.Equal(t, 2, both.Code)
}
