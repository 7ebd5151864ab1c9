package serve

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
)

// Keys come from files and the environment, are never shown, and what is wrong with them is
// said by where they come from.
//
// Alone: the environment is the process's.
func TestEncryptionKeysAreReadAndNeverShown(t *testing.T) {
	first, second := strings.Repeat("4b5a", 16), strings.Repeat("6c7d", 16)
	t.Setenv("SKEP_TEST_KEY", second)
	file := write(t, "skep.yaml", fmt.Sprintf(`
dir: /d
store: {encryption_key_file: %s}
tenants:
  a: {encryption_key_env: SKEP_TEST_KEY}
  b: {connections: 3}
`, write(t, "keys", "# newest\n"+first+"\n"+second+"\n")))
	c, err := Load(file, nil, nil)
	require.NoError(t, err)
	keys, wrong := c.encryptionKeys(os.LookupEnv)
	require.Empty(t, wrong)
	require.Len(t, keys, 2)
	require.Len(t, keys[""], 2)
	require.Equal(t, keys[""][1], keys["a"][0])
	var out bytes.Buffer
	require.NoError(t, c.Print(&out))
	(&server{log: slog.New(slog.NewTextHandler(&out, nil))}).tellEncrypted(keys)
	fmt.Fprintf(&out, "%+v %+v", c, keys)
	assert.Contains(t, out.String(), keys["a"][0].ID())
	for _, secret := range []string{"4b5a", "6c7d"} {
		assert.NotContains(t, out.String(), secret)
	}

	_, err = Load(write(t, "bad.yaml", fmt.Sprintf(`
dir: /d
store: {encryption_key_file: /none/keys}
tenants:
  short: {encryption_key_file: %s}
  twice: {encryption_key_file: x, encryption_key_env: y}
  unset: {encryption_key_env: SKEP_TEST_NO_KEY}
`, write(t, "short", first[:60]))), nil, nil)
	require.ErrorIs(t, err, skep.Invalid)
	for _, part := range []string{"store.encryption_key_file is /none/keys", "openssl rand -hex 32 > /none/keys",
		"tenants.short.encryption_key_file is", "line 1", "tenants.twice.encryption_key_file and",
		"tenants.unset.encryption_key_env is SKEP_TEST_NO_KEY"} {
		assert.ErrorContains(t, err, part)
	}
	assert.NotContains(t, err.Error(), "4b5a")
}

// A reload takes a new key, and refuses to take the last one away.
func TestEncryptionKeysAreReplaced(t *testing.T) {
	t.Parallel()
	first, second := strings.Repeat("4b5a", 16)+"\n", strings.Repeat("6c7d", 16)+"\n"
	path := write(t, "keys", first)
	c := Default()
	c.Dir, c.Tenants = t.TempDir(), map[string]TenantConfig{"t": {EncryptionKeyFile: path}}
	c.Store.CapacityBytes, c.Store.IOBytes = 64<<20, 64<<20
	o := c.storeOptions()
	o.EncryptionKeys, _ = c.encryptionKeys(os.LookupEnv)
	st, err := store.Open(t.Context(), o)
	require.NoError(t, err)
	defer func() { require.NoError(t, st.Close()) }()
	var log bytes.Buffer
	s := &server{st: st, log: slog.New(slog.NewTextHandler(&log, nil))}
	before := fingerprint(c)
	require.NoError(t, os.WriteFile(path, []byte(second+first), 0o600))
	require.NoError(t, os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0)))
	require.NotEqual(t, before, fingerprint(c), "the file is looked at")
	before = fingerprint(c)
	require.Equal(t, before, fingerprint(c))
	require.NoError(t, os.WriteFile(path, []byte(first+second), 0o600))
	require.NoError(t, os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0)))
	require.NotEqual(t, before, fingerprint(c), "it has the time and the size of the one before")
	require.NoError(t, os.WriteFile(path, []byte(second+first), 0o600))
	s.replaceKeys(c)
	require.Contains(t, log.String(), "older_keys=1")
	require.NotContains(t, log.String(), "level=ERROR")
	s.replaceKeys(&Config{})
	require.Contains(t, log.String(), "those in use stay")
	require.Contains(t, log.String(), "at least 1")
}
