package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

const (
	tokenA = "token-of-a-0123456789"
	tokenB = "token-of-b-0123456789"
)

func hash(t *testing.T, token string) [32]byte {
	h, err := TokenHash(token)
	require.NoError(t, err)
	return h
}

// clock is a time a test moves.
type clock struct{ now time.Time }

func (c *clock) read() time.Time { return c.now }

func TestTokensBecomeIdentities(t *testing.T) {
	t.Parallel()
	c := &clock{time.Unix(1000, 0)}
	d, err := New([]Credential{
		{Name: "engine", Tenant: "a", Rights: Read | Write, TokenSHA256: hash(t, tokenA)},
		{Name: "guest", Tenant: "b", Rights: Read, TokenSHA256: hash(t, tokenB), Expires: c.now.Add(time.Minute)},
	}, nil, c.read)
	require.NoError(t, err)
	assert.False(t, d.Open())

	a, err := d.token(tokenA)
	require.NoError(t, err)
	assert.Equal(t, "a", a.Tenant)
	assert.NoError(t, a.Check(c.now, Read|Write))
	assert.ErrorIs(t, a.Check(c.now, Admin), ErrForbidden)

	b, err := d.token(tokenB)
	require.NoError(t, err)
	assert.Equal(t, "b", b.Tenant)

	for name, try := range map[string]func() (Identity, error){
		"a wrong token":  func() (Identity, error) { return d.token("wrong-token-0123456789") },
		"an empty token": func() (Identity, error) { return d.token("") },
		"no token":       d.anonymous,
		"no certificate": func() (Identity, error) { return d.certificate(nil, nil) },
	} {
		id, err := try()
		assert.ErrorIs(t, err, ErrDenied, name)
		assert.Equal(t, Identity{}, id, name)
		assert.ErrorIs(t, id.Check(c.now, 0), ErrDenied, "what is denied may do nothing: %s", name)
	}

	c.now = c.now.Add(time.Minute)
	_, err = d.token(tokenB)
	assert.ErrorIs(t, err, ErrDenied, "expired")
	assert.ErrorIs(t, b.Check(c.now, Read), ErrDenied, "and whoever is connected with it too")
	assert.NoError(t, a.Check(c.now, Read))
}

// A token that has ended stays so for a server whose clock is set back: it remembers a later time.
func TestAnEndedTokenStaysEndedWhenTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	ends := time.Unix(2_000_000_000, 0)
	clock, known := ends.Add(-time.Hour), ends.Add(-time.Hour)
	hash, err := TokenHash("a token of some length")
	require.NoError(t, err)
	d, err := New([]Credential{{Name: "n", Tenant: "a", Rights: Read, TokenSHA256: hash, Expires: ends}}, nil,
		func() time.Time { return clock })
	require.NoError(t, err)
	d.Lasting(func() time.Time { return known })
	id, err := d.token("a token of some length")
	require.NoError(t, err)
	require.NoError(t, id.Check(clock, Read))
	require.Equal(t, clock, d.Now())
	known = ends
	require.Equal(t, ends, d.Now())
	require.ErrorIs(t, id.Check(clock, Read), ErrDenied, "of one who is connected")
	_, err = d.token("a token of some length")
	require.ErrorIs(t, err, errExpired)
	over := make(chan struct{})
	defer id.Until(func() { close(over) })()
	<-over
	known, clock = ends.Add(-time.Hour), ends
	require.Equal(t, ends, d.Now())
	require.ErrorIs(t, id.Check(clock, Read), ErrDenied, "by the clock")
}

