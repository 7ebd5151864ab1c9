package auth

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
)

// Rights are what an identity may do; each includes nothing else.
type Rights uint8

const (
	Read  Rights = 1 << iota // lookup, restore, get
	Write                    // put, delete, expire, hint
	Admin                    // purges of what one reaches
	// Operator is what concerns the store as a whole: its figures, every tenant's, background work. It is
	// not given but follows: who has Admin for every tenant (AnyTenant) has it.
	Operator
	// All is every right that is given.
	All = Read | Write | Admin
)

var rightText = []struct {
	right Rights
	name  string
}{{Read, "read"}, {Write, "write"}, {Admin, "admin"}, {Operator, "operator"}}

// Names lists the rights by name.
func (r Rights) Names() []string {
	var out []string
	for _, t := range rightText {
		if r&t.right != 0 {
			out = append(out, t.name)
		}
	}
	return out
}

func (r Rights) String() string { return fmt.Sprint(r.Names()) }

// ParseRights reads names of rights; an unknown one is Invalid.
func ParseRights(names []string) (Rights, error) {
	var r Rights
next:
	for _, n := range names {
		for _, t := range rightText {
			if t.name == n && t.right&All != 0 {
				r |= t.right
				continue next
			}
		}
		return 0, skep.Invalidf("auth", "rights", n, "read, write or admin")
	}
	return r, nil
}

var (
	// ErrDenied is returned for a credential that is wrong, unknown, removed or expired,
	// and for none where one is needed.
	ErrDenied = errors.New("auth: access denied")
	// ErrForbidden is returned when the identity is known but lacks the right.
	ErrForbidden = errors.New("auth: not permitted")
	// errOperator is an ErrForbidden that says what would do.
	errOperator = fmt.Errorf("%w: this is about the store as a whole, for a credential of tenant %q with the right admin", ErrForbidden, AnyTenant)
)

// DefaultTenant is who everybody is where no credentials are configured.
const DefaultTenant = "default"

// Credential is one way to be a tenant: exactly one of TokenSHA256 and the certificate
// fields is set.
type Credential struct {
	Name        string    // for people and logs
	Tenant      string    // whose blocks it reaches
	Rights      Rights    //
	TokenSHA256 [32]byte  // SHA-256 of the token
	CertSHA256  [32]byte  // SHA-256 of the client certificate in DER
	CertName    string    // or: common name, or a DNS or URI name, of a certificate the server's client CA signed
	Expires     time.Time // zero: never
}

// MinTokenBytes is the shortest token accepted: shorter ones are guessed.
const MinTokenBytes = 16

// TokenHash is what a Credential keeps of a token; a short token is Invalid, and the
// error does not repeat it.
func TokenHash(token string) ([32]byte, error) {
	if len(token) < MinTokenBytes {
		return [32]byte{}, skep.Invalidf("auth", "token length in bytes", len(token), fmt.Sprintf("at least %d", MinTokenBytes))
	}
	return sha256.Sum256([]byte(token)), nil
}

// Identity is who speaks. The zero Identity may do nothing.
type Identity struct {
	Name    string // the credential's
	Tenant  string
	Rights  Rights
	Expires time.Time

	entry *entry
}

// Check says whether the identity may still do what needs the rights: ErrDenied when
// its credential was removed or ran out (by now, or by what Lasting was given), ErrForbidden when a right is missing.
func (i Identity) Check(now time.Time, need Rights) error {
	if i.entry == nil || i.entry.ended.Err() != nil || !i.Expires.IsZero() && !i.entry.tenant.later(now).Before(i.Expires) {
		return ErrDenied
	}
	switch missing := need &^ i.Rights; {
	case missing&All != 0:
		return ErrForbidden
	case missing != 0:
		return errOperator
	}
	return nil
}

// Limits is the identity's tenant's share; nil Limits admit everything.
func (i Identity) Limits() *Tenant {
	if i.entry == nil {
		return nil
	}
	return i.entry.tenant
}

// entry is a credential as the directory keeps it.
type entry struct {
	Credential
	token  [32]byte // HMAC of TokenSHA256
	tenant *Tenant
	ended  context.Context // when it is removed
	remove context.CancelFunc
}

func newEntry(c Credential, token [32]byte, t *Tenant) *entry {
	e := &entry{Credential: c, token: token, tenant: t}
	e.ended, e.remove = context.WithCancel(context.Background())
	return e
}

