package serve

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/tools/internal/member"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/near"
)

// JoinConfig has a server whose directory is no node's yet become a node of a cluster. One whose directory is a node's
// is that node, whatever this says.
type JoinConfig struct {
	Seeds     []string `yaml:"seeds" flag:"join" doc:"binary ports of nodes that a server whose dir is no node's yet asks in turn to be taken in as node, until one does"`
	Addr      string   `yaml:"addr" flag:"join-addr" doc:"where clients reach its binary port: HOST:PORT"`
	Peer      string   `yaml:"peer" flag:"join-peer" doc:"where the other nodes reach it: HOST:PORT"`
	RESP      string   `yaml:"resp" doc:"where Redis clients in cluster mode reach it: HOST:PORT; empty: nowhere"`
	Weight    int      `yaml:"weight" doc:"its share of the blocks: 1 to 65535"`
	Domain    []string `yaml:"domain" doc:"what may fail with it, the widest first: zone, rack, host"`
	TokenFile string   `yaml:"token_file" path:"" doc:"file with an operator's token, for the seeds; empty: peers.token_file"`
	First     string   `yaml:"first" doc:"name of the node that makes the cluster where no seed listens; empty: none"`
	Wait      Duration `yaml:"wait" doc:"how long that one asks first, at least 5s"`
	Replicas  int      `yaml:"replicas" doc:"nodes that have each block of a chain of its cluster, 1 to 4"`
}

const (
	joinAgain = time.Second // between two rounds of the seeds
	joinCall  = 30 * time.Second
)

func (c *Config) checkJoin() (wrong []error) {
	j := &c.Join
	if len(j.Seeds) == 0 {
		return nil
	}
	bad := func(is bool, field string, value, limit any) {
		if is {
			wrong = append(wrong, problem(field, value, limit))
		}
	}
	bad(c.Node == "", "node", "empty", "the node's name, where join.seeds is set")
	bad(c.Cluster != "", "cluster", c.Cluster, "empty, where join.seeds is set: the nodes agree on the map")
	for _, f := range []struct{ field, addr string }{{"join.addr", j.Addr}, {"join.peer", j.Peer}} {
		_, _, err := net.SplitHostPort(f.addr)
		socket := f.field == "join.addr" && strings.HasPrefix(f.addr, "unix:")
		bad(err != nil && !socket, f.field, fmt.Sprintf("%q", f.addr), "HOST:PORT")
	}
	if host, _, err := net.SplitHostPort(j.Peer); err == nil {
		bad(c.Peers.Cert == "" && !loopback(host), "join.peer", j.Peer, noTLS)
	}
	within := func(field string, n, most int) { bad(n < 1 || n > most, field, n, fmt.Sprintf("1 to %d", most)) }
	within("join.weight", j.Weight, clustermap.MaxWeight)
	within("join.replicas", j.Replicas, clustermap.MaxReplicas)
	bad(j.Wait < Duration(5*time.Second), "join.wait", j.Wait, "at least 5s")
	if c.joins() {
		bad(c.Peers.ServerCA != "" && !c.secured(), "peers.server_ca", c.Peers.ServerCA, "empty while this server's "+
			"binary port has no TLS (tls.cert, tls.plain): the seeds' are taken to have none, either")
		wrong = append(wrong, c.checkJoined()...)
	}
	if j.TokenFile != "" {
		if _, err := c.joinToken(); err != nil {
			wrong = append(wrong, err)
		}
	}
	return wrong
}

// joins says whether the server is to become a node: dir is none's yet.
func (c *Config) joins() bool {
	id, _, err := c.member()
	return err == nil && id == nil && len(c.Join.Seeds) > 0
}

// checkJoined checks where the server is to listen once it is a node: it would refuse to be started there, and is then
// not to join at all.
func (c *Config) checkJoined() (wrong []error) {
	x := *c
	x.listenAt(c.Join.Addr, c.Join.RESP)
	if _, _, err := net.SplitHostPort(x.Listen); err == nil && x.Listen != c.Listen {
		wrong = append(wrong, c.checkPort("join.addr", x.Listen)...)
	}
	if x.RESP != c.RESP {
		wrong = append(wrong, c.checkPort("join.resp", x.RESP)...)
	}
	wrong = append(wrong, x.checkReached(c.Join.Addr)...)
	if x.Unix != c.Unix {
		wrong = append(wrong, x.checkSocket("join.addr")...)
	}
	return wrong
}

// joined has the server listen as the node that it has become, and refuses what a start of that node would.
func (c *Config) joined() error {
	if wrong := c.listenAsNode(); len(wrong) > 0 {
		return errors.Join(wrong...)
	}
	return errors.Join(c.problems()...)
}

func (c *Config) joinToken() (string, error) {
	if c.Join.TokenFile == "" {
		return c.peerToken()
	}
	return tokenIn("join.token_file", c.Join.TokenFile)
}

