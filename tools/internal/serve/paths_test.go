package serve

import (
	"bytes"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A relative path in a file of settings is so to the file's directory; one of a flag or of the environment to that of
// the process. What skep config show prints has none.
func TestPathsAreRelativeToTheFileThatHasThem(t *testing.T) {
	t.Parallel()
	file := write(t, "skep.yaml", `
dir: x/dir
devices: [x/drive-0, /dev/drive-1]
unix: x/unix
cluster: x/cluster
join: {token_file: x/join}
peers: {cert: x/peer.pem, key: x/peer.key, ca: x/peers-ca.pem, token_file: x/nodes, server_ca: x/ca.pem}
store: {encryption_key_file: x/keys}
tls: {cert: x/tls.pem, key: x/tls.key, client_ca: x/clients.pem}
bucket: {credentials_file: x/s3, key_file: x/bucket.key, other_key_file: x/old.key}
credentials:
  - {name: a, tenant: t, rights: [read], token_file: x/a}
  - {name: b, tenant: t, rights: [read], token_file: /x/b}
tenants: {t: {encryption_key_file: x/keys-of-t}}
`)
	from := filepath.Dir(file)
	c, _ := Load(file, nil, nil) // the files are not there
	require.NotNil(t, c)
	in := func(name string) string { return filepath.Join(from, "x", name) }
	require.Equal(t, Paths{in("drive-0"), "/dev/drive-1"}, c.Devices)
	require.Equal(t, in("a"), c.Credentials[0].TokenFile)
	require.Equal(t, "/x/b", c.Credentials[1].TokenFile)
	require.Equal(t, in("keys-of-t"), c.Tenants["t"].EncryptionKeyFile)
	// Every setting that holds a path is tried above: those that are files by their name or by what is said of them.
	for _, f := range fields(c) {
		if regexp.MustCompile(`^(dir|unix|cluster|.*_file|.*ca|.*cert|.*key)$`).MatchString(f.path) ||
			regexp.MustCompile(`\b(PEM|file with|path of)\b`).MatchString(f.doc) {
			text := fmt.Sprint(f.v.Interface())
			assert.True(t, strings.HasPrefix(text, in("")), "%s: %s", f.path, text)
		}
	}

	c, err := Load(file, []string{"SKEP_DIR=y/env", "SKEP_TLS_CERT=y/tls.pem"}, map[string]string{"unix": "y/flag", "devices": "y/d"})
	require.Error(t, err)
	require.Equal(t, []string{"y/env", "y/tls.pem", "y/flag", "y/d"}, []string{c.Dir, c.TLS.Cert, c.Unix, c.Devices.String()})

	var out bytes.Buffer
	require.NoError(t, c.Print(&out))
	here, err := filepath.Abs(".")
	require.NoError(t, err)
	again, _ := Load(write(t, "elsewhere.yaml", out.String()), nil, nil)
	require.Equal(t, filepath.Join(here, "y/env"), again.Dir)
	require.Equal(t, Paths{filepath.Join(here, "y/d")}, again.Devices)
	require.Equal(t, filepath.Join(here, "y/flag"), again.Unix)
	require.Equal(t, c.Credentials, again.Credentials)
	require.Equal(t, c.Tenants, again.Tenants)
	require.Equal(t, "y/env", c.Dir, "printing leaves the settings as they are")
}

// What is no path stays as it is: none, nothing, and a number of devices.
func TestWhatIsNoPathStays(t *testing.T) {
	t.Parallel()
	c, err := Load(write(t, "skep.yaml", "dir: d\nunix: none\ndevices: 3\n"), nil, nil)
	require.NoError(t, err)
	require.Equal(t, None, c.Unix)
	require.Equal(t, 3, c.FileDevices)
	require.Empty(t, c.Devices)
	require.Empty(t, c.TLS.Cert)
	var out bytes.Buffer
	require.NoError(t, c.Print(&out))
	require.Contains(t, out.String(), "\nunix: none\n")
}
