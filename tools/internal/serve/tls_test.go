package serve

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/tools/internal/redistest"
)

// pki makes certificates that one CA has signed.
type pki struct {
	t    *testing.T
	dir  string
	ca   *x509.Certificate
	key  *ecdsa.PrivateKey
	next int64
	last time.Duration // how long certificates last from now
}

func newPKI(t *testing.T) *pki {
	p := &pki{t: t, dir: t.TempDir(), next: 1, last: time.Hour}
	p.key, p.ca = p.make("ca", nil, nil)
	p.write("ca.pem", "CERTIFICATE", p.ca.Raw)
	return p
}

func (p *pki) make(name string, parent *x509.Certificate, signer *ecdsa.PrivateKey) (*ecdsa.PrivateKey, *x509.Certificate) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(p.t, err)
	p.next++
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(p.next), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(p.last),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: parent == nil, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	if parent == nil {
		parent, signer = tmpl, key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, signer)
	require.NoError(p.t, err)
	c, err := x509.ParseCertificate(der)
	require.NoError(p.t, err)
	return key, c
}

func (p *pki) write(name, kind string, der []byte) string {
	path := filepath.Join(p.dir, name)
	require.NoError(p.t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return path
}

// issue writes name.pem and name.key.
func (p *pki) issue(name string) (cert tls.Certificate) {
	key, c := p.make(name, p.ca, p.key)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(p.t, err)
	p.write(name+".pem", "CERTIFICATE", c.Raw)
	p.write(name+".key", "PRIVATE KEY", der)
	return tls.Certificate{Certificate: [][]byte{c.Raw}, PrivateKey: key}
}

// A certificate that has run out, or soon will, is taken, and the log says so, when it is read anew, too.
func TestCertificatesThatRunOutAreTold(t *testing.T) {
	t.Parallel()
	for last, want := range map[time.Duration]string{-time.Minute: "has run out", time.Hour: "runs out soon", 60 * 24 * time.Hour: ""} {
		p := newPKI(t)
		p.last = last
		p.issue("server")
		var log bytes.Buffer
		var c certificates
		require.NoError(t, c.load(&TLSConfig{Cert: filepath.Join(p.dir, "server.pem"), Key: filepath.Join(p.dir, "server.key")}, slog.New(slog.NewTextHandler(&log, nil))))
		require.NotNil(t, c.now.Load())
		if want == "" {
			require.Empty(t, log.String())
			continue
		}
		require.Contains(t, log.String(), want)
		require.Contains(t, log.String(), "tls.cert")
	}
}

// Of several certificates in a file the first that runs out counts, wherever it stands.
func TestTheFirstOfAChainThatRunsOutCounts(t *testing.T) {
	t.Parallel()
	for _, order := range [][]int{{0, 1, 2}, {1, 2, 0}, {2, 0, 1}} {
		p := newPKI(t)
		var chain []byte
		var first *x509.Certificate
		for _, i := range order {
			p.last = time.Duration(i+1) * 24 * time.Hour
			key, c := p.make("server", p.ca, p.key)
			if len(chain) == 0 {
				der, err := x509.MarshalPKCS8PrivateKey(key)
				require.NoError(t, err)
				p.write("server.key", "PRIVATE KEY", der)
			}
			if i == 0 {
				first = c
			}
			chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
		}
		path := filepath.Join(p.dir, "server.pem")
		require.NoError(t, os.WriteFile(path, chain, 0o600))
		l, err := loadCertificate(&TLSConfig{Cert: path, Key: filepath.Join(p.dir, "server.key"), ClientCA: path})
		require.NoError(t, err)
		require.Equal(t, map[string]time.Time{"cert": first.NotAfter, "client_ca": first.NotAfter}, l.expires, "%v", order)
	}
}

// A certificate of a client counts by the client_ca that is in use: a session that began by an older one is none.
func TestAClientIsVerifiedByTheAuthorityInUse(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	p.issue("server")
	engine := p.issue("engine")
	at := func(file string) string { return filepath.Join(p.dir, file) }
	files := TLSConfig{Cert: at("server.pem"), Key: at("server.key"), ClientCA: at("ca.pem")}
	var certs certificates
	log := slog.New(slog.DiscardHandler)
	require.NoError(t, certs.load(&files, log))
	l, err := tls.Listen("tcp", "127.0.0.1:0", certs.config(false))
	require.NoError(t, err)
	defer l.Close()
	pool := x509.NewCertPool()
	pool.AddCert(p.ca)
	client := &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{engine},
		ClientSessionCache: tls.NewLRUClientSessionCache(1)}
	verified := func() bool { // by the server, of one connection
		crew := storetest.NewCrew(t)
		var seen tls.ConnectionState
		crew.Go(func(t testing.TB) {
			c, err := l.Accept()
			if !assert.NoError(t, err) {
				return
			}
			defer c.Close()
			_, err = c.Write([]byte{1})
			assert.NoError(t, err)
			seen = c.(*tls.Conn).ConnectionState()
		})
		c, err := tls.Dial("tcp", l.Addr().String(), client)
		require.NoError(t, err)
		defer c.Close()
		_, err = c.Read(make([]byte, 1)) // and what resumes the session
		require.NoError(t, err)
		crew.Wait()
		require.NotEmpty(t, seen.PeerCertificates)
		return len(seen.VerifiedChains) > 0
	}
	require.True(t, verified())
	files.ClientCA = ""
	require.NoError(t, certs.load(&files, log))
	require.False(t, verified())
}

