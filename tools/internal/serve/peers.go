package serve

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/skepkv/skep"
)

// peerTLS is what connections between nodes use, replaced as a whole when the files change. With none they are bare,
// and reach this machine only.
type peerTLS struct {
	now atomic.Pointer[tls.Config]
	log *slog.Logger

	mu   sync.Mutex
	said map[string]*rate.Sometimes // by what is said and of whom
}

// mostSaid is of how many addresses errors of TLS are told apart.
const mostSaid = 64

// tell says in the log that TLS with another node failed, once a minute of each address. Other errors are not said: a
// node that is away is told of elsewhere.
func (p *peerTLS) tell(what, addr string, err error) {
	var bad *tls.CertificateVerificationError
	var alert *net.OpError
	if !errors.As(err, &bad) && !(errors.As(err, &alert) && alert.Op == "remote error") {
		return
	}
	host, _, _ := net.SplitHostPort(addr)
	p.mu.Lock()
	if len(p.said) >= mostSaid {
		host = ""
	}
	one := p.said[what+host]
	if one == nil {
		if p.said == nil {
			p.said = map[string]*rate.Sometimes{}
		}
		one = &rate.Sometimes{First: 1, Interval: time.Minute}
		p.said[what+host] = one
	}
	p.mu.Unlock()
	one.Do(func() {
		p.log.Warn("TLS between nodes failed, said once a minute: peers.cert of each is to be signed by what is in "+
			"peers.ca of the others",
			"connection", what, "address", addr, "error", err)
	})
}

// secured is a connection between nodes, whose handshake is done when it is first read.
type secured struct {
	net.Conn
	p    *peerTLS
	what string
	addr string
}

// Read implements net.Conn.
func (s *secured) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	if err != nil {
		s.p.tell(s.what, s.addr, err)
	}
	return n, err
}

// securing is a listener of such connections.
type securing struct {
	net.Listener
	p *peerTLS
}

// Accept implements net.Listener.
func (l securing) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &secured{c, l.p, "from another node", c.RemoteAddr().String()}, nil
}

// loadPeerCertificate reads the files p names. Each side has to have a certificate that the others' CA has signed.
func loadPeerCertificate(p *PeersConfig) (*tls.Config, error) {
	cert, err := keyPair(p.Cert, p.Key)
	if err != nil {
		return nil, err
	}
	text, err := readFile(p.CA, MaxFileBytes)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New("no certificate in " + p.CA)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}, RootCAs: pool,
		ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, SessionTicketsDisabled: true,
	}, nil
}

// load reads the files again; an error leaves what was there in use. A server that has none goes on without.
func (p *peerTLS) load(c *PeersConfig) error {
	if c.Cert == "" {
		return nil
	}
	conf, err := loadPeerCertificate(c)
	if err == nil {
		p.now.Store(conf)
	}
	return err
}

// listener is l as it is to be among nodes.
func (p *peerTLS) listener(l net.Listener) net.Listener {
	if p.now.Load() == nil {
		return l
	}
	now := func(*tls.ClientHelloInfo) (*tls.Config, error) { return p.now.Load(), nil }
	return securing{tls.NewListener(l, &tls.Config{MinVersion: tls.VersionTLS13, GetConfigForClient: now}), p}
}

// dial connects to a node's peer address.
func (p *peerTLS) dial(ctx context.Context, addr string) (net.Conn, error) {
	if c := p.now.Load(); c != nil {
		const what = "to another node"
		conn, err := (&tls.Dialer{Config: c}).DialContext(ctx, "tcp", addr)
		if err != nil {
			p.tell(what, addr, err)
			return nil, err
		}
		return &secured{conn, p, what, addr}, nil
	}
	if host, _, err := net.SplitHostPort(addr); err != nil || !loopback(host) {
		return nil, skep.Invalidf("reach node", "peer address", addr, noTLS)
	}
	return new(net.Dialer).DialContext(ctx, "tcp", addr)
}
