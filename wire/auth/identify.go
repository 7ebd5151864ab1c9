package auth

import (
	"context"
	"crypto/tls"
	"hash/maphash"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Presented is what a peer shows of itself; the zero value is nothing.
type Presented struct {
	Token string               // or password
	User  string               // with it, where the protocol has users: default, the tenant's or the credential's name
	TLS   *tls.ConnectionState // after the handshake; nil: no TLS
	Peer  net.Addr             // where it comes from: failures are counted by it

	Protocol string // that it speaks, one of Protocols: denials are counted by it; "": they are not
}

// Identify finds out who presents that. It is the only place where that is decided, for all protocols: a token
// decides alone where there is one, else the certificate does; in an open directory everybody is the
// default tenant, whatever they present.
//
// Who presents something wrong waits for the answer once many from there did. Who is right never does, so that nobody is
// kept out by what others at the same address do.
func (d *Directory) Identify(ctx context.Context, p Presented) (Identity, error) {
	if id, err := d.anonymous(); err == nil {
		return id, nil
	}
	var err error
	var id Identity
	switch {
	case p.Token != "":
		if id, err = d.token(p.Token); err == nil && p.User != "" && p.User != "default" && p.User != id.Tenant && p.User != id.Name {
			id, err = Identity{Name: id.Name}, ErrDenied
		}
	case p.TLS != nil && len(p.TLS.PeerCertificates) > 0:
		id, err = d.certificate(p.TLS.PeerCertificates[0], p.TLS.VerifiedChains)
	default:
		d.refuse(&p, "", ErrDenied)
		return Identity{}, ErrDenied // shows nothing, guesses nothing
	}
	if err != nil {
		d.refuse(&p, id.Name, err)
		d.wrong.slow(ctx, p.Peer)
		return Identity{}, ErrDenied
	}
	return id, nil
}

// Failures of one address: so many at once, so many a second from then on, each answered at most so late.
const (
	wrongAtOnce    = 64
	wrongPerSecond = 32
	wrongDelay     = time.Second
)

// wrong counts what was presented and is wrong, by address. Addresses share what there is
// to count with: it takes the same memory for however many.
type wrong struct {
	seed maphash.Seed
	by   [256]*rate.Limiter
}

func newWrong() *wrong {
	w := &wrong{seed: maphash.MakeSeed()}
	for i := range w.by {
		w.by[i] = rate.NewLimiter(wrongPerSecond, wrongAtOnce)
	}
	return w
}

// delay is how long the answer to another failure from there waits.
func (w *wrong) delay(peer net.Addr, now time.Time) time.Duration {
	l := w.by[maphash.String(w.seed, source(peer))%uint64(len(w.by))]
	r := l.ReserveN(now, 1)
	wait := r.DelayFrom(now)
	if wait > wrongDelay {
		r.CancelAt(now) // what more there are do not wait longer and longer
		wait = wrongDelay
	}
	return wait
}

func (w *wrong) slow(ctx context.Context, peer net.Addr) {
	wait := w.delay(peer, time.Now())
	if wait <= 0 {
		return
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// source is what one peer has one of: an IPv4 address, a network of IPv6 addresses, this machine.
func source(peer net.Addr) string {
	if peer == nil {
		return ""
	}
	at, err := netip.ParseAddrPort(peer.String())
	if err != nil {
		return peer.Network()
	}
	ip := at.Addr().Unmap()
	if ip.Is6() {
		if p, err := ip.WithZone("").Prefix(64); err == nil {
			return p.String()
		}
	}
	return ip.String()
}

// Until has f called, once and on a goroutine of its own, when the identity may do nothing any more: its credential was
// removed, was replaced, or has run out. What lasts longer than a call ends by it. stop calls it off, if
// it has not begun.
func (i Identity) Until(f func()) (stop func()) {
	if i.entry == nil {
		go f()
		return func() {}
	}
	w := &watch{id: i, f: f}
	w.off = context.AfterFunc(i.entry.ended, w.end)
	if !i.Expires.IsZero() {
		w.look()
	}
	return w.stop
}

// lookAgain is how often who waits for a time looks at the clock, which may be set.
const lookAgain = time.Second

type watch struct {
	id  Identity
	f   func()
	off func() bool

	mu   sync.Mutex
	over bool
	next *time.Timer
}

func (w *watch) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return
	}
	left := w.id.Expires.Sub(w.id.entry.tenant.later(w.id.entry.tenant.clock()))
	if left <= 0 {
		go w.end()
		return
	}
	w.next = time.AfterFunc(min(left, lookAgain), w.look)
}

func (w *watch) end() {
	if w.finish() {
		w.f()
	}
}

func (w *watch) stop() {
	w.finish()
	w.off()
}

// finish is true for the first who calls it.
func (w *watch) finish() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return false
	}
	w.over = true
	if w.next != nil {
		w.next.Stop()
	}
	return true
}
