package size

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// Bytes of a token as worked by hand: 2 × layers × KV heads × head dimension × 2 bytes, or layers × latent × 2.
func TestBytesOfAToken(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]int64{
		"llama-3.1-8b":  131_072,
		"llama-3.1-70b": 327_680,
		"qwen2.5-7b":    57_344,
		"qwen3-8b":      147_456,
		"deepseek-v3":   70_272,
	} {
		a := asked(t, name)
		r, err := For(a)
		require.NoError(t, err)
		assert.Equal(t, want, r.BytesPerToken, name)
		assert.Equal(t, want*16, r.BytesPerBlock, name)
	}
	a := asked(t, "llama-3.1-8b")
	a.Shape.Element = skep.FP8
	r, err := For(a)
	require.NoError(t, err)
	assert.Equal(t, int64(65_536), r.BytesPerToken)
}

func asked(t *testing.T, model string) Ask {
	t.Helper()
	s, err := Model(model)
	require.NoError(t, err)
	s.BlockTokens = 16
	return Ask{Shape: s, Prompts: 2, PromptTokens: 10_000, Repeat: .8, Keep: 86_400, Prefill: 20_000, Nodes: 1, Network: 1e9,
		DriveBytes: 3_840_000_000_000, DriveRead: 6e9, DriveWrites: 1, Copies: 1}
}

// The worked example of docs/howto/size.md: 8,000 tokens found and 2,000 computed, two prompts a second, four drives.
func TestTheManualsExample(t *testing.T) {
	t.Parallel()
	a := asked(t, "llama-3.1-8b")
	a.Drives = 4
	r, err := For(a)
	require.NoError(t, err)
	assert.InEpsilon(t, 2.1e9, r.ReadBytesPerSecond, .01)
	assert.InEpsilon(t, .60e9, r.WriteBytesPerSecond, .01)
	assert.InEpsilon(t, 13e12, r.WritesPerDay/4, .01)
	assert.InEpsilon(t, 3.4, r.DriveWritesPerDay, .01)
	assert.Equal(t, 64, r.ChecksumChunks)
	assert.InEpsilon(t, 451e6, r.IndexBytes, .01, "of what four drives hold")
	assert.InEpsilon(t, 9.8e9, r.CatalogBytes, .01)
	assert.InEpsilon(t, 2.6e9, r.ComputeBytesPerSecond, .01)
	assert.True(t, r.LoadingWins)
	assert.InEpsilon(t, .4, r.ComputeSeconds, 1e-9)
	assert.InEpsilon(t, .4-8_000*131_072/24e9, r.SavedSeconds, 1e-9)
	assert.Equal(t, 14, r.DrivesNeeded)
	assert.Equal(t, 14, r.DrivesForWear, "the 2,000 computed tokens of each prompt wear out fewer")
	assert.Equal(t, 13, r.DrivesForCapacity)
}

// Ten nodes with ten times the work: each computes a prompt as the one did, and loads nine tenths of it from the others,
// over the network where that is slower than all their drives.
func TestAFleet(t *testing.T) {
	t.Parallel()
	one := asked(t, "llama-3.1-8b")
	one.Drives = 4
	alone, err := For(one)
	require.NoError(t, err)
	a := one
	a.Nodes, a.Network, a.Prompts, a.Prefill, a.Drives = 10, 12.5e9, 20, 200_000, 40
	r, err := For(a)
	require.NoError(t, err)
	assert.Equal(t, 4, r.DrivesOfNode)
	assert.InEpsilon(t, alone.ComputeSeconds, r.ComputeSeconds, 1e-9)
	assert.InEpsilon(t, 8_000*131_072*.9/12.5e9, r.LoadSeconds, 1e-9)
	assert.InEpsilon(t, 10*12.5e9/.9, r.LoadBytesPerSecond, 1e-9)
	assert.True(t, r.NetworkLimits)
	assert.InEpsilon(t, .9*2*10_000*131_072, r.NetworkBytesPerSecond, 1e-9, "what is found, and what is put elsewhere")
	assert.InEpsilon(t, alone.IndexBytes, r.IndexBytes, 1e-9)
	assert.InEpsilon(t, alone.MemoryBytes, r.MemoryBytes, 1e-9)
	assert.Equal(t, alone.SettingsCapacity, r.SettingsCapacity)

	a.Drives = 0
	r, err = For(a)
	require.NoError(t, err)
	assert.Equal(t, 140, r.Drives, "as many on each")
	a.Drives = 9
	_, err = For(a)
	require.ErrorContains(t, err, "--nodes, 10")
}

