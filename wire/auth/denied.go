package auth

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Denial is one who was not let in. What it presented is not in it.
type Denial struct {
	Protocol string   // of Presented
	Reason   string   // Missing, Wrong or Expired
	Name     string   // of the credential; "": it is not known whose it would have been
	Peer     net.Addr // may be nil
}

// Reasons of denials.
const (
	Missing = "missing" // nothing was presented
	Wrong   = "wrong"   // it is no credential's
	Expired = "expired" // it is a credential's that has run out
)

// Protocols and Reasons are those that denials are counted by.
var (
	Protocols = []string{"wire", "resp", "http"}
	Reasons   = []string{Missing, Wrong, Expired}
)

// errExpired is an ErrDenied that says why, for this package.
var errExpired = fmt.Errorf("%w: it has run out", ErrDenied)

// denials counts who was not let in, by protocol and reason, and tells of it.
type denials struct {
	mu   sync.Mutex
	n    map[[2]string]int64
	tell func(Denial)
}

// OnDenied has f told of everybody who is not let in, from now on. f is called on the goroutine of who asked, and must
// not block.
func (d *Directory) OnDenied(f func(Denial)) {
	d.denied.mu.Lock()
	defer d.denied.mu.Unlock()
	d.denied.tell = f
}

// Deny counts and tells of one who was not let in, whom Identify was not asked about. Without a protocol it does
// nothing.
func (d *Directory) Deny(x Denial) {
	if x.Protocol == "" {
		return
	}
	d.denied.mu.Lock()
	if d.denied.n == nil {
		d.denied.n = map[[2]string]int64{}
	}
	d.denied.n[[2]string{x.Protocol, x.Reason}]++
	tell := d.denied.tell
	d.denied.mu.Unlock()
	if tell != nil {
		tell(x)
	}
}

// Denied is how many were not let in over a protocol for a reason.
func (d *Directory) Denied(protocol, reason string) int64 {
	d.denied.mu.Lock()
	defer d.denied.mu.Unlock()
	return d.denied.n[[2]string{protocol, reason}]
}

// Expiries is when credentials run out, by name, of those that do.
func (d *Directory) Expiries() map[string]time.Time {
	out := map[string]time.Time{}
	for _, e := range d.table.Load().entries {
		if !e.Expires.IsZero() {
			out[e.Name] = e.Expires
		}
	}
	return out
}

// refuse counts one whom Identify did not let in for a reason.
func (d *Directory) refuse(p *Presented, name string, why error) {
	x := Denial{Protocol: p.Protocol, Reason: Wrong, Name: name, Peer: p.Peer}
	switch {
	case p.Token == "" && (p.TLS == nil || len(p.TLS.PeerCertificates) == 0):
		x.Reason = Missing
	case errors.Is(why, errExpired):
		x.Reason = Expired
	}
	d.Deny(x)
}

// DenyHandshake counts one whose client certificate did not pass a TLS handshake; other errors of handshakes it does
// not count.
func (d *Directory) DenyHandshake(protocol string, peer net.Addr, err error) {
	var bad *tls.CertificateVerificationError
	if !errors.As(err, &bad) {
		return
	}
	x := Denial{Protocol: protocol, Reason: Wrong, Peer: peer}
	var invalid x509.CertificateInvalidError
	if errors.As(bad.Err, &invalid) && invalid.Reason == x509.Expired {
		x.Reason = Expired
	}
	d.Deny(x)
}