func TestReplaceRevokesWhatIsNotThereAnyMore(t *testing.T) {
	t.Parallel()
	a := Credential{Name: "a", Tenant: "a", Rights: All, TokenSHA256: hash(t, tokenA)}
	b := Credential{Name: "b", Tenant: "b", Rights: All, TokenSHA256: hash(t, tokenB)}
	d, err := New([]Credential{a, b}, nil, nil)
	require.NoError(t, err)
	idA, err := d.token(tokenA)
	require.NoError(t, err)
	idB, err := d.token(tokenB)
	require.NoError(t, err)

	require.NoError(t, d.Replace([]Credential{a}, nil))
	assert.NoError(t, idA.Check(time.Now(), Admin), "unchanged, stays connected")
	assert.ErrorIs(t, idB.Check(time.Now(), Read), ErrDenied)

	bad := Credential{Name: "bad", Tenant: "x", Rights: Read}
	assert.ErrorIs(t, d.Replace([]Credential{bad}, nil), skep.Invalid)
	assert.NoError(t, idA.Check(time.Now(), Admin), "a refused reload changes nothing")

	a.Rights = Read
	require.NoError(t, d.Replace([]Credential{a}, nil))
	assert.ErrorIs(t, idA.Check(time.Now(), Admin), ErrDenied, "changed: connect again")
}

func TestWithoutCredentialsEverybodyIsTheDefaultTenant(t *testing.T) {
	t.Parallel()
	d, err := New(nil, nil, nil)
	require.NoError(t, err)
	assert.True(t, d.Open())
	id, err := d.anonymous()
	require.NoError(t, err)
	assert.Equal(t, DefaultTenant, id.Tenant)
	assert.NoError(t, id.Check(time.Now(), All))
	require.NoError(t, d.Replace([]Credential{{Name: "a", Tenant: "a", Rights: Read, TokenSHA256: hash(t, tokenA)}}, nil))
	assert.ErrorIs(t, id.Check(time.Now(), Read), ErrDenied, "once there are credentials the open door is shut")
}

func TestBadCredentialsAreNamedAndTokensAreNot(t *testing.T) {
	t.Parallel()
	_, err := TokenHash("short-secret")
	require.ErrorIs(t, err, skep.Invalid)
	assert.NotContains(t, err.Error(), "short-secret")
	h := hash(t, tokenA)
	for name, c := range map[string]Credential{
		"no way":     {Name: "x", Tenant: "t", Rights: Read},
		"two ways":   {Name: "x", Tenant: "t", Rights: Read, TokenSHA256: h, CertName: "cn"},
		"no tenant":  {Name: "x", Rights: Read, TokenSHA256: h},
		"no rights":  {Name: "x", Tenant: "t", TokenSHA256: h},
		"odd rights": {Name: "x", Tenant: "t", Rights: 64, TokenSHA256: h},
	} {
		_, err := New([]Credential{c}, nil, nil)
		assert.ErrorIs(t, err, skep.Invalid, name)
	}
	d, err := New([]Credential{{Name: "x", Tenant: "t", Rights: Read, TokenSHA256: h}}, nil, nil)
	require.NoError(t, err)
	id, err := d.token(tokenA)
	require.NoError(t, err)
	for _, verb := range []string{"%v", "%+v"} {
		assert.NotContains(t, fmt.Sprintf(verb, id), tokenA)
	}
}

func certificate(t *testing.T, name string, until time.Time) *x509.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name + ".example"}, NotBefore: until.Add(-time.Hour), NotAfter: until}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	require.NoError(t, err)
	c, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return c
}

func TestCertificatesBecomeIdentities(t *testing.T) {
	t.Parallel()
	c := &clock{time.Now()}
	pinned, named := certificate(t, "pinned", c.now.Add(time.Minute)), certificate(t, "named", c.now.Add(time.Minute))
	d, err := New([]Credential{
		{Name: "p", Tenant: "a", Rights: Read, CertSHA256: sha256.Sum256(pinned.Raw)},
		{Name: "n", Tenant: "b", Rights: Write, CertName: "named.example"},
	}, nil, c.read)
	require.NoError(t, err)

	id, err := d.certificate(pinned, nil)
	require.NoError(t, err)
	assert.Equal(t, "a", id.Tenant)
	_, err = d.certificate(named, nil)
	assert.ErrorIs(t, err, ErrDenied, "a name counts only when the chain was verified")
	id, err = d.certificate(named, [][]*x509.Certificate{{named}})
	require.NoError(t, err)
	assert.Equal(t, "b", id.Tenant)
	_, err = d.certificate(certificate(t, "other", c.now.Add(time.Minute)), [][]*x509.Certificate{{named}})
	assert.ErrorIs(t, err, ErrDenied)

	c.now = c.now.Add(2 * time.Minute)
	assert.ErrorIs(t, id.Check(c.now, Write), ErrDenied, "the certificate has run out")
	_, err = d.certificate(pinned, nil)
	assert.ErrorIs(t, err, ErrDenied)
}

