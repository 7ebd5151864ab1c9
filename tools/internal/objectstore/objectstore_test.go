package objectstore

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/tools/internal/units"
)

// JSON and YAML say the same: sizes and times are text in both, and sizes may be numbers.
func TestSettingsInJSONAndYAML(t *testing.T) {
	t.Parallel()
	a, b := Default(), Default()
	text := `{"endpoint": "http://h", "max_bytes": "10TiB", "rate": 4096, "every": "1m", "namespaces": ["t/*"], "unfound": true}`
	require.NoError(t, json.Unmarshal([]byte(text), &a))
	require.NoError(t, yaml.Unmarshal([]byte(text), &b))
	require.Equal(t, a, b)
	require.Equal(t, units.Size(10<<40), a.MaxBytes)
	require.Equal(t, units.Duration(time.Minute), a.Every)
	require.Equal(t, .7, a.BeginAt) // what is not given stays

	for _, text := range []string{`{"every": 30}`, `{"max_bytes": "much"}`, `{"max_bytes": -1}`, `{"rate": null}`} {
		require.Error(t, json.Unmarshal([]byte(text), &a), text)
	}
}

// What is wrong in a file is said by the setting that names it, and never what is in it.
func TestFilesThatAreNone(t *testing.T) {
	t.Parallel()
	file := func(text string) string {
		path := filepath.Join(t.TempDir(), "f")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	key := file(strings.Repeat("5e", 32) + "\n")
	for field, change := range map[string]func(c *Config){
		"bucket.key_file: it has to be 64 hexadecimal digits (openssl rand -hex 32)": func(c *Config) { c.KeyFile = file("5e") },
		"bucket.key_file: skep: bucket: invalid: bytes of the file":                  func(c *Config) { c.KeyFile = file(strings.Repeat("5e", 40_000)) },
		"bucket.key_file: open":              func(c *Config) { c.KeyFile = "/nonesuch" },
		"bucket.credentials_file is 1 lines": func(c *Config) { c.CredentialsFile = file("5e\n") },
	} {
		c := Default()
		c.Endpoint, c.Bucket, c.KeyFile = "http://h", "blocks", key
		require.Empty(t, c.Check())
		change(&c)
		st := memstore.New(memstore.Options{})
		_, err := c.Open(st, true, nil, nil)
		require.ErrorIs(t, err, skep.Invalid)
		require.ErrorContains(t, err, field)
		require.NotContains(t, strings.ReplaceAll(err.Error(), "bucket.key_file", ""), "5e")
		require.NoError(t, st.Close())
	}
}
