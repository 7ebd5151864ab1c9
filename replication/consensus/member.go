package consensus

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
)

// Registry is where a cluster's map is agreed on.
type Registry interface {
	// Map is the newest map that this node knows to be agreed on; nil: it knows of none yet. It is not to be changed.
	Map() *clustermap.Map
	// Propose has the nodes agree on a change, and says which epoch has it: Map has it, too, when it returns. A change
	// that is refused has changed nothing. Where the error is Unavailable, Deadline, Closed or Failed, it may be made all
	// the same. Behind: the cluster was recovered without this node (Recover).
	Propose(ctx context.Context, c *clustermap.Command) (epoch uint32, err error)
	// Watch calls f with the map, now and when it changes, one call at a time, the newest each time: it may miss some in
	// between. After stop has returned f is not called. f must not call stop.
	Watch(f func(*clustermap.Map)) (stop func())
}

// Options says how a Member is opened.
type Options struct {
	ID  uint64 // the node's in the map, 1 or more
	Dir string // what it keeps; made where it is not there
	// Listener accepts other nodes' connections, at the node's peer address. Close closes it.
	Listener net.Listener
	// Dial connects to a peer address; nil: TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Found is the first map of a cluster that is founded by this node alone: once the others run, they become members.
	// Where Dir has a cluster's state, that counts, and not this. Nil: the node waits for a cluster's leader to call.
	Found *clustermap.Map
	// Cluster is the one that the node belongs to, as Member.Cluster says it; empty: that of the first leader that calls.
	// Where Dir has a cluster's state it has to be that one.
	Cluster string
	// Known is the map that the node knew last: by it others are reached until Map gives one. Nil: none.
	Known *clustermap.Map
	// Conns is how many connections of others are open at a time; 0: 4096.
	Conns int
	// Load says what the node has; nil, or a nil answer: that is not known. It is called when somebody asks how the cluster
	// stands.
	Load func(ctx context.Context) *Load
	// Logger takes what raft and Pebble have to say; nil is slog.Default().
	Logger *slog.Logger

	// FS and SnapshotsIn replace the file systems of the log and, below a directory, of the map's snapshots, for tests;
	// Threshold and Trailing are the entries between two snapshots, and those that are kept behind one.
	FS                  vfs.FS
	SnapshotsIn         func(base string) (raft.SnapshotStore, error)
	Threshold, Trailing uint64
}

const (
	electionTimeout = 500 * time.Millisecond
	leaderLease     = 250 * time.Millisecond
	proposeTimeout  = 10 * time.Second // where a context says no sooner
	maxProposals    = 64               // at a time

	snapshotThreshold = 1024
	trailingEntries   = 1024
	snapshotsKept     = 2
)

var identityKey = []byte("cluster")

// Member is a node's part in agreeing on the map. All methods may be called from any goroutine.
type Member struct {
	o         Options
	log       *slog.Logger
	logs      *logs
	snapshots snapshots
	peers     *peers
	raft      *raft.Raft
	machine   machine
	hearing   hearing
	news      news
	heard     chan struct{}              // closed once others were asked whether the cluster was recovered
	behind    atomic.Pointer[skep.Error] // it was, and is another one now
	proposals chan struct{}
	closing   chan struct{}
	close     sync.Once
	closeErr  error
	wait      sync.WaitGroup
	asked     sync.WaitGroup // what raft has not answered yet; grows under mu, and not once closing is closed

	mu       sync.Mutex
	watchers map[*watcher]bool
}

var _ Registry = (*Member)(nil)

