package serve

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/tools/internal/redistest"
	"github.com/skepkv/skep/wire"
)

// Whoever is not let in is counted by protocol and reason, and the log says so, once for many, and never the token.
func TestWhoIsNotLetInIsCountedAndTold(t *testing.T) {
	t.Parallel()
	const old, wrong = "a-token-that-has-run-out", "a-token-of-nobody-at-all"
	p := newPKI(t)
	p.issue("server")
	stranger := newPKI(t).issue("engine")
	c := local(t)
	in := func(name string) string { return filepath.Join(p.dir, name) }
	c.TLS = TLSConfig{Cert: in("server.pem"), Key: in("server.key"), ClientCA: in("ca.pem")}
	all := []string{"read", "write", "admin"}
	c.Credentials = []CredentialConfig{
		{Name: "op", Tenant: "*", Rights: all, TokenFile: write(t, "token", token)},
		{Name: "past", Tenant: "a", Rights: all, TokenFile: write(t, "old", old), Expires: time.Unix(1_700_000_000, 0)},
	}
	c.Tenants = map[string]TenantConfig{"*": {Connections: 1}}
	require.Empty(t, c.problems())
	st := memstore.New(memstore.Options{})
	defer st.Close()
	r := start(t, c, Options{Store: st})
	pool := x509.NewCertPool()
	pool.AddCert(p.ca)
	secure := func(certs ...tls.Certificate) *tls.Config { return &tls.Config{RootCAs: pool, Certificates: certs} }
	web := &http.Client{Transport: &http.Transport{TLSClientConfig: secure(), DisableKeepAlives: true}}
	metrics := func() string {
		req, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+r.at("http")+"/metrics", nil)
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := web.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return string(b)
	}
	counted := func(protocol, reason, n string) {
		t.Helper()
		want := `skep_denied_total{protocol="` + protocol + `",reason="` + reason + `"} ` + n + "\n"
		storetest.Eventually(t, want, func() bool { return strings.Contains(metrics(), want) })
	}
	counted("wire", "wrong", "0")
	assert.Contains(t, metrics(), `skep_credential_expires_seconds{name="past"} 1.7e+09`)

	dial := func(token string, conf *tls.Config) (*wire.Client, error) {
		return wire.Dial(t.Context(), wire.Options{Addr: r.at("wire"), TLS: conf, Token: token})
	}
	for _, shown := range []string{wrong, wrong, old, ""} {
		_, err := dial(shown, secure())
		require.ErrorIs(t, err, skep.Denied)
		code, _ := get(t, web, "https://"+r.at("http")+"/api/v1/server", shown)
		require.Equal(t, 401, code)
		o := redistest.Options{Addr: r.at("resp"), TLS: secure(), Password: shown}
		rc := redistest.New(o)
		require.Error(t, rc.Ping(t.Context()))
		rc.Close()
	}
	for _, protocol := range []string{"wire", "http", "resp"} {
		counted(protocol, "wrong", "2")
		counted(protocol, "expired", "1")
		counted(protocol, "missing", "1")
	}
	_, err := dial("", secure(stranger))
	require.Error(t, err)
	bad := &http.Client{Transport: &http.Transport{TLSClientConfig: secure(stranger)}}
	_, err = bad.Get("https://" + r.at("http") + "/healthz")
	require.Error(t, err)
	rc := redistest.New(redistest.Options{Addr: r.at("resp"), TLS: secure(stranger)})
	require.Error(t, rc.Ping(t.Context()))
	rc.Close()
	for _, protocol := range []string{"wire", "http", "resp"} {
		counted(protocol, "wrong", "3")
	}

	one, err := dial(token, secure())
	require.NoError(t, err)
	_, err = dial(token, secure())
	require.ErrorIs(t, err, skep.Overloaded)
	assert.Contains(t, metrics(), `skep_wire_connections_total{result="refused"} 1`+"\n", "of the tenant, which has one")
	require.NoError(t, one.Close())
	require.NoError(t, r.stop())
	log := r.log.String()
	for _, protocol := range []string{"wire", "http", "resp"} {
		for _, reason := range []string{"wrong credential=\"\"", "expired credential=past", "missing credential=\"\""} {
			line := "protocol=" + protocol + " reason=" + reason + " address=127.0.0.1:"
			assert.Equal(t, 1, strings.Count(log, line), "%s in %s", line, log)
		}
	}
	for _, secret := range []string{token, old, wrong} {
		assert.NotContains(t, log, secret)
	}
}
