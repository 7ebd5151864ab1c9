package serve

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/resp"
)

// Clients of RESP know no map. A node of a cluster serves them from all of it: from a Store over its own and over
// those of the other nodes, which it speaks to as any client does.

// gateway says whether RESP is served from the whole cluster.
func (c *Config) gateway() bool {
	_, id, err := c.clusterMap()
	return err == nil && id != nil && c.answersForAll()
}

// answersForAll says the same of a server that is, or is to be, a node.
func (c *Config) answersForAll() bool {
	return c.Redis.Cluster && (c.RESP != None || c.Redis.Lockstep != None)
}

// gatewayConns is how many connections the gateway has to each other node at most.
const gatewayConns = 4

// speaks says whether this node speaks to the others' binary ports.
func (c *Config) speaks() bool {
	repairs, _ := c.repairs()
	return repairs || c.gateway()
}

// gatewayFiles is how many descriptors they need.
func (c *Config) gatewayFiles() int {
	if m, _, err := c.clusterMap(); err == nil && m != nil && c.speaks() {
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
	if len(c.Credentials) > 0 && p.TokenFile == "" && (c.gateway() || c.joins() && c.answersForAll()) {
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
	return tokenIn("peers.token_file", c.Peers.TokenFile)
}

// tokenIn is the token in the file that a setting names.
func tokenIn(field, path string) (string, error) {
	b, err := readFile(path, 4<<10)
	if err != nil {
		return "", &skep.Error{Op: "settings", Kind: skep.Invalid, Field: field, Value: path, Err: err}
	}
	token := strings.TrimSpace(string(b))
	if token == "" {
		return "", problem(field, path, "a file with a token in it")
	}
	return token, nil
}

// secured says whether this node's binary port speaks TLS.
func (c *Config) secured() bool { return c.TLS.Cert != "" && !slices.Contains(c.TLS.Plain, "listen") }

// peerTLS is how the node speaks to the ports of the binary protocol of others, which are as its own: nil where those
// have no TLS.
func (c *Config) peerTLS() (*tls.Config, error) {
	if !c.secured() {
		return nil, nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS13}
	if c.Peers.ServerCA == "" {
		return t, nil
	}
	b, err := readFile(c.Peers.ServerCA, MaxFileBytes)
	if err == nil {
		if t.RootCAs = x509.NewCertPool(); !t.RootCAs.AppendCertsFromPEM(bytes.TrimSpace(b)) {
			err = errors.New("no certificate in it")
		}
	}
	if err != nil {
		return nil, &skep.Error{Op: "settings", Kind: skep.Invalid, Field: "peers.server_ca", Value: c.Peers.ServerCA, Err: err}
	}
	return t, nil
}

// shows is what the node shows the others. Where it is as before, that is what it gives.
func (c *Config) shows(before *wire.Credentials) (*wire.Credentials, error) {
	token, err := c.peerToken()
	if err != nil {
		return nil, err
	}
	secure, err := c.peerTLS()
	if err != nil {
		return nil, err
	}
	if before != nil && before.Token == token && (before.TLS == nil) == (secure == nil) &&
		(secure == nil || secure.RootCAs.Equal(before.TLS.RootCAs)) {
		return before, nil
	}
	return &wire.Credentials{Token: token, TLS: secure}, nil
}

// show has the node show the others what the settings say, in what it asks them from now on.
func (s *server) show(c *Config) error {
	before := s.shown.Load()
	shows, err := c.shows(before)
	if err != nil || shows == before {
		return err
	}
	s.shown.Store(shows)
	if s.dir.Open() || shows.Token == "" {
		return nil
	}
	const need = auth.Read | auth.Write
	id, err := s.dir.Identify(context.Background(), auth.Presented{Token: shows.Token})
	if err != nil || id.Tenant != auth.AnyTenant || id.Rights&need != need {
		s.log.Warn("the token in peers.token_file is none of tenant '*' with rights read and write here: where it is none "+
			"at the other nodes, they take no copies and have nothing for Redis clients",
			"token_file", c.Peers.TokenFile, "tenant", id.Tenant, "rights", id.Rights)
	}
	return nil
}

// lent is this node's own Store, which is closed with the server and not before.
type lent struct{ skep.Store }

func (lent) Close() error         { return nil }
func (l lent) Unwrap() skep.Store { return l.Store }

// openGateway makes the Store that clients of RESP are served from, and by which copies are sent.
func (s *server) openGateway(m *clustermap.Map, self uint64) (err error) {
	if err = s.show(s.c); err != nil {
		return err
	}
	log := s.log.With("part", "gateway")
	s.others = &others{self: self}
	dial := func(n clustermap.Node) (skep.Store, error) {
		if n.ID == self {
			return lent{s.st}, nil
		}
		if x := s.shown.Load(); x.Token != "" && x.TLS == nil && far(n.Addr) {
			log.Warn("peers.token_file goes to another machine unencrypted, and who reads it on the way is every tenant: "+
				"have the nodes' binary ports speak TLS (tls.cert and tls.key)", "node", n.Name, "address", n.Addr)
		}
		c, err := wire.NewClient(wire.Options{Addr: n.Addr, Credentials: s.shown.Load, Name: nodeName + s.node,
			Conns: gatewayConns, Log: log})
		if err != nil {
			return nil, err
		}
		return s.others.met(n, c), nil
	}
	o := replication.Options{Map: m, Dial: dial, Memory: s.st, Log: log}
	defer func() {
		if err != nil {
			for _, st := range o.Stores {
				_ = st.Close()
			}
		}
	}()
	for _, n := range m.Nodes {
		st, err := dial(n)
		if err != nil {
			return err
		}
		o.Stores = append(o.Stores, st)
	}
	s.whole, err = replication.New(o)
	s.others.follow(s.whole)
	return err
}

// far says whether an address is another machine's.
func far(addr string) bool {
	if strings.HasPrefix(addr, "unix:") {
		return false
	}
	host, _, err := net.SplitHostPort(addr)
	return err == nil && !loopback(host)
}

// cluster is the nodes for clients in cluster mode: those that Redis clients reach. Where this node is none of them
// there is no such mode.
func (o *others) cluster(ctx context.Context) *resp.Cluster {
	m := o.whole.Map()
	out := &resp.Cluster{Epoch: uint64(m.Epoch)}
	for i := range m.Nodes {
		if n := &m.Nodes[i]; n.ID == o.self && n.RESP != "" {
			out.Self = slotID(m, n)
		}
	}
	if out.Self == "" {
		return nil
	}
	gone := o.gone(ctx)
	for i := range m.Nodes {
		n := &m.Nodes[i]
		host, port, err := net.SplitHostPort(n.RESP)
		number, bad := strconv.Atoi(port)
		if err != nil || bad != nil {
			continue
		}
		out.Nodes = append(out.Nodes, resp.ClusterNode{ID: slotID(m, n), Host: host, Port: number, Weight: n.Weight, Away: gone[n.ID]})
	}
	return out
}

// slotID is a node's number in the form that clients in cluster mode know.
func slotID(m *clustermap.Map, n *clustermap.Node) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", m.Seed, n.ID))
	return hex.EncodeToString(sum[:20])
}

// followed has the gateway go on by another map. Who tells it does not wait: clients are told the map meanwhile.
func (s *server) followed(m *clustermap.Map) {
	if s.whole == nil {
		return
	}
	s.whole.Hear(m)
}

// closeGateway closes it, when nobody is served any more, and what RESP does beside before.
func (s *server) closeGateway() {
	if s.resp != nil {
		_ = s.resp.Shutdown(context.Background()) // it has no connection
	}
	if s.whole == nil {
		return
	}
	if err := s.whole.Close(); err != nil {
		s.log.Warn("connections to the other nodes did not end as they should", "error", err)
	}
}