func TestTLSTokensCertificatesAndRotation(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	p.issue("server")
	engine, stranger := p.issue("engine"), newPKI(t).issue("engine")
	tokenFile := write(t, "token", token)
	c := local(t)
	c.TLS = TLSConfig{Cert: filepath.Join(p.dir, "server.pem"), Key: filepath.Join(p.dir, "server.key"), ClientCA: filepath.Join(p.dir, "ca.pem")}
	c.Credentials = []CredentialConfig{
		{Name: "op", Tenant: "ops", Rights: []string{"read", "write", "admin"}, TokenFile: tokenFile},
		{Name: "engine", Tenant: "prod", Rights: []string{"read", "write"}, CertName: "engine"},
	}
	require.Empty(t, c.problems())
	st := memstore.New(memstore.Options{})
	defer st.Close()
	r := start(t, c, Options{Store: st})
	pool := x509.NewCertPool()
	pool.AddCert(p.ca)
	ctx := context.Background()
	connect := func(cert *tls.Certificate, password string) *redistest.Client {
		conf := &tls.Config{RootCAs: pool}
		if cert != nil {
			conf.Certificates = []tls.Certificate{*cert}
		}
		o := patient(r.at("resp"))
		o.TLS, o.Password, o.Retries = conf, password, 0
		rc := redistest.New(o)
		t.Cleanup(func() { rc.Close() })
		return rc
	}
	byToken, byCert := connect(nil, token), connect(&engine, "")
	require.NoError(t, byToken.Set(ctx, "k", "of ops", 0))
	require.NoError(t, byCert.Set(ctx, "k", "of prod", 0))
	says := func(rc *redistest.Client) (string, error) {
		b, err := rc.Get(ctx, "k")
		return string(b), err
	}
	gives := func(want string, rc *redistest.Client, why string) {
		t.Helper()
		got, err := says(rc)
		assert.NoError(t, err, why)
		assert.Equal(t, want, got, why)
	}
	refuses := func(rc *redistest.Client, why string) {
		t.Helper()
		_, err := says(rc)
		assert.Error(t, err, why)
		assert.NotErrorIs(t, err, redistest.ErrNil, why)
	}
	gives("of ops", byToken, "a token")
	gives("of prod", byCert, "a certificate")
	refuses(connect(nil, ""), "neither")
	refuses(connect(&stranger, ""), "a certificate somebody else signed")
	plain := redistest.New(redistest.Options{Addr: r.at("resp")})
	assert.Error(t, plain.Ping(ctx), "without TLS")
	plain.Close()
	old := &tls.Config{RootCAs: pool, MaxVersion: tls.VersionTLS12}
	_, err := tls.Dial("tcp", r.at("resp"), old)
	assert.Error(t, err, "TLS 1.2")

	web := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{engine}}}}
	defer web.CloseIdleConnections()
	code, body := get(t, web, "https://"+r.at("http")+"/api/v1/server", "")
	assert.Equal(t, 200, code)
	assert.Contains(t, body, `"tenant":"prod"`)
	code, _ = get(t, web, "https://"+r.at("http")+"/api/v1/stats", "")
	assert.Equal(t, 403, code, "no admin")

	serial := func() string {
		conn, err := tls.Dial("tcp", r.at("resp"), &tls.Config{RootCAs: pool})
		require.NoError(t, err)
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	before := serial()
	p.issue("server")
	require.NoError(t, os.WriteFile(tokenFile, []byte("another-token-0123456789"), 0o600))
	storetest.Eventually(t, "certificates rotate without a restart", func() bool { return serial() != before })
	require.Eventually(t, func() bool { _, err := says(byToken); return err != nil }, time.Minute, 50*time.Millisecond, "and so do tokens, under connections that live")
	gives("of ops", connect(nil, "another-token-0123456789"), "the token after it")
	gives("of prod", byCert, "who did not change stays connected")
	require.NoError(t, r.stop())
	assert.NotContains(t, r.log.String(), token)
}
