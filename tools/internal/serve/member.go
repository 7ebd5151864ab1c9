package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/consensus"
	"github.com/skepkv/skep/replication/fence"
	"github.com/skepkv/skep/replication/keeper"
	"github.com/skepkv/skep/tools/internal/member"
)

// member reads whose directory dir is: a node's that agrees with others on the map, or nobody's (nil).
func (c *Config) member() (*member.Identity, *clustermap.Map, error) {
	if c.Dir == "" {
		return nil, nil, nil
	}
	return member.Read(c.Dir)
}

// peerListen is where other nodes reach this one.
func (c *Config) peerListen(id *member.Identity) string {
	if c.Peers.Listen != "" {
		return c.Peers.Listen
	}
	return id.Peer
}

func (c *Config) checkPeers() (wrong []error) {
	p := &c.Peers
	switch all := p.Cert != "" && p.Key != "" && p.CA != ""; {
	case !all && p.Cert+p.Key+p.CA != "":
		wrong = append(wrong, problem("peers.cert, peers.key and peers.ca", "some of them", "all three or none"))
	case all:
		if _, err := loadPeerCertificate(p); err != nil {
			wrong = append(wrong, &skep.Error{Op: "settings", Kind: skep.Invalid, Field: "peers", Err: err})
		}
	}
	if p.RepairRate > 0 && p.RepairEvery < Duration(time.Second) {
		wrong = append(wrong, problem("peers.repair_every", p.RepairEvery, "at least 1s"))
	}
	id, _, err := c.member()
	at := p.Listen // of a server that is to be a node; checkJoin looks at join.peer
	if id != nil {
		at = c.peerListen(id)
	}
	switch {
	case err != nil: // listenAsNode has said so
	case id == nil && at != "" && len(c.Join.Seeds) == 0:
		wrong = append(wrong, problem("peers.listen", at,
			"empty, while dir is no node's (skep cluster init and add make it one)"))
	case at != "":
		host, _, err := net.SplitHostPort(at)
		if err != nil {
			wrong = append(wrong, problem("peers.listen", at, "HOST:PORT"))
		} else if p.Cert == "" && !loopback(host) {
			wrong = append(wrong, problem("peers.listen", at, noTLS))
		}
	}
	return wrong
}

const noTLS = "a loopback address (127.0.0.1, ::1, localhost) while peers.cert, peers.key and peers.ca are empty"

// peerFiles is how many descriptors the agreement needs.
func (c *Config) peerFiles() int {
	id, m, err := c.member()
	if err != nil || id == nil {
		return 0
	}
	return logFiles + peerConns + 4*len(m.Nodes)
}

// Descriptors of the agreement: its log's, and what other nodes and strangers connect to. The node that leads has up
// to four connections to each other one besides.
const (
	logFiles  = 96
	peerConns = 256
)

// membership is the server's part in agreeing on the map.
type membership struct {
	c    *consensus.Member
	id   member.Identity
	dir  string
	log  *slog.Logger
	stop func()
	// told is the epoch of the map that clients are told. Only agreed changes it.
	told atomic.Uint32
	// behind has an element where the node is to ask what it missed, before it serves.
	behind chan struct{}
}

// join has the server take part, where dir is a node's that agrees on the map.
func (s *server) join() error {
	id, m, err := s.c.member()
	if err != nil || id == nil {
		return err
	}
	at := s.c.peerListen(id)
	l, err := net.Listen("tcp", at)
	if err != nil {
		return &skep.Error{Op: "settings", Kind: skep.Invalid, Field: "peers.listen", Value: at, Err: err}
	}
	log := s.log.With("part", "cluster")
	c, err := consensus.Open(consensus.Options{
		ID: id.ID, Dir: member.Dir(s.c.Dir), Listener: s.peers.listener(l), Dial: s.peers.dial,
		Known: m, Conns: peerConns, Logger: log, Load: s.load,
	})
	if err != nil {
		return errors.Join(err, l.Close())
	}
	s.member = &membership{c: c, id: *id, dir: s.c.Dir, log: log}
	s.member.told.Store(m.Epoch)
	s.member.behind = make(chan struct{}, 1)
	if s.gate != nil {
		s.gate.Join(c, m)
	}
	if len(m.Nodes) == 1 && m.Nodes[0].Missed == nil && c.Sole() {
		s.fence.Alone(c, m)
	} else {
		s.member.behind <- struct{}{}
	}
	s.member.stop = c.Watch(s.agreed)
	log.Info("agrees on the cluster's map", "node", id.Name, "peers", at, "tls", s.c.Peers.Cert != "", "epoch", m.Epoch)
	return nil
}

// load is what the node has, for who asks how the cluster stands; nil: it cannot be read.
func (s *server) load(ctx context.Context) *consensus.Load {
	st, err := s.st.Stats(ctx)
	if err != nil {
		s.log.Warn("what this node has cannot be told to who asks how the cluster stands", "error", err)
		return nil
	}
	l := &consensus.Load{Missing: -1, Blocks: st.Blocks, Bytes: st.BlockBytes, Capacity: st.CapacityBytes}
	if s.gate != nil {
		l.Keys = s.gate.Keys()
	}
	if r := s.repair; r != nil {
		state := r.state()
		l.Repairing, l.Sent, l.Rate = state.Running, state.Bytes, state.RateNow()
		if last := state.Last; last != nil {
			l.Missing = last.Declined + last.Away + last.Unread
		}
	}
	return l
}

