package serve

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/wire"
)

// Clients of RESP know no map. A node of a cluster serves them from all of it: from a Store over its own and over those
// of the other nodes, which it speaks to as any client does.

// gateway says whether RESP is served from the whole cluster.
func (c *Config) gateway() bool {
	if !c.Redis.Cluster || c.RESP == None && c.Redis.Lockstep == None {
		return false
	}
	_, id, err := c.clusterMap()
	return err == nil && id != nil
}

// gatewayConns is how many connections the gateway has to each other node at most.
const gatewayConns = 4

// gatewayFiles is how many descriptors they need.
func (c *Config) gatewayFiles() int {
	if m, _, err := c.clusterMap(); err == nil && m != nil && c.gateway() {
		return gatewayConns * (len(m.Nodes) - 1)
	}
	return 0
}

// checkGateway checks what the node says to the others.
func (c *Config) checkGateway() (wrong []error) {
	p := &c.Peers
	if p.TokenFile != "" {
		if _, err := c.peerToken(); err != nil {
			wrong = append(wrong, err)
		}
	}
	if p.ServerCA != "" {
		if _, err := c.peerTLS(); err != nil {
			wrong = append(wrong, err)
		}
	}
	if len(c.Credentials) > 0 && p.TokenFile == "" && c.gateway() {
		wrong = append(wrong, problem("peers.token_file", "empty",
			"a file with a token of tenant '*' with rights read and write at every node, while there are credentials and RESP "+
				"answers for the cluster; or redis.cluster: false, and RESP answers for this node"))
	}
	return wrong
}

// peerToken is what the node shows the others.
func (c *Config) peerToken() (string, error) {
	if c.Peers.TokenFile == "" {
		return "", nil
	}
	b, err := readFile(c.Peers.TokenFile, 4<<10)
	if err != nil {
		return "", &skep.Error{Op: "serve", Kind: skep.Invalid, Field: "peers.token_file", Value: c.Peers.TokenFile, Err: err}
	}
	token := strings.TrimSpace(string(b))
	if token == "" {
		return "", problem("peers.token_file", c.Peers.TokenFile, "a file with a token in it")
	}
	return token, nil
}

// peerTLS is how the node speaks to the ports of the binary protocol of others, which are as its own: nil where those
// have no TLS.
func (c *Config) peerTLS() (*tls.Config, error) {
	if c.TLS.Cert == "" || slices.Contains(c.TLS.Plain, "listen") {
		return nil, nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS13}
	if c.Peers.ServerCA == "" {
		return t, nil
	}
	b, err := os.ReadFile(c.Peers.ServerCA)
	if err == nil {
		if t.RootCAs = x509.NewCertPool(); !t.RootCAs.AppendCertsFromPEM(bytes.TrimSpace(b)) {
			err = errors.New("no certificate in it")
		}
	}
	if err != nil {
		return nil, &skep.Error{Op: "serve", Kind: skep.Invalid, Field: "peers.server_ca", Value: c.Peers.ServerCA, Err: err}
	}
	return t, nil
}

// lent is this node's own Store, which is closed with the server and not before.
type lent struct{ skep.Store }

func (lent) Close() error         { return nil }
func (l lent) Unwrap() skep.Store { return l.Store }

// openGateway makes the Store that clients of RESP are served from.
func (s *server) openGateway(m *clustermap.Map, self uint64) error {
	token, err := s.c.peerToken()
	if err != nil {
		return err
	}
	secure, err := s.c.peerTLS()
	if err != nil {
		return err
	}
	log := s.log.With("part", "gateway")
	dial := func(n clustermap.Node) (skep.Store, error) {
		if n.ID == self {
			return lent{s.st}, nil
		}
		return wire.NewClient(wire.Options{Addr: n.Addr, TLS: secure, Token: token, Name: "node " + s.node,
			Conns: gatewayConns, Log: log})
	}
	o := replication.Options{Map: m, Dial: dial, Memory: s.st, Log: log}
	for _, n := range m.Nodes {
		st, err := dial(n)
		if err != nil {
			return err
		}
		o.Stores = append(o.Stores, st)
	}
	s.whole, err = replication.New(o)
	return err
}

// followed has the gateway go on by another map.
func (s *server) followed(m *clustermap.Map) {
	if s.whole == nil {
		return
	}
	if err := s.whole.Follow(context.Background(), m); err != nil {
		s.log.Error("RESP is served by an older map of the cluster", "epoch", m.Epoch, "error", err)
	}
}

// closeGateway closes it, when nobody is served any more.
func (s *server) closeGateway() {
	if s.whole == nil {
		return
	}
	if err := s.whole.Close(); err != nil {
		s.log.Warn("connections to the other nodes did not end as they should", "error", err)
	}
}
