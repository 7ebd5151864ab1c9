package support

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/store/segment"
	"github.com/skepkv/skep/store/unjudged"
	"github.com/skepkv/skep/tools/leaks"
)

func TestMain(m *testing.M) {
	unjudged.Drives()
	leaks.Main(m)
}

const (
	payload = "PAYLOAD-of-a-prompt-nobody-may-see"
	salt    = "SALT-of-a-user"
	name    = "NAME-the-engine-gave-to-a-block"
	tenant  = "acme"
)

// live is a store that is open, with something of everything that must stay in it.
func live(t *testing.T) (dir string, key skep.Key) {
	dir = t.TempDir()
	s, err := store.Open(t.Context(), store.Options{Dir: dir, DeviceCount: 2, CapacityBytes: 8 << 20, SegmentBytes: 128 << 10, BlockBytes: 8 << 10,
		IOBytes: 16 << 20, CacheBytes: 4 << 20, Admin: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	ns, err := s.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: tenant, Name: "chat", Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}, Chained: true})
	require.NoError(t, err)
	key = skep.KeyOf([]byte("a prompt"))
	for _, sc := range []skep.Scope{{Namespace: ns.ID}, {Namespace: ns.ID, Salt: salt}} {
		for _, size := range []int{100, 9000} {
			data := bytes.Repeat([]byte(payload), size/len(payload)+1)
			key = skep.KeyOf(key[:])
			_, err := s.Put(t.Context(), &skep.PutRequest{Scope: sc, Blocks: []skep.Block{{Key: key, Name: []byte(name), Parts: []skep.Part{{Bytes: data}}}}})
			require.NoError(t, err)
		}
	}
	return dir, key
}

func unpack(t *testing.T, b []byte) map[string][]byte {
	z, err := zstd.NewReader(bytes.NewReader(b))
	require.NoError(t, err)
	defer z.Close()
	out := map[string][]byte{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			return out
		}
		require.NoError(t, err)
		out[h.Name], err = io.ReadAll(r)
		require.NoError(t, err)
	}
}

// secretOf reads the store's secret off a device's superblock.
func secretOf(t *testing.T, dir string) []byte {
	b, err := os.ReadFile(filepath.Join(dir, "device-0"))
	require.NoError(t, err)
	sb, _, err := segment.ChooseSuperblock(b[:layout.PageSize], b[layout.PageSize:2*layout.PageSize])
	require.NoError(t, err)
	return sb.HashSecret[:]
}

// A bundle tells all it promises, and nothing that must stay.
func TestBundleHoldsNoPayloadAndNoSecrets(t *testing.T) {
	t.Parallel()
	dir, key := live(t)
	var b bytes.Buffer
	r, err := Write(t.Context(), Options{Dir: dir, Version: "test", Log: slog.New(slog.DiscardHandler)}, &b)
	require.NoError(t, err)
	require.Empty(t, r.Missing)
	files := unpack(t, b.Bytes())
	for _, f := range []string{"about.json", "doctor.json", "options.json", "stats.json", "log.txt", "devices.json", "groups.json", "namespaces.json"} {
		require.NotEmpty(t, files[f], f)
	}
	require.Contains(t, string(files["namespaces.json"]), tenant)
	require.Contains(t, string(files["log.txt"]), "store open")
	var st skep.Stats
	require.NoError(t, json.Unmarshal(files["stats.json"], &st))
	require.EqualValues(t, 4, st.PutBlocks)

	secret := secretOf(t, dir)
	require.Len(t, secret, 16)
	for what, v := range map[string][]byte{"payload": []byte(payload), "salt": []byte(salt), "a block's name": []byte(name), "a key": key[:], "the secret": secret} {
		forms := [][]byte{v, []byte(hex.EncodeToString(v)), []byte(base64.StdEncoding.EncodeToString(v)), []byte(base64.URLEncoding.EncodeToString(v))}
		list, err := json.Marshal(toInts(v))
		require.NoError(t, err)
		forms = append(forms, bytes.Trim(list, "[]"))
		for f, data := range files {
			for i, form := range forms {
				require.False(t, bytes.Contains(data, form), "%s is in %s, form %d", what, f, i)
			}
		}
	}
	dirty, err := os.ReadFile(filepath.Join(dir, "device-0"))
	require.NoError(t, err)
	require.True(t, bytes.Contains(dirty, []byte(payload)), "the test looks for what the store does hold")
}

func toInts(b []byte) (out []int) {
	for _, x := range b {
		out = append(out, int(x))
	}
	return out
}

// Of a store that is not open, or of which little is left, there is what there is.
func TestBundleOfWhatThereIs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.ErrorIs(t, Check(dir), skep.NotFound, "no store was ever here")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "device-3"), nil, 0o600))
	require.NoError(t, Check(dir))
	var b bytes.Buffer
	r, err := Write(t.Context(), Options{Dir: dir, Log: slog.New(slog.DiscardHandler)}, &b)
	require.NoError(t, err)
	files := unpack(t, b.Bytes())
	var about About
	require.NoError(t, json.Unmarshal(files["about.json"], &about))
	require.Equal(t, r.Missing, about.Missing)
	for _, f := range []string{"stats.json", "log.txt", "options.json", "groups.json"} {
		require.NotEmpty(t, about.Missing[f], f)
	}
	require.NotEmpty(t, files["doctor.json"])
	require.Error(t, Check(filepath.Join(dir, "absent")))
	require.Error(t, Check(""))
}

// What was interrupted lacks things that are there: it is no bundle.
func TestABundleThatIsInterruptedIsNone(t *testing.T) {
	t.Parallel()
	dir, _ := live(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Write(ctx, Options{Dir: dir, Log: slog.New(slog.DiscardHandler)}, io.Discard)
	require.ErrorIs(t, err, context.Canceled)
}
