package serve

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"math"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/auth"
)

// Of two credentials with one token the first would be found for both: they are refused, by name, however the token
// is told.
func TestTwoCredentialsHaveTwoTokens(t *testing.T) {
	t.Parallel()
	file := write(t, "token", token+"\n")
	text := fmt.Sprintf(`
dir: /d
credentials:
  - {name: a, tenant: t, rights: [write], token_file: %s}
  - {name: c, tenant: t, rights: [write], cert_name: engine}
  - {name: d, tenant: t, rights: [write], cert_name: another}
  - {name: b, tenant: u, rights: [write], token_sha256: %x}
`, file, sha256.Sum256([]byte(token)))
	_, err := Load(write(t, "skep.yaml", text), nil, nil)
	require.ErrorIs(t, err, skep.Invalid)
	require.EqualError(t, err, `skep: settings: invalid: credential "b", token is that of credential "a", `+
		"must be one that no other credential has")
	require.NoError(t, os.WriteFile(file, []byte(rotated), 0o600))
	c, err := Load(write(t, "skep.yaml", text), nil, nil)
	require.NoError(t, err)

	creds, _ := c.credentials(os.LookupEnv)
	dir, err := auth.New(creds, nil, nil)
	require.NoError(t, err)
	var log bytes.Buffer
	s := &server{c: c, dir: dir, log: slog.New(slog.NewTextHandler(&log, nil))}
	require.NoError(t, os.WriteFile(file, []byte(token), 0o600))
	s.reload(c, false)
	assert.Contains(t, log.String(), "credentials not reloaded")
	assert.True(t, known(t, dir, rotated), "those in use stay")
}

// What settings may say and hardly mean is told: shares that do not fit, a tenant that nobody can be, a credential that
// runs out.
func TestDoubtfulSettingsAreTold(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	c := Default()
	c.Tenants = map[string]TenantConfig{"a": {Share: 6 << 30}, "b": {Share: 6 << 30}}
	assert.Empty(t, c.Doubts(12<<30, now))
	assert.Empty(t, c.Doubts(0, now), "no capacity is known")
	said := c.Doubts(11<<30, now)
	require.Len(t, said, 1)
	assert.Contains(t, said[0], "shares are 12GiB together, and the store's capacity is 11GiB")

	much := *c
	much.Tenants = map[string]TenantConfig{"a": {Share: math.MaxInt64}, "b": {Share: 1 << 30}}
	require.Len(t, much.Doubts(11<<30, now), 1, "however much it is")

	c.Credentials = []CredentialConfig{{Name: "x", Tenant: "a"},
		{Name: "y", Tenant: "a", Expires: now.Add(13 * 24 * time.Hour)},
		{Name: "z", Tenant: "a", Expires: now.Add(15 * 24 * time.Hour)}}
	said = c.Doubts(0, now)
	require.Len(t, said, 2)
	assert.Contains(t, said[0], `credential "y" runs out soon, at 2030-01-14`)
	assert.Contains(t, said[1], `tenants has "b", which no credential is of`)
	assert.Contains(t, c.Doubts(0, now.Add(14*24*time.Hour))[0], `credential "y" ran out at 2030-01-14`)
	c.Credentials = []CredentialConfig{{Name: "op", Tenant: auth.AnyTenant}}
	assert.Empty(t, c.Doubts(0, now), "an operator may be any tenant")
}