// Open opens a node's state, or makes it, and takes part.
//
// Errors: Invalid, Conflict where a cluster is to be founded by a node that belongs to one, Locked where the node runs
// already, Full where it is to be founded, Damaged, Version, Failed.
func Open(o Options) (*Member, error) {
	const op = "open cluster member"
	switch {
	case o.ID == 0:
		return nil, skep.Invalidf(op, "id", o.ID, "1 or more")
	case o.Dir == "":
		return nil, skep.Invalidf(op, "directory", "empty", "where the node's state is kept")
	case o.Listener == nil:
		return nil, skep.Invalidf(op, "listener", "none", "one at the node's peer address")
	}
	if o.Dial == nil {
		o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}
	}
	o.fill()
	if _, err := parseIdentity(o.Cluster); err != nil || o.Cluster != "" && o.Found != nil {
		return nil, &skep.Error{Op: op, Kind: skep.Invalid, Field: "cluster", Value: o.Cluster,
			Limit: "32 hexadecimal digits; empty where one is founded", Err: err}
	}
	if o.Found != nil {
		if _, err := foundingPeer(&o); err != nil {
			return nil, err
		}
	}
	m := &Member{o: o, log: o.Logger, proposals: make(chan struct{}, maxProposals), closing: make(chan struct{}),
		heard: make(chan struct{}), watchers: map[*watcher]bool{}}
	m.machine.changed = m.news.tell
	if err := m.open(); err != nil {
		return nil, err
	}
	m.wait.Go(m.listen)
	m.wait.Go(m.steer)
	m.wait.Go(m.tell)
	m.wait.Go(m.endFailed)
	return m, nil
}

// foundingPeer looks at the map that a cluster is to be founded with, and gives the node's own peer address in it.
func foundingPeer(o *Options) (string, error) {
	m, err := (*clustermap.Map)(nil).Apply(&clustermap.Command{Do: clustermap.Found, Map: o.Found})
	if err != nil {
		return "", err
	}
	for i := range m.Nodes {
		if m.Nodes[i].ID == o.ID {
			return m.Nodes[i].Peer, nil
		}
	}
	return "", skep.Invalidf("found cluster", "id", o.ID, "that of a node of the map")
}

func (m *Member) open() (err error) {
	o := &m.o
	failed := func(err error) error {
		return &skep.Error{Op: "open cluster member", Kind: kindOfOpen(err), Field: "directory", Value: o.Dir, Err: err}
	}
	if m.logs, err = openLogs(o.FS, filepath.Join(o.Dir, "log"), m.log); err != nil {
		return err
	}
	p := &peers{self: o.ID, listen: o.Listener, most: o.Conns, dial: o.Dial, log: m.log, serve: m.answer,
		word: m.tellWord, accepted: make(chan net.Conn), closing: make(chan struct{}), open: map[*held]bool{}}
	p.keep = func(id identity) error { return m.logs.keep(identityKey, id[:]) }
	m.peers = p
	var trans *raft.NetworkTransport
	defer func() {
		if err == nil {
			return
		}
		if trans != nil {
			_ = trans.Close()
		}
		_ = p.Close()
		p.wait.Wait()
		_ = m.logs.Close()
	}()
	if m.snapshots, err = openSnapshots(o, m.logs, false); err != nil {
		return failed(err)
	}
	m.logs.older = func() uint64 {
		if list, err := m.snapshots.List(); err == nil && len(list) > 1 {
			return list[1].Index
		}
		return math.MaxUint64
	}
	trans = raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: p, MaxPool: 3, Timeout: ioTimeout, Logger: hclogOf(m.log), ServerAddressProvider: m,
		// One at a time: raft's pipeline waits for ever for what it sent where its goroutine ends, as it does where the log
		// cannot be read, and where a follower refused the entries before. Maps change seldom.
		MaxRPCsInFlight: 1,
	})
	if err := m.belong(); err != nil {
		return err
	}
	// raft panics where an entry cannot be read while it begins.
	read := &stopped{o: *o, logs: m.logs, snapshots: m.snapshots, machine: machine{changed: func() {}}}
	if err := read.replay(); err != nil {
		return err
	}
	if read.forgot != nil {
		return read.forgot
	}
	if len(read.damaged) > 0 {
		m.log.Warn("an older snapshot of the map is used: newer ones cannot be read, and are set aside",
			"snapshots", read.damaged, "in", filepath.Join(m.snapshots.dir, damagedDir))
		if err := m.snapshots.setAside(read.damaged); err != nil {
			m.log.Error("they are not set aside, and nodes are sent what cannot be read", "error", err)
		}
	}
	if m.raft, err = raft.NewRaft(m.config(), &m.machine, m.logs, m.logs, m.snapshots, trans); err != nil {
		return failed(err)
	}
	m.logs.ends.Store(true)
	silent := &away{log: m.log, name: m.nameOf, nodes: map[raft.ServerID]bool{}}
	m.raft.RegisterObserver(raft.NewObserver(nil, false, func(ob *raft.Observation) bool {
		silent.observe(ob.Data)
		switch ob.Data.(type) {
		case raft.LeaderObservation, raft.RaftState:
			m.news.tell()
		}
		return false
	}))
	p.start()
	return nil
}

