package integration

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/tools/internal/serve"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/resp"
)

// pieceBytes is the length from which on a value is kept in several pieces.
const pieceBytes = 1 << 20

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.Read(b)
	return b
}

// redisServer serves RESP in front of a store in memory, for those who have one of the credentials, or for all. Its
// clock stands, however long a client takes.
func redisServer(t *testing.T, credentials ...auth.Credential) (addr string) {
	t.Helper()
	st := memstore.New(memstore.Options{PoisonReleased: true})
	d, err := auth.New(credentials, nil, nil)
	require.NoError(t, err)
	now := time.UnixMilli(1_700_000_000_000)
	s, err := resp.New(st, resp.Options{Auth: d, Clock: func() time.Time { return now }})
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = s.Shutdown(ctx)
		require.NoError(t, <-done)
		require.NoError(t, st.Close())
	})
	return l.Addr().String()
}

func TestGoRedis(t *testing.T) {
	t.Parallel()
	h, err := auth.TokenHash(token)
	require.NoError(t, err)
	addr := redisServer(t, auth.Credential{Name: "a", Tenant: "a", Rights: auth.All, TokenSHA256: h})
	for _, proto := range []int{2, 3} {
		t.Run(fmt.Sprint("RESP", proto), func(t *testing.T) {
			ctx := context.Background()
			c := redis.NewClient(&redis.Options{Addr: addr, Protocol: proto, Username: "default", Password: token, DB: proto, DialTimeout: time.Minute, ReadTimeout: time.Minute})
			defer c.Close()
			require.NoError(t, c.Ping(ctx).Err())
			value := randomBytes(5*pieceBytes + 1)
			require.NoError(t, c.Set(ctx, "k", value, time.Hour).Err())
			got, err := c.Get(ctx, "k").Bytes()
			require.NoError(t, err)
			assert.True(t, bytes.Equal(value, got))
			ttl, err := c.TTL(ctx, "k").Result()
			require.NoError(t, err)
			assert.Equal(t, time.Hour, ttl)
			assert.Equal(t, redis.Nil, c.Get(ctx, "none").Err())
			require.NoError(t, c.MSet(ctx, "a", "1", "b", "2").Err())
			many, err := c.MGet(ctx, "a", "none", "b").Result()
			require.NoError(t, err)
			assert.Equal(t, []any{"1", nil, "2"}, many)
			cmds, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
				for i := range 200 {
					p.Set(ctx, fmt.Sprint("p", i), fmt.Sprint(i), 0)
				}
				for i := range 200 {
					p.Get(ctx, fmt.Sprint("p", i))
				}
				return nil
			})
			require.NoError(t, err)
			assert.Equal(t, "199", cmds[399].(*redis.StringCmd).Val())
			n, err := c.Exists(ctx, "a", "b", "none").Result()
			require.NoError(t, err)
			assert.Equal(t, int64(2), n)
			seen := 0
			it := c.Scan(ctx, 0, "p*", 33).Iterator()
			for it.Next(ctx) {
				seen++
			}
			require.NoError(t, it.Err())
			assert.Equal(t, 200, seen)
			size, err := c.DBSize(ctx).Result()
			require.NoError(t, err)
			assert.Equal(t, int64(203), size)
			ok, err := c.SetNX(ctx, "a", "x", time.Minute).Result()
			require.NoError(t, err)
			assert.False(t, ok)
			ok, err = c.Persist(ctx, "k").Result()
			require.NoError(t, err)
			assert.True(t, ok)
			removed, err := c.Unlink(ctx, "a", "b", "k", "none").Result()
			require.NoError(t, err)
			assert.Equal(t, int64(3), removed)
			require.NoError(t, c.FlushDB(ctx).Err())
		})
	}
	bad := redis.NewClient(&redis.Options{Addr: addr, Password: "wrong-token-0123456789", MaxRetries: -1})
	defer bad.Close()
	assert.Error(t, bad.Get(context.Background(), "k").Err())
}