// leave ends the server's part.
func (s *server) leave() {
	if s.member == nil {
		return
	}
	s.member.stop()
	if err := s.member.c.Close(); err != nil {
		s.member.log.Error("the part in agreeing on the map did not end as it should", "error", err)
	}
}

// agreed goes on by a map that is agreed on, and keeps it for the next start.
func (s *server) agreed(m *clustermap.Map) {
	o := s.member
	if m.Epoch <= o.told.Load() { // it is begun anew, and hears the log again
		return
	}
	if s.fence.Heard(m) {
		o.isBehind()
	}
	text, err := m.Public().Encode()
	if err == nil {
		err = s.wire.SetCluster(text, m.Epoch, 0)
	}
	if err != nil {
		o.log.Error("a map that is agreed on is not taken: the one in use stays", "epoch", m.Epoch, "error", err)
		return
	}
	o.told.Store(m.Epoch)
	s.followed(m.Public())
	if err := member.WriteMap(o.dir, m); err != nil {
		o.log.Error("the map is not kept: the next start begins with an older one", "epoch", m.Epoch, "error", err)
	}
	o.log.Info("the cluster has a new map", "epoch", m.Epoch, "nodes", len(m.Nodes))
	for i := range m.Nodes {
		if m.Nodes[i].ID == o.id.ID {
			return
		}
	}
	sayOut(o.log, o.id.Name)
}

// isBehind has the node ask what it missed.
func (o *membership) isBehind() {
	select {
	case o.behind <- struct{}{}:
	default: // it is about to
	}
}

// addPatience is how long a change may take, an election included.
const addPatience = 20 * time.Second

// adminCluster carries out calls on the cluster: how it stands, and changes of its map.
func (s *server) adminCluster(ctx context.Context, name string, in json.RawMessage) (json.RawMessage, error) {
	const op = "cluster"
	if s.member == nil {
		return nil, &skep.Error{Op: op, Kind: skep.Unsupported, Field: "server", Value: "no node that agrees on a map",
			Limit: "a node that was founded or added (skep cluster init, skep cluster add)"}
	}
	c := s.member.c
	if name == "cluster" {
		return json.Marshal(c.Status(ctx))
	}
	var n clustermap.Node
	var change member.Change
	var rejoin member.AskRejoin
	var join member.AskJoin
	d := json.NewDecoder(bytes.NewReader(in))
	d.DisallowUnknownFields()
	var err error
	switch name {
	case "cluster set":
		err = d.Decode(&change)
	case "cluster rejoin":
		err = d.Decode(&rejoin)
	case "cluster join":
		err = d.Decode(&join)
		n = join.Node
	default:
		err = d.Decode(&n)
	}
	if err != nil {
		return nil, &skep.Error{Op: op, Kind: skep.Invalid, Field: name, Err: err}
	}
	if name == "cluster rejoin" {
		return s.rejoins(&rejoin)
	}
	ctx, cancel := context.WithTimeout(ctx, addPatience)
	defer cancel()
	if name == "cluster remove" {
		return s.removeNode(ctx, n.Name)
	}
	peer := n.Peer + change.Peer
	if host, _, err := net.SplitHostPort(peer); err == nil && s.c.Peers.Cert == "" && !loopback(host) {
		return nil, skep.Invalidf(op, "peer address", peer, noTLS)
	}
	switch name {
	case "cluster set":
		return s.changeNode(ctx, &change)
	case "cluster join":
		return s.takeIn(ctx, &join)
	}
	epoch, err := c.Propose(ctx, &clustermap.Command{Do: clustermap.AddNode, Node: &n})
	if err != nil {
		return nil, err
	}
	return s.added(ctx, epoch, n.Name)
}

// changeNode has the nodes agree on one thing of a node after another.
func (s *server) changeNode(ctx context.Context, change *member.Change) (json.RawMessage, error) {
	list := change.Commands()
	if change.Unencrypted != "" {
		end, err := s.unencrypt(ctx, change.Unencrypted)
		if err != nil {
			return nil, err
		}
		list = append(list, end...)
	}
	if len(list) == 0 {
		return nil, skep.Invalidf("cluster", "what is set of node "+change.Name, "nothing", "an address, a weight or a state")
	}
	if change.State != nil && *change.State == clustermap.Down {
		if err := s.silent(ctx, change.Name); err != nil {
			return nil, err
		}
	}
	if m := s.member.c.Map(); m != nil && len(list) > 1 { // what is refused later would leave a part of it done
		for i := range list {
			var err error
			if m, err = m.Apply(&list[i]); errors.Is(err, skep.NotFound) {
				break // by a map that may be old
			} else if err != nil {
				return nil, err
			}
		}
	}
	var out member.Changed
	for i := range list {
		epoch, err := s.member.c.Propose(ctx, &list[i])
		if err != nil {
			return nil, partly(list, i, err)
		}
		out.Epoch = epoch
	}
	s.member.tells(ctx, out.Epoch)
	return json.Marshal(out)
}