// nameOf is the name that the map has for a node; "": none.
func (m *Member) nameOf(id raft.ServerID) string {
	if now := m.Map(); now != nil {
		for i := range now.Nodes {
			if serverID(now.Nodes[i].ID) == id {
				return now.Nodes[i].Name
			}
		}
	}
	return ""
}

func serverID(id uint64) raft.ServerID { return raft.ServerID(strconv.FormatUint(id, 10)) }

func (m *Member) config() *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID, c.Logger = serverID(m.o.ID), hclogOf(m.log)
	c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout = electionTimeout, electionTimeout, leaderLease
	c.SnapshotThreshold, c.TrailingLogs = m.o.Threshold, m.o.Trailing
	c.ShutdownOnRemove = false // a node that was removed answers, and says so
	return c
}

// belong finds which cluster the node belongs to, and founds one where it is to.
func (m *Member) belong() error {
	const op = "open cluster member"
	last, err := m.logs.LastIndex()
	list, err2 := m.snapshots.List()
	if err = errors.Join(err, err2); err != nil {
		return &skep.Error{Op: op, Kind: kindOfOpen(err), Err: err}
	}
	has := last > 0 || len(list) > 0 // a term alone is what a founding that failed left
	b, err := m.logs.Get(identityKey)
	switch {
	case err == nil && len(b) != len(identity{}):
		return &skep.Error{Op: op, Kind: skep.Damaged, Field: "size of the cluster's identity", Value: len(b), Limit: len(identity{})}
	case err == nil && !has && m.o.Found != nil:
		return &skep.Error{Op: op, Kind: skep.Conflict, Field: "directory", Value: m.o.Dir, Limit: "one that belongs to no cluster"}
	case err == nil && m.o.Cluster != "" && m.o.Cluster != identity(b).String():
		return &skep.Error{Op: op, Kind: skep.Conflict, Field: "cluster", Value: m.o.Cluster,
			Limit: identity(b).String() + ", whose directory it is"}
	case err == nil:
		m.peers.of = identity(b)
		return nil
	case !errors.Is(err, errNoValue):
		return err
	case !has && m.o.Cluster != "":
		m.peers.of, _ = parseIdentity(m.o.Cluster)
		return m.peers.keep(m.peers.of)
	case !has && m.o.Found == nil:
		return nil // it waits
	}
	m.peers.of = drawIdentity() // nobody has heard of the cluster yet
	if has {
		return m.peers.keep(m.peers.of)
	}
	return m.found()
}

// found writes the entry that a cluster begins with. It is one write of the database, with the term and the identity: a
// node that has some of them would neither lead nor be founded again.
func (m *Member) found() error {
	peer, err := foundingPeer(&m.o)
	if err == nil {
		err = m.logs.space(leastSpace)
	}
	if err != nil {
		return err
	}
	first := raft.Configuration{Servers: []raft.Server{{ID: serverID(m.o.ID), Address: address(m.o.ID, peer)}}}
	data := raft.EncodeConfiguration(first)
	row, err := encodeEntry(&raft.Log{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: data})
	if err != nil {
		return err
	}
	return m.logs.commit(func(b *pebble.Batch) error {
		return errors.Join(b.Set(valueKey(termKey), uint64Value(1), nil), b.Set(entryKey(1), row, nil),
			b.Set(valueKey(identityKey), m.peers.of[:], nil))
	})
}

// ServerAddr implements raft.ServerAddressProvider: the map says where a node is, and raft's configuration follows.
func (m *Member) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	now := m.Map()
	if now == nil {
		now = m.o.Known
	}
	if now != nil {
		for i := range now.Nodes {
			if n := &now.Nodes[i]; serverID(n.ID) == id && n.Peer != "" {
				return address(n.ID, n.Peer), nil
			}
		}
	}
	return "", &skep.Error{Op: "cluster", Kind: skep.NotFound, Field: "node", Value: string(id), Limit: "a node of the map"}
}

