package auth

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func connection(c *x509.Certificate) *tls.ConnectionState {
	return &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c}, VerifiedChains: [][]*x509.Certificate{{c}}}
}

// What a peer presents makes it the same identity over every protocol.
func TestIdentify(t *testing.T) {
	t.Parallel()
	until := time.Now().Add(time.Hour)
	known, unknown := certificate(t, "known", until), certificate(t, "unknown", until)
	creds := []Credential{
		{Name: "engine", Tenant: "a", Rights: Read, TokenSHA256: hash(t, tokenA)},
		{Name: "pinned", Tenant: "b", Rights: Read, CertSHA256: sha256.Sum256(known.Raw)},
	}
	closed, err := New(creds, nil, nil)
	require.NoError(t, err)
	open, err := New(nil, nil, nil)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		shown Presented
		who   string // "": denied
	}{
		"nothing":                          {Presented{}, ""},
		"TLS without a certificate":        {Presented{TLS: &tls.ConnectionState{}}, ""},
		"a token":                          {Presented{Token: tokenA}, "engine"},
		"a token of the default user":      {Presented{Token: tokenA, User: "default"}, "engine"},
		"a token by the tenant's name":     {Presented{Token: tokenA, User: "a"}, "engine"},
		"a token by the credential's name": {Presented{Token: tokenA, User: "engine"}, "engine"},
		"a token by another's name":        {Presented{Token: tokenA, User: "b"}, ""},
		"a wrong token":                    {Presented{Token: tokenB}, ""},
		"a certificate":                    {Presented{TLS: connection(known)}, "pinned"},
		"a certificate of nobody":          {Presented{TLS: connection(unknown)}, ""},
		"a token beside a certificate":     {Presented{Token: tokenA, TLS: connection(known)}, "engine"},
		"a wrong token beside one":         {Presented{Token: tokenB, TLS: connection(known)}, ""},
	} {
		id, err := closed.Identify(t.Context(), c.shown)
		if c.who == "" {
			assert.ErrorIs(t, err, ErrDenied, name)
			assert.Equal(t, Identity{}, id, name)
		} else if assert.NoError(t, err, name) {
			assert.Equal(t, c.who, id.Name, name)
		}
		id, err = open.Identify(t.Context(), c.shown)
		assert.NoError(t, err, "where there are no credentials everybody is welcome: %s", name)
		assert.Equal(t, DefaultTenant, id.Tenant, name)
	}
}

// What concerns the store as a whole takes an operator, who has the right admin for every tenant.
func TestOperator(t *testing.T) {
	t.Parallel()
	d, err := New([]Credential{
		{Name: "one", Tenant: "a", Rights: All, TokenSHA256: hash(t, tokenA)},
		{Name: "all", Tenant: AnyTenant, Rights: Admin, TokenSHA256: hash(t, tokenB)},
	}, nil, nil)
	require.NoError(t, err)
	one, err := d.Identify(t.Context(), Presented{Token: tokenA})
	require.NoError(t, err)
	all, err := d.Identify(t.Context(), Presented{Token: tokenB})
	require.NoError(t, err)
	now := time.Now()
	assert.NoError(t, one.Check(now, Admin))
	err = one.Check(now, Operator)
	assert.ErrorIs(t, err, ErrForbidden)
	assert.ErrorContains(t, err, `a credential of tenant "*" with the right admin`)
	assert.NoError(t, all.Check(now, Operator))
	_, err = ParseRights([]string{"operator"})
	assert.Error(t, err, "it is not given")
	assert.Equal(t, []string{"admin", "operator"}, all.Rights.Names())
	_, err = New([]Credential{{Name: "x", Tenant: "a", Rights: Operator, TokenSHA256: hash(t, tokenA)}}, nil, nil)
	assert.Error(t, err)
}