func TestNothingRepeats(t *testing.T) {
	t.Parallel()
	a := asked(t, "llama-3.1-8b")
	a.Repeat = 0
	r, err := For(a)
	require.NoError(t, err)
	assert.Zero(t, r.ReadBytesPerSecond)
	assert.Zero(t, r.SavedSeconds)
	a.Repeat = 1
	r, err = For(a)
	require.NoError(t, err)
	assert.Zero(t, r.WritesPerDay)
	assert.InDelta(t, 100, r.YearsOfLife, 1e-9)
}

func TestWhatCannotBeIsRefusedByName(t *testing.T) {
	t.Parallel()
	for field, change := range map[string]func(a *Ask){
		"--prompts":       func(a *Ask) { a.Prompts = 0 },
		"--prompt-tokens": func(a *Ask) { a.PromptTokens = 0 },
		"--repeat":        func(a *Ask) { a.Repeat = 1.5 },
		"--keep":          func(a *Ask) { a.Keep = 0 },
		"--prefill":       func(a *Ask) { a.Prefill = -1 },
		"--nodes":         func(a *Ask) { a.Nodes = 0 },
		"--network":       func(a *Ask) { a.Network = 0 },
		"--drives":        func(a *Ask) { a.Drives = 1; a.Copies = 2 },
		"--drive-size":    func(a *Ask) { a.DriveBytes = 4096 },
		"--drive-read":    func(a *Ask) { a.DriveRead = 0 },
		"--drive-writes":  func(a *Ask) { a.DriveWrites = 0 },
		"--copies":        func(a *Ask) { a.Copies = 0 },
		"block tokens":    func(a *Ask) { a.Shape.BlockTokens = 0 },
	} {
		a := asked(t, "llama-3.1-8b")
		change(&a)
		_, err := For(a)
		var e *skep.Error
		require.ErrorAs(t, err, &e, field)
		assert.Equal(t, skep.Invalid, e.Kind, field)
		assert.Equal(t, field, e.Field)
	}
	_, err := Model("nobody-knows-it")
	require.ErrorIs(t, err, skep.Invalid)
	require.ErrorContains(t, err, "llama-3.1-8b")
	_, err = Element("int3")
	require.ErrorIs(t, err, skep.Invalid)
}

func TestConfigs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, text string }{
		{"llama-3.1-8b", `{"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}`},
		{"qwen3-8b", `{"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "hidden_size": 4096, "sliding_window": null, "use_sliding_window": false}`},
		{"deepseek-v3", `{"num_hidden_layers": 61, "num_attention_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "hidden_size": 7168}`},
		{"llama-3.1-8b", `{"text_config": {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}}`},
	} {
		want, err := Model(tt.name)
		require.NoError(t, err)
		got, note, err := FromConfig("config.json", []byte(tt.text))
		require.NoError(t, err, tt.text)
		assert.Equal(t, want, got, tt.text)
		assert.Empty(t, note)
	}
	_, note, err := FromConfig("c", []byte(`{"num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 64, "sliding_window": 4096}`))
	require.NoError(t, err)
	assert.Contains(t, note, "4096 tokens")
	for _, text := range []string{"", "[]", "{}", `{"num_hidden_layers": 32}`, `{"num_hidden_layers": -1, "num_attention_heads": 1, "head_dim": 1}`} {
		_, _, err := FromConfig("c", []byte(text))
		require.ErrorIs(t, err, skep.Invalid, text)
		require.ErrorContains(t, err, "--config")
	}
}
