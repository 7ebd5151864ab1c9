package serve

import (
	"bytes"
	"log/slog"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/wire/auth"
)

// A token that cannot be read leaves all credentials as they were, and the log does not say
// that they were replaced.
func TestATokenThatCannotBeReadReplacesNothing(t *testing.T) {
	path := write(t, "token", token)
	c := Default()
	c.Dir = t.TempDir()
	c.Credentials = []CredentialConfig{{Name: "op", Tenant: "ops", Rights: []string{"read"}, TokenFile: path}}
	creds, wrong := c.credentials(os.LookupEnv)
	require.Empty(t, wrong)
	dir, err := auth.New(creds, nil, nil)
	require.NoError(t, err)
	var log bytes.Buffer
	s := &server{c: c, dir: dir, log: slog.New(slog.NewTextHandler(&log, nil))}
	require.NoError(t, os.Remove(path))
	s.reload(c, false)
	require.Contains(t, log.String(), "credentials not reloaded")
	require.NotContains(t, log.String(), "msg=reloaded ")
	require.NotContains(t, log.String(), "credentials=")
	require.Contains(t, log.String(), "those in use stay")
	log.Reset()
	require.NoError(t, os.WriteFile(path, []byte(token), 0o600))
	s.reload(c, false)
	require.Contains(t, log.String(), "msg=reloaded credentials=1")
}