func TestLimitsAreSharedAndSayWhenToComeBack(t *testing.T) {
	t.Parallel()
	c := &clock{time.Unix(1000, 0)}
	cred := Credential{Name: "a", Tenant: "a", Rights: All, TokenSHA256: hash(t, tokenA)}
	d, err := New([]Credential{cred}, map[string]Limits{"a": {RequestsPerSecond: 10, BytesPerSecond: 1000, Connections: 2}}, c.read)
	require.NoError(t, err)
	id, err := d.token(tokenA)
	require.NoError(t, err)
	l := id.Limits()

	for range 10 {
		_, ok := l.Admit(1, 0)
		require.True(t, ok)
	}
	wait, ok := l.Admit(1, 0)
	assert.False(t, ok)
	assert.Equal(t, 100*time.Millisecond, wait)
	c.now = c.now.Add(wait)
	_, ok = l.Admit(1, 0)
	assert.True(t, ok, "having waited as long as told")

	_, ok = l.Admit(0, 5000)
	assert.True(t, ok, "a value over a second's worth is admitted, and paid for")
	wait, ok = l.Admit(0, 1000)
	assert.False(t, ok)
	assert.Equal(t, 5*time.Second, wait)

	assert.True(t, l.Connect())
	assert.True(t, l.Connect())
	assert.False(t, l.Connect())
	l.Disconnect()
	assert.True(t, l.Connect())
	u := d.Usage()
	require.Len(t, u, 1)
	assert.Equal(t, 2, u[0].Connections)
	assert.Equal(t, int64(3), u[0].Shed)

	var none *Tenant
	_, ok = none.Admit(1, 1)
	assert.True(t, ok)
	assert.True(t, none.Connect())
	none.Disconnect()
}

func TestParsing(t *testing.T) {
	t.Parallel()
	r, err := ParseRights([]string{"read", "admin"})
	require.NoError(t, err)
	assert.Equal(t, Read|Admin, r)
	assert.Equal(t, []string{"read", "admin"}, r.Names())
	_, err = ParseRights([]string{"root"})
	assert.ErrorIs(t, err, skep.Invalid)
	h := sha256.Sum256([]byte("x"))
	got, err := ParseSHA256(fmt.Sprintf("%x", h))
	require.NoError(t, err)
	assert.Equal(t, h, got)
	_, err = ParseSHA256("abcd")
	assert.ErrorIs(t, err, skep.Invalid)
}

// A debt is made at once, however large it is to the rate, and nobody is told to wait longer than a day.
func TestADebtOfAnySize(t *testing.T) {
	t.Parallel()
	now := time.Now()
	limits := map[string]Limits{DefaultTenant: {BytesPerSecond: 1}}
	d, err := New(nil, limits, func() time.Time { return now })
	require.NoError(t, err)
	anybody, err := d.Identify(t.Context(), Presented{})
	require.NoError(t, err)
	tenant := anybody.Limits()
	_, ok := tenant.Solvent()
	require.True(t, ok)
	tenant.Charge(1 << 50)
	wait, ok := tenant.Solvent()
	require.False(t, ok)
	require.Equal(t, longest, wait)
	wait, ok = tenant.Admit(0, 1<<50)
	require.False(t, ok)
	require.Equal(t, longest, wait)
}
