package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/tools/internal/command"
)

// top, inspect mrc and support look at a store that is open, through its socket.
func TestLookingAtALiveStore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := store.Open(t.Context(), store.Options{Dir: dir, DeviceCount: 2, CapacityBytes: 8 << 20, SegmentBytes: 128 << 10, BlockBytes: 8 << 10,
		IOBytes: 16 << 20, CacheBytes: 4 << 20, Admin: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	ns, err := s.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "acme", Name: "n", Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}, Chained: true})
	require.NoError(t, err)
	_, err = s.Put(t.Context(), &skep.PutRequest{Scope: skep.Scope{Namespace: ns.ID}, Blocks: []skep.Block{{Key: skep.Key{1}, Parts: []skep.Part{{Bytes: make([]byte, 5000)}}}}})
	require.NoError(t, err)

	top := skepRun(t, "top", "--dir", dir, "--once", "--interval", "20ms", "--json").OK(t)
	assert.EqualValues(t, 1, top["stats"].(map[string]any)["put_blocks"])
	assert.Len(t, top["rates"].(map[string]any)["devices"], 2)
	text := skepRun(t, "top", "--dir", dir, "--once", "--interval", "20ms")
	require.Equal(t, 0, text.Code, text.Stderr)
	assert.Contains(t, text.Stdout, "acme")
	for l := range strings.Lines(text.Stdout) {
		assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimRight(l, "\n")), 80)
	}
	mrc := skepRun(t, "inspect", "mrc", "--dir", dir, "--json").OK(t)
	assert.EqualValues(t, 1, mrc["blocks"])

	file := filepath.Join(t.TempDir(), "s.tar.zst")
	bundle := skepRun(t, "support", "--dir", dir, "-o", file, "--json").OK(t)
	assert.Contains(t, bundle["files"], "stats.json")
	assert.Empty(t, bundle["missing"])
	info, err := os.Stat(file)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	assert.Equal(t, 2, skepRun(t, "support", "--dir", dir, "-o", file).Code, "it is there already")
}

func TestLookingAtNothing(t *testing.T) {
	t.Parallel()
	for code, list := range map[int][][]string{
		command.Input:    {{"top"}, {"top", "--dir", "x", "--interval", "1ms"}, {"top", "--dir", "x", "--server", "127.0.0.1:1"}, {"support"}},
		command.TryAgain: {{"top", "--dir", t.TempDir(), "--once"}, {"inspect", "mrc", "--dir", t.TempDir()}},
	} {
		for _, args := range list {
			o := skepRun(t, args...)
			assert.Equal(t, code, o.Code, "%v", args)
			assert.Contains(t, o.Stderr, "next:")
		}
	}
}