// Map implements Registry.
func (m *Member) Map() *clustermap.Map { return m.machine.now.Load() }

// Cluster is the identity of the node's cluster, in hexadecimal; empty: it waits for one.
func (m *Member) Cluster() string {
	m.peers.mu.Lock()
	defer m.peers.mu.Unlock()
	if m.peers.of == (identity{}) {
		return ""
	}
	return m.peers.of.String()
}

// Failed is closed when the node's state cannot be kept any more: it takes part no longer, and knows the map that it knew.
func (m *Member) Failed() <-chan struct{} { return m.logs.failed }

// Close ends the node's part.
func (m *Member) Close() error {
	m.close.Do(func() {
		m.mu.Lock()
		close(m.closing)
		m.mu.Unlock()
		m.answered() // a raft that is shut down does not answer all that it was asked
		err := m.raft.Shutdown().Error()
		err = errors.Join(err, m.peers.Close()) // not sooner: a raft without its transport still dials
		m.wait.Wait()
		m.peers.wait.Wait()
		m.closeErr = errors.Join(err, m.logs.Close())
	})
	return m.closeErr
}

// settled waits for raft to answer.
func (m *Member) settled(ctx context.Context, f raft.Future) error {
	m.mu.Lock()
	select {
	case <-m.closing:
		m.mu.Unlock()
		return raft.ErrRaftShutdown
	default:
	}
	m.asked.Add(1)
	m.mu.Unlock()
	done := make(chan error, 1)
	go func() {
		defer m.asked.Done()
		done <- f.Error()
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-m.logs.failed:
		return m.logs.failure()
	}
}

// answered waits until raft has answered all that it was asked. Where the log fails it may never do.
func (m *Member) answered() {
	done := make(chan struct{})
	go func() {
		m.asked.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-m.logs.failed:
	}
}

// Propose implements Registry.
func (m *Member) Propose(ctx context.Context, c *clustermap.Command) (uint32, error) {
	const op = "propose"
	b, err := c.Encode()
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	select {
	case m.proposals <- struct{}{}:
		defer func() { <-m.proposals }()
	case <-ctx.Done():
		return 0, &skep.Error{Op: op, Kind: skep.Overloaded, Field: "proposals", Value: maxProposals, Limit: maxProposals, RetryAfter: time.Second}
	}
	select {
	case <-m.heard:
	case <-ctx.Done():
	}
	for {
		news := m.news.next()
		if err := m.LeftBehind(); err != nil {
			return 0, err
		}
		r, err := m.proposeOnce(ctx, b)
		switch {
		case err == nil && !r.Elsewhere && r.Error != nil:
			return r.Epoch, r.Error.err()
		case err == nil && !r.Elsewhere:
			return r.Epoch, m.reached(ctx, r.Epoch)
		case err != nil && !errors.Is(err, errNotReached):
			return 0, err
		}
		again := time.NewTimer(leaderLease)
		select {
		case <-news:
		case <-again.C:
		case <-m.closing:
			err = &skep.Error{Op: op, Kind: skep.Closed}
		case <-m.logs.failed:
			err = m.logs.failure()
		case <-ctx.Done():
			err = &skep.Error{Op: op, Kind: skep.Unavailable, Field: "leader", Value: "none",
				Limit: "most voters reach each other", Err: errors.Join(m.logs.seen(), ctx.Err())}
		}
		again.Stop()
		if err != nil && !errors.Is(err, errNotReached) {
			return 0, err
		}
	}
}

