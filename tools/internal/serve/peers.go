package serve

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"sync/atomic"

	"github.com/skepkv/skep"
)

// peerTLS is what connections between nodes use, replaced as a whole when the files change. With none they are bare,
// and reach this machine only.
type peerTLS struct {
	now atomic.Pointer[tls.Config]
}

// loadPeerCertificate reads the files p names. Each side has to have a certificate that the others' CA has signed.
func loadPeerCertificate(p *PeersConfig) (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(p.Cert, p.Key)
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
	return tls.NewListener(l, &tls.Config{MinVersion: tls.VersionTLS13, GetConfigForClient: now})
}

// dial connects to a node's peer address.
func (p *peerTLS) dial(ctx context.Context, addr string) (net.Conn, error) {
	if c := p.now.Load(); c != nil {
		return (&tls.Dialer{Config: c}).DialContext(ctx, "tcp", addr)
	}
	if host, _, err := net.SplitHostPort(addr); err != nil || !loopback(host) {
		return nil, skep.Invalidf("reach node", "peer address", addr, noTLS)
	}
	return new(net.Dialer).DialContext(ctx, "tcp", addr)
}