// become makes dir a node's, where it is none's and the settings say which it is to be. It asks the seeds until one has
// taken it in, or ctx ends. The first node makes the cluster where nothing has listened at any seed for as long as it
// waits, and none has answered it before: a second cluster beside one that lives is worse than none.
func (s *server) become(ctx context.Context) error {
	c := s.c
	id, _, err := c.member()
	if err == nil && id != nil {
		return member.Forget(c.Dir) // a crash may have left it
	}
	if err != nil || len(c.Join.Seeds) == 0 {
		return err
	}
	j, log := &c.Join, s.log.With("part", "cluster")
	n := clustermap.Node{Name: c.Node, Addr: j.Addr, Peer: j.Peer, RESP: j.RESP, Weight: j.Weight, Domain: j.Domain}
	defer s.tellLonger()()
	if token, err := c.joinToken(); err == nil && token != "" && !c.secured() && slices.ContainsFunc(j.Seeds, far) {
		log.Warn("the token for the seeds goes to another machine unencrypted, and who reads it on the way may do "+
			"what it allows: have the nodes' binary ports speak TLS (tls.cert and tls.key)", "seeds", j.Seeds)
	}
	var there atomic.Bool
	silent, told := time.Now(), false
	ask := func() (*clustermap.Map, error) {
		return member.Join(ctx, c.Dir, n.Name, log, func(ctx context.Context) (member.Added, error) {
			return s.askSeeds(ctx, &n, &there)
		})
	}
	if j.First == n.Name && member.Begun(c.Dir) { // its own cluster, which nobody has heard of: none takes it in
		ask = func() (*clustermap.Map, error) { return nil, s.lookAtSeeds(ctx, &n, &there) }
	}
	for round := 0; ; round++ {
		m, err := ask()
		heard := there.Swap(false)
		if heard {
			silent = time.Now()
		}
		switch {
		case err == nil:
			log.Info("the cluster has taken this node in", "node", n.Name, "nodes", len(m.Nodes), "epoch", m.Epoch)
			return c.joined()
		case ctx.Err() != nil:
			return &skep.Error{Op: "join", Kind: skep.Deadline, Err: ctx.Err()}
		case !errors.Is(err, errNoSeed):
			return err
		case j.First != n.Name:
		case !heard && !member.Asked(c.Dir):
			if time.Since(silent) >= time.Duration(j.Wait) {
				return s.found(ctx, n)
			}
		case !told:
			told = true
			log.Warn("this node makes no cluster, though join.first names it: something listens at a seed, or has answered "+
				"this node before; where there is no cluster, make one with skep cluster init in an empty directory",
				"error", err)
		}
		if round%10 == 0 {
			log.Warn("no node of the cluster takes this one in yet", "seeds", j.Seeds, "error", err)
		}
		select {
		case <-time.After(joinAgain):
		case <-ctx.Done():
			return &skep.Error{Op: "join", Kind: skep.Deadline, Err: ctx.Err()}
		}
	}
}

// errNoSeed says that no seed has said yes or no.
var errNoSeed = errors.New("no seed has answered")

// askSeeds asks one after another to have the node taken in. there is set where something listens at a seed.
func (s *server) askSeeds(ctx context.Context, n *clustermap.Node, there *atomic.Bool) (member.Added, error) {
	var all []error
	for _, seed := range s.c.Join.Seeds {
		if seed == n.Addr {
			continue
		}
		added, err := s.askSeed(ctx, seed, n, there)
		switch skep.KindOf(err) {
		case skep.Conflict:
			return added, fmt.Errorf("%w: where that node is this one, and its volume was lost, have it removed "+
				"(skep cluster remove %s) and start this one again", err, n.Name)
		case skep.Denied, skep.Invalid:
			return added, fmt.Errorf("%s: %w", seed, err)
		}
		if err == nil {
			return added, nil
		}
		all = append(all, fmt.Errorf("%s: %w", seed, err))
	}
	return member.Added{}, errors.Join(append(all, errNoSeed)...)
}

// lookAtSeeds only looks whether something listens at a seed.
func (s *server) lookAtSeeds(ctx context.Context, n *clustermap.Node, there *atomic.Bool) error {
	ctx, cancel := context.WithTimeout(ctx, joinCall)
	defer cancel()
	for _, seed := range s.c.Join.Seeds {
		if seed == n.Addr {
			continue
		}
		if c, err := near.Dial(ctx, "tcp", seed); err == nil {
			there.Store(true)
			c.Close()
		}
	}
	return errNoSeed
}

func (s *server) askSeed(ctx context.Context, seed string, n *clustermap.Node, there *atomic.Bool) (
	added member.Added, err error,
) {
	token, err := s.c.joinToken()
	if err != nil {
		return added, err
	}
	secure, err := s.c.peerTLS()
	if err != nil {
		return added, err
	}
	ctx, cancel := context.WithTimeout(ctx, joinCall)
	defer cancel()
	o := wire.Options{Addr: seed, Token: token, TLS: secure, Name: "join", Strict: true, Conns: 1}
	// A connection is a sign of the cluster, whatever becomes of it: a node that has no quorum, opens its store yet, shows a
	// certificate that is not known here, or whose answer was lost, is one all the same.
	o.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := near.Dial(ctx, network, addr)
		if err == nil {
			there.Store(true)
		}
		return c, err
	}
	client, err := wire.Dial(ctx, o)
	if err != nil {
		return added, err
	}
	defer client.Close()
	return member.Add(ctx, s.c.Dir, n, func(ctx context.Context, call string, in, out any) error {
		b, err := json.Marshal(in)
		if err == nil {
			b, err = client.Admin(ctx, call, b)
		}
		if err == nil {
			err = json.Unmarshal(b, out)
		}
		return err
	})
}

// found makes the cluster of this node alone.
func (s *server) found(ctx context.Context, n clustermap.Node) error {
	n.ID = 1
	m := &clustermap.Map{Epoch: 1, Group: clustermap.DefaultGroup, Nodes: []clustermap.Node{n}}
	if s.c.Join.Replicas > 1 { // a map without replicas does not speak of them
		m.Replicas = s.c.Join.Replicas
	}
	if _, err := io.ReadFull(rand.Reader, m.Seed[:]); err != nil {
		return err
	}
	log := s.log.With("part", "cluster")
	m, err := member.Found(ctx, s.c.Dir, m, log)
	if err != nil {
		return err
	}
	log.Info("nothing listens at any seed: this node makes the cluster", "node", n.Name, "replicas", m.Replicas)
	return s.c.joined()
}