// proposeOnce asks who leads, as far as this node knows.
func (m *Member) proposeOnce(ctx context.Context, b []byte) (reply, error) {
	at, id := m.raft.LeaderWithID()
	if id == "" || m.Map() == nil { // it is being founded, or the node waits
		return reply{Elsewhere: true}, nil
	}
	if id == serverID(m.o.ID) {
		return m.apply(ctx, b)
	}
	if to, err := m.ServerAddr(id); err == nil {
		at = to
	}
	to, peer, err := splitAddress(at)
	if err != nil {
		return reply{Elsewhere: true}, nil
	}
	r, err := m.peers.call(ctx, to, peer, request{Propose: b})
	if err != nil && !errors.Is(err, errNotReached) {
		err = noAnswer(to, err)
	}
	return r, err
}

func noAnswer(leader uint64, err error) error {
	return &skep.Error{Op: "propose", Kind: skep.Unavailable, Field: "leader", Value: leader,
		Limit: "an answer: the change may be made all the same", Err: err}
}

// apply proposes to this node's raft.
func (m *Member) apply(ctx context.Context, b []byte) (reply, error) {
	if err := m.LeftBehind(); err != nil {
		return reply{Error: failedOf(err)}, nil
	}
	done, r := m.hears(b)
	if r != nil {
		return *r, nil
	}
	end, _ := ctx.Deadline()
	f := m.raft.Apply(b, max(time.Until(end), time.Millisecond))
	err := m.settled(ctx, f)
	done(err)
	switch {
	case err == nil:
		out := f.Response().(outcome)
		return reply{Epoch: out.epoch, Error: failedOf(out.err)}, nil
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress), errors.Is(err, raft.ErrEnqueueTimeout):
		return reply{Elsewhere: true}, nil
	case skep.KindOf(err) == skep.Full: // it was not appended; another node may lead
		return reply{Elsewhere: true}, nil
	case errors.Is(err, raft.ErrRaftShutdown):
		return reply{}, &skep.Error{Op: "propose", Kind: skep.Closed, Err: err}
	}
	return reply{}, noAnswer(m.o.ID, err)
}

// reached waits until this node's map is of epoch, or newer.
func (m *Member) reached(ctx context.Context, epoch uint32) error {
	for {
		news := m.news.next()
		if epochOf(m.Map()) >= epoch {
			return nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return &skep.Error{Op: "propose", Kind: skep.Deadline, Field: "epoch", Value: epoch, Limit: epochOf(m.Map()), Err: ctx.Err()}
		case <-m.closing:
			return &skep.Error{Op: "propose", Kind: skep.Closed}
		case <-m.logs.failed:
			return m.logs.failure()
		}
	}
}

// answer answers another node's call.
func (m *Member) answer(c net.Conn) {
	_ = c.SetDeadline(time.Now().Add(ioTimeout))
	b, err := readMessage(c)
	var q request
	if err != nil || json.Unmarshal(b, &q) != nil {
		return
	}
	if q.Propose != nil {
		if _, err := clustermap.DecodeCommand(q.Propose); err != nil {
			return
		}
	}
	r := reply{Epoch: epochOf(m.Map()), Applied: m.raft.AppliedIndex(),
		Leads: m.raft.State() == raft.Leader, Members: m.members()}
	if q.Load {
		ctx, cancel := context.WithTimeout(context.Background(), ioTimeout)
		defer cancel()
		r.Load = m.load(ctx)
	}
	if q.Reach != 0 {
		r.Reached = m.reaches(q.Reach)
	}
	if q.Renew != 0 {
		ctx, cancel := context.WithTimeout(context.Background(), ioTimeout)
		defer cancel()
		r = m.renew(ctx, q.Renew)
	}
	if q.Propose != nil {
		ctx, cancel := context.WithTimeout(context.Background(), proposeTimeout)
		defer cancel()
		select {
		case m.proposals <- struct{}{}:
			defer func() { <-m.proposals }()
		default:
			r = reply{Elsewhere: true} // it comes again
			q.Propose = nil
		}
		if q.Propose != nil {
			if r, err = m.apply(ctx, q.Propose); err != nil {
				if skep.KindOf(err) == skep.Closed { // it is this node that is closed, and not the one that asks
					err = noAnswer(m.o.ID, err)
				}
				r = reply{Error: failedOf(err)}
			}
		}
	}
	if b, err = json.Marshal(r); err == nil {
		_ = c.SetDeadline(time.Now().Add(ioTimeout))
		_ = writeMessage(c, b)
	}
}