// TestLMCachePythonConnector keeps two keys a chunk, as LMCache's redis connector does.
func TestLMCachePythonConnector(t *testing.T) {
	t.Parallel()
	addr := redisServer(t)
	ctx := context.Background()
	c := redis.NewClient(&redis.Options{Addr: addr, Protocol: 2, DialTimeout: time.Minute, ReadTimeout: time.Minute})
	defer c.Close()
	key := "vllm@mistralai/Mistral-7B@2@1@deadbeef"
	n, err := c.Exists(ctx, key+"metadata").Result()
	require.NoError(t, err)
	require.Zero(t, n)
	value := randomBytes(pieceBytes + 77)
	var meta bytes.Buffer
	require.NoError(t, binary.Write(&meta, binary.NativeEndian, [7]int32{int32(len(value)), 1, 3, 2, 32, 256, 128}))
	require.NoError(t, c.Set(ctx, key+"kv_bytes", value, 0).Err())
	require.NoError(t, c.Set(ctx, key+"metadata", meta.Bytes(), 0).Err())
	n, err = c.Exists(ctx, key+"metadata").Result()
	require.NoError(t, err)
	require.Equal(t, int64(1), n)
	m, err := c.Get(ctx, key+"metadata").Bytes()
	require.NoError(t, err)
	assert.Equal(t, meta.Bytes(), m)
	b, err := c.Get(ctx, key+"kv_bytes").Bytes()
	require.NoError(t, err)
	assert.True(t, bytes.Equal(value, b))
}

// A whole server, over TLS: who shows a token is its tenant, and so is who shows a certificate.
func TestGoRedisOverTLS(t *testing.T) {
	t.Parallel()
	ca, key := certificate(t, "ca", nil, nil)
	server, engine := signed(t, "server", ca, key), signed(t, "engine", ca, key)
	der, err := x509.MarshalPKCS8PrivateKey(server.PrivateKey)
	require.NoError(t, err)
	c := local(t)
	c.TLS = serve.TLSConfig{Cert: write(t, "server.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate[0]})),
		Key:      write(t, "server.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
		ClientCA: write(t, "ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw}))}
	c.Credentials = []serve.CredentialConfig{
		{Name: "op", Tenant: "ops", Rights: []string{"read", "write", "admin"}, TokenFile: write(t, "token", []byte(token))},
		{Name: "engine", Tenant: "prod", Rights: []string{"read", "write"}, CertName: "engine"},
	}
	at := start(t, c)
	ctx := context.Background()
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	connect := func(cert *tls.Certificate, password string) *redis.Client {
		conf := &tls.Config{RootCAs: pool}
		if cert != nil {
			conf.Certificates = []tls.Certificate{*cert}
		}
		rc := redis.NewClient(&redis.Options{Addr: at["resp"], TLSConfig: conf, Password: password, DialTimeout: time.Minute, ReadTimeout: time.Minute, MaxRetries: -1})
		t.Cleanup(func() { rc.Close() })
		return rc
	}
	byToken, byCert := connect(nil, token), connect(&engine, "")
	require.NoError(t, byToken.Set(ctx, "k", "of ops", 0).Err())
	require.NoError(t, byCert.Set(ctx, "k", "of prod", 0).Err())
	assert.Equal(t, "of ops", byToken.Get(ctx, "k").Val())
	assert.Equal(t, "of prod", byCert.Get(ctx, "k").Val())
	assert.Error(t, connect(nil, "").Get(ctx, "k").Err(), "neither")
	plain := redis.NewClient(&redis.Options{Addr: at["resp"], MaxRetries: -1})
	assert.Error(t, plain.Ping(ctx).Err(), "without TLS")
	require.NoError(t, plain.Close())
}

// signed is a certificate that a CA has signed.
func signed(t *testing.T, name string, ca *x509.Certificate, signer *ecdsa.PrivateKey) tls.Certificate {
	cert, key := certificate(t, name, ca, signer)
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
}

// certificate makes one that parent has signed, or, without, a CA.
func certificate(t *testing.T, name string, parent *x509.Certificate, signer *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	require.NoError(t, err)
	of := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: parent == nil, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	if parent == nil {
		parent, signer = of, key
	}
	der, err := x509.CreateCertificate(rand.Reader, of, parent, &key.PublicKey, signer)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return cert, key
}