// partly says of a change that broke off with err which commands of it, the first done, are carried out.
func partly(list []clustermap.Command, done int, err error) error {
	if done == 0 {
		return err
	}
	var all []string
	for i := range list {
		all = append(all, string(list[i].Do))
	}
	out := &skep.Error{Op: "cluster", Kind: skep.KindOf(err), Field: "what is done of the change",
		Value: strings.Join(all[:done], ", "), Limit: strings.Join(all, ", "), Err: err}
	if why := (*skep.Error)(nil); errors.As(err, &why) {
		out.RetryAfter = why.RetryAfter
	}
	return out
}

// signPatience is how long a node that is said to be down may take to show that it is not.
const signPatience = 2 * time.Second

// silent refuses to have a node down that runs: it answers this node or another one.
func (s *server) silent(ctx context.Context, name string) error {
	m := s.member.c.Map()
	if m == nil {
		return nil // it is refused as any change
	}
	n, err := m.Node(name)
	if err != nil {
		return nil // as above
	}
	look, cancel := context.WithTimeout(ctx, signPatience)
	defer cancel()
	conn, err := s.peers.dial(look, n.Peer)
	by := s.member.id.Name
	ctx, stop := context.WithTimeout(ctx, signPatience)
	defer stop()
	if err == nil {
		_ = conn.Close()
	} else if who := s.member.c.Reached(ctx, n.ID); who != nil {
		by = who.Name
	} else {
		return nil
	}
	return &skep.Error{Op: "cluster", Kind: skep.Conflict, Field: "state of node " + name, Value: string(clustermap.Down),
		Limit: "up or out, while it answers node " + by + " at " + n.Peer}
}

// The node serves when it knows what it missed. It asks again after returnEvery where nobody knows; the servers start
// with it, and say that they are ready when it serves, or after settleFor.
const (
	returnEvery = 100 * time.Millisecond
	settleFor   = 2 * time.Second
)

// keep has the node's own Store be behind what recalls copies and, where the nodes agree on the map, behind a fence.
func (s *server) keep(n *clustermap.Node) *keeper.Keeper {
	own := s.st
	kept := keeper.New(own)
	if s.st = kept; s.c.Cluster == "" {
		s.fence = fence.New(kept, own, n.Name, n.ID)
		s.opened.Store(s.fence)
		s.st = s.fence
	}
	return kept
}

// comesBack has the node serve, and waits for that, not for long. It is done some time after ctx has ended.
func (s *server) comesBack(ctx context.Context) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		var heard sync.WaitGroup
		if s.member != nil {
			heard.Go(func() { s.fence.KeepHeard(ctx, s.member.isBehind) })
		}
		if s.gate != nil {
			heard.Go(func() { s.gate.Agree(ctx) })
		}
		s.comeBack(ctx)
		heard.Wait()
	}()
	s.settle(ctx)
	return done
}

// comeBack has the node serve, now and when it was down, once it has lost what was deleted meanwhile. It ends with
// ctx.
func (s *server) comeBack(ctx context.Context) {
	if s.member == nil {
		return
	}
	for {
		select {
		case <-s.member.behind:
		case <-ctx.Done():
			return
		}
		for said := false; ; said = true {
			err := s.fence.Return(ctx, s.member.c)
			if err == nil {
				break
			}
			if !said {
				s.member.log.Warn("this node serves nothing before it knows what it missed", "error", err)
			}
			select {
			case <-time.After(returnEvery):
			case <-ctx.Done():
				return
			}
		}
	}
}

// settle waits for that, not for long.
func (s *server) settle(ctx context.Context) {
	if s.member == nil {
		return
	}
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	end := time.After(settleFor)
	for !s.fence.Open() || s.gate != nil && !s.gate.Settled() {
		select {
		case <-look.C:
		case <-end:
			return
		case <-ctx.Done():
			return
		}
	}
}

// tells waits until clients are told the map of an epoch that was agreed on, or ctx ends: who changed the map and
// asks this node finds it changed.
func (o *membership) tells(ctx context.Context, epoch uint32) {
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for o.told.Load() < epoch {
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
	}
}

// leavePatience is how long a node that is removed may take to be no voter any more, before who removes it is told
// that it still is one.
const leavePatience = 6 * time.Second

func (s *server) removeNode(ctx context.Context, name string) (json.RawMessage, error) {
	c := s.member.c
	id := uint64(0)
	if m := c.Map(); m != nil {
		if n, err := m.Node(name); err == nil {
			id = n.ID
		}
	}
	epoch, err := c.Propose(ctx, &clustermap.Command{Do: clustermap.RemoveNode, Name: name})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, leavePatience)
	defer cancel()
	s.member.tells(ctx, epoch)
	return json.Marshal(member.Removed{Epoch: epoch, Votes: id == 0 || c.Left(ctx, id) != nil})
}