// Directory maps credentials to identities. Its methods may be called from any
// goroutine.
type Directory struct {
	key   [32]byte
	clock func() time.Time
	lasts lasts
	table atomic.Pointer[table]
	wrong *wrong

	denied denials

	mu      sync.Mutex // one Replace at a time
	tenants map[string]*Tenant
}

type table struct {
	entries []*entry
	open    *entry // the default identity, where there are no credentials
}

// New makes a directory. Without credentials it is open.
func New(credentials []Credential, limits map[string]Limits, clock func() time.Time) (*Directory, error) {
	if clock == nil {
		clock = time.Now
	}
	d := &Directory{clock: clock, tenants: map[string]*Tenant{}, wrong: newWrong()}
	if _, err := rand.Read(d.key[:]); err != nil {
		return nil, err
	}
	return d, d.Replace(credentials, limits)
}

// lasts is what Lasting was given; nil: nothing.
type lasts = atomic.Pointer[func() time.Time]

// Lasting has ends be judged by the later of the clock and f, which does not go back: what has ended stays so though the
// machine's clock is set back.
func (d *Directory) Lasting(f func() time.Time) { d.lasts.Store(&f) }

// Now is the time by which credentials end.
func (d *Directory) Now() time.Time { return later(d.clock(), &d.lasts) }

// OpenAs makes a directory that is open: everybody is this tenant, with these rights and no others. For a server whose
// socket only one user can reach, in front of one that knows that user as somebody.
func OpenAs(tenant string, rights Rights) (*Directory, error) {
	if tenant == "" || rights&^(All|Operator) != 0 || rights == 0 {
		return nil, skep.Invalidf("open directory", "tenant and rights", fmt.Sprintf("%q, %d", tenant, rights), "a tenant, and rights there are")
	}
	d, err := New(nil, nil, nil)
	if err != nil {
		return nil, err
	}
	only := d.tenant(tenant)
	only.alone.Store(true)
	d.table.Store(&table{open: newEntry(Credential{Name: "anybody", Tenant: tenant, Rights: rights}, [32]byte{}, only)})
	return d, nil
}

// Open says that no credentials are configured and everybody is the default tenant.
func (d *Directory) Open() bool { return d.table.Load().open != nil }

// HasOperator says whether there is a credential with the right Operator.
func (d *Directory) HasOperator() bool {
	t := d.table.Load()
	return t.open != nil || slices.ContainsFunc(t.entries, func(e *entry) bool { return e.identity().Rights&Operator != 0 })
}