// Who is told of an identity's end is told once: when the credential is removed or replaced, or runs out, also
// where the clock is set meanwhile.
func TestUntil(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := Credential{Name: "a", Tenant: "a", Rights: Read, TokenSHA256: hash(t, tokenA)}
		b := Credential{Name: "b", Tenant: "b", Rights: Read, TokenSHA256: hash(t, tokenB), Expires: time.Now().Add(time.Hour)}
		var set atomic.Int64
		d, err := New([]Credential{a, b}, nil, func() time.Time { return time.Now().Add(time.Duration(set.Load())) })
		require.NoError(t, err)
		var mu sync.Mutex
		told := map[string]int{}
		tell := func(name string) {
			mu.Lock()
			defer mu.Unlock()
			told[name]++
		}
		watch := func(name, token string) (stop func()) {
			id, err := d.Identify(t.Context(), Presented{Token: token})
			require.NoError(t, err)
			return id.Until(func() { tell(name) })
		}
		watch("a", tokenA)
		watch("b", tokenB)
		stopped := watch("a, which was called off", tokenA)
		stopped()
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		assert.Empty(t, told)

		a.Rights |= Write
		require.NoError(t, d.Replace([]Credential{a, b}, nil))
		synctest.Wait()
		assert.Equal(t, map[string]int{"a": 1}, told, "replaced")

		set.Store(int64(time.Hour)) // the clock is set forward
		time.Sleep(2 * lookAgain)
		synctest.Wait()
		assert.Equal(t, map[string]int{"a": 1, "b": 1}, told, "ran out")
		require.NoError(t, d.Replace([]Credential{a}, nil))
		synctest.Wait()
		assert.Equal(t, map[string]int{"a": 1, "b": 1}, told, "once")

		Identity{}.Until(func() { tell("nobody") })
		synctest.Wait()
		assert.Equal(t, 1, told["nobody"])
	})
}

// An open door that was reloaded while it was open is shut for everybody who came through.
func TestUntilTheOpenDoorIsShut(t *testing.T) {
	t.Parallel()
	d, err := New(nil, nil, nil)
	require.NoError(t, err)
	id, err := d.Identify(t.Context(), Presented{})
	require.NoError(t, err)
	require.NoError(t, d.Replace(nil, nil))
	require.NoError(t, id.Check(time.Now(), All|Operator))
	told := make(chan struct{})
	id.Until(func() { close(told) })
	require.NoError(t, d.Replace([]Credential{{Name: "a", Tenant: "a", Rights: Read, TokenSHA256: hash(t, tokenA)}}, nil))
	<-told
	require.ErrorIs(t, id.Check(time.Now(), 0), ErrDenied)
}

// Many wrong tokens of one address are answered late, by a second at most; the right one never, nor anybody elsewhere.
func TestWrongTokensAreAnsweredLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, err := New([]Credential{{Name: "a", Tenant: "a", Rights: Read, TokenSHA256: hash(t, tokenA)}}, nil, nil)
		require.NoError(t, err)
		took := func(ctx context.Context, token string, from net.IP) time.Duration {
			began := time.Now()
			_, err := d.Identify(ctx, Presented{Token: token, Peer: &net.TCPAddr{IP: from, Port: 7}})
			require.Equal(t, token == tokenA, err == nil)
			return time.Since(began)
		}
		here := net.IPv4(192, 0, 2, 1)
		for range wrongAtOnce {
			require.Zero(t, took(t.Context(), tokenB, here))
		}
		require.Equal(t, time.Second/wrongPerSecond, took(t.Context(), tokenB, here))
		require.Zero(t, took(t.Context(), tokenA, here), "the right one")
		over, cancel := context.WithCancel(t.Context())
		cancel()
		require.Zero(t, took(over, tokenB, here), "nobody waits for the answer")
		var most time.Duration
		for range 2 * wrongPerSecond { // all at once
			most = max(most, d.wrong.delay(&net.TCPAddr{IP: here, Port: 9}, time.Now()))
		}
		require.Equal(t, wrongDelay, most)
		_, err = d.Identify(t.Context(), Presented{Peer: &net.TCPAddr{IP: here}})
		require.ErrorIs(t, err, ErrDenied)
		time.Sleep(time.Hour)
		require.Zero(t, took(t.Context(), tokenB, here))
	})
}

func TestSourceOfAFailure(t *testing.T) {
	t.Parallel()
	for want, addr := range map[string]net.Addr{
		"192.0.2.1": &net.TCPAddr{IP: net.ParseIP("::ffff:192.0.2.1"), Port: 7}, "2001:db8:1:2::/64": &net.TCPAddr{IP: net.ParseIP("2001:db8:1:2:3:4:5:6"), Port: 7},
		"unix": &net.UnixAddr{Name: "/a", Net: "unix"}, "": nil,
	} {
		assert.Equal(t, want, source(addr))
	}
}
