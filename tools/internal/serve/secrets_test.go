package serve

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// Files with secrets that everybody may read are named at the start, with the command that closes them.
func TestOpenFilesWithSecretsAreNamed(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("files have no such rights there")
	}
	dir := t.TempDir()
	file := func(name string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte("secret"), mode))
		require.NoError(t, os.Chmod(path, mode)) // whatever the umask is
		return path
	}
	var c Config
	c.TLS.Key, c.TLS.Cert = file("tls.key", 0o644), file("tls.pem", 0o644)
	c.Store.EncryptionKeyFile = file("all.keys", 0o604)
	c.Tenants = map[string]TenantConfig{"a": {EncryptionKeyFile: file("a.keys", 0o600)},
		"b": {EncryptionKeyFile: file("b.keys", 0o666)}}
	c.Credentials = []CredentialConfig{{TokenFile: file("closed.token", 0o640)}, {TokenFile: file("open.token", 0o644)}}
	var log bytes.Buffer
	s := &server{c: &c, log: slog.New(slog.NewTextHandler(&log, nil))}
	s.tellOpenFiles(&c)
	for _, open := range []string{"tls.key", "all.keys", "b.keys", "open.token"} {
		require.Contains(t, log.String(), "chmod o-rw "+filepath.Join(dir, open))
	}
	for _, closed := range []string{"tls.pem", "a.keys", "closed.token"} {
		require.NotContains(t, log.String(), closed)
	}
}