// Replace puts other credentials and limits in place of all. Identities of
// credentials that are not among them any more, or changed, are denied from now on.
// An error changes nothing.
func (d *Directory) Replace(credentials []Credential, limits map[string]Limits) error {
	for i := range credentials {
		if err := credentials[i].validate(); err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	old := d.table.Load()
	keep := map[Credential]*entry{}
	if old != nil {
		for _, e := range old.entries {
			keep[e.Credential] = e
		}
	}
	t := &table{}
	for _, c := range credentials {
		e := keep[c]
		if e == nil {
			e = newEntry(c, d.mac(c.TokenSHA256), d.tenant(c.Tenant))
		}
		delete(keep, c)
		t.entries = append(t.entries, e)
	}
	switch {
	case len(credentials) > 0:
	case old != nil && old.open != nil:
		t.open = old.open
	default:
		t.open = newEntry(Credential{Name: "anybody", Tenant: DefaultTenant, Rights: All | Operator}, [32]byte{}, d.tenant(DefaultTenant))
	}
	d.table.Store(t)
	for _, e := range keep {
		e.remove()
	}
	if old != nil && old.open != nil && t.open == nil {
		old.open.remove()
	}
	named := map[string]bool{}
	for i := range credentials {
		named[credentials[i].Tenant] = true
	}
	for name, tn := range d.tenants {
		tn.set(limits[name])
		tn.alone.Store(len(named) <= 1)
	}
	return nil
}

// tenant is the one of that name. REQUIRES: d.mu.
func (d *Directory) tenant(name string) *Tenant {
	t := d.tenants[name]
	if t == nil {
		t = newTenant(name, d.clock, &d.lasts)
		d.tenants[name] = t
	}
	return t
}

func (c *Credential) validate() error {
	const op = "auth"
	var none [32]byte
	ways := 0
	for _, set := range []bool{c.TokenSHA256 != none, c.CertSHA256 != none, c.CertName != ""} {
		if set {
			ways++
		}
	}
	switch {
	case ways != 1:
		return skep.Invalidf(op, "credential "+c.Name, fmt.Sprintf("%d ways to present it", ways), "exactly one of token, certificate, certificate name")
	case c.Tenant == "" || len(c.Tenant) > skep.MaxNameSize:
		return skep.Invalidf(op, "tenant of credential "+c.Name, c.Tenant, fmt.Sprintf("1 to %d bytes", skep.MaxNameSize))
	case c.Rights == 0 || c.Rights&^All != 0:
		return skep.Invalidf(op, "rights of credential "+c.Name, uint8(c.Rights), "read, write, admin")
	}
	return nil
}

// anonymous is who presents nothing: the default identity in an open directory, with every
// right, else ErrDenied.
func (d *Directory) anonymous() (Identity, error) {
	if e := d.table.Load().open; e != nil {
		return e.identity(), nil
	}
	return Identity{}, ErrDenied
}

// token is who presents a token.
func (d *Directory) token(token string) (Identity, error) {
	sum := sha256.Sum256([]byte(token))
	mac := d.mac(sum)
	return d.find(func(e *entry) bool {
		var none [32]byte
		same := subtle.ConstantTimeCompare(e.token[:], mac[:]) == 1
		return same && e.TokenSHA256 != none
	})
}

// certificate is who presents a client certificate, as tls.ConnectionState has it:
// chains the server has verified. A certificate pinned by its hash needs no chain.
func (d *Directory) certificate(peer *x509.Certificate, chains [][]*x509.Certificate) (Identity, error) {
	if peer == nil {
		return Identity{}, ErrDenied
	}
	now := d.clock()
	if now.Before(peer.NotBefore) || later(now, &d.lasts).After(peer.NotAfter) {
		return Identity{}, errExpired
	}
	sum := sha256.Sum256(peer.Raw)
	names := map[string]bool{peer.Subject.CommonName: true}
	for _, n := range peer.DNSNames {
		names[n] = true
	}
	for _, u := range peer.URIs {
		names[u.String()] = true
	}
	id, err := d.find(func(e *entry) bool {
		if e.CertName != "" {
			return len(chains) > 0 && names[e.CertName]
		}
		return subtle.ConstantTimeCompare(e.CertSHA256[:], sum[:]) == 1
	})
	if err == nil && (id.Expires.IsZero() || peer.NotAfter.Before(id.Expires)) {
		id.Expires = peer.NotAfter
	}
	return id, err
}

// find looks at every entry, whichever matches. Of one that has run out it gives the name beside the error.
func (d *Directory) find(matches func(*entry) bool) (Identity, error) {
	var found *entry
	for _, e := range d.table.Load().entries {
		if matches(e) && found == nil {
			found = e
		}
	}
	if found == nil {
		return Identity{}, ErrDenied
	}
	id := found.identity()
	if err := id.Check(d.clock(), 0); err != nil {
		return Identity{Name: id.Name}, errExpired
	}
	return id, nil
}

func (e *entry) identity() Identity {
	id := Identity{Name: e.Name, Tenant: e.Tenant, Rights: e.Rights, Expires: e.Expires, entry: e}
	if e.Tenant == AnyTenant && e.Rights&Admin != 0 {
		id.Rights |= Operator
	}
	return id
}

func (d *Directory) mac(sum [32]byte) (out [32]byte) {
	h := hmac.New(sha256.New, d.key[:])
	h.Write(sum[:])
	h.Sum(out[:0])
	return out
}

// ParseSHA256 reads 64 hexadecimal digits, with or without colons between bytes.
func ParseSHA256(s string) (out [32]byte, err error) {
	clean := make([]byte, 0, 64)
	for i := range len(s) {
		if s[i] != ':' {
			clean = append(clean, s[i])
		}
	}
	b, err := hex.DecodeString(string(clean))
	if err != nil || len(b) != 32 {
		return out, skep.Invalidf("auth", "SHA-256 length in characters", len(s), "64 hexadecimal digits")
	}
	return [32]byte(b), nil
}
