package consensus

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
)

// identity is a cluster's, drawn when it was founded: nodes of two clusters do not listen to each other.
type identity [16]byte

func drawIdentity() (id identity) {
	_, _ = rand.Read(id[:]) // it does not fail
	return id
}

func (id identity) String() string { return hex.EncodeToString(id[:]) }

// parseIdentity reads what String writes; empty is none.
func parseIdentity(s string) (id identity, err error) {
	b, err := hex.DecodeString(s)
	if err == nil && len(b) != 0 && len(b) != len(id) {
		err = skep.Invalidf("open cluster member", "cluster's size in bytes", len(b), len(id))
	}
	copy(id[:], b)
	return id, err
}

// A connection between nodes begins with a header: magic, what it is for, the cluster, and which node it is for. So what
// reaches another node than it was to, whose vote would count twice, is cut.
const (
	magic      = "skr1"
	forRaft    = 'r'
	forCall    = 'c'
	forWord    = 'w' // of whatever cluster it is: whether that was recovered
	headerSize = len(magic) + 1 + len(identity{}) + 8

	maxConns   = 4096
	maxMessage = clustermap.MaxCommand + 4096
	ioTimeout  = 2 * time.Second // of one read or write; a header's, too
)

// address is a node as raft knows it: its id, and where it is reached.
func address(id uint64, peer string) raft.ServerAddress {
	return raft.ServerAddress(fmt.Sprintf("%d@%s", id, peer))
}

func splitAddress(a raft.ServerAddress) (id uint64, peer string, err error) {
	number, peer, _ := strings.Cut(string(a), "@")
	if id, err = strconv.ParseUint(number, 10, 64); err != nil || peer == "" {
		return 0, "", skep.Invalidf("cluster", "address", string(a), "ID@HOST:PORT")
	}
	return id, peer, nil
}

// peers is the node's connections: those it accepts and those it makes. It is raft's StreamLayer.
type peers struct {
	self   uint64
	listen net.Listener
	most   int // connections that are accepted at a time
	dial   func(ctx context.Context, addr string) (net.Conn, error)
	log    *slog.Logger
	serve  func(net.Conn)           // answers a call
	word   func(net.Conn, identity) // answers a node of a cluster that may be another one
	keep   func(identity) error

	accepted chan net.Conn // of raft
	closing  chan struct{}
	wait     sync.WaitGroup

	mu     sync.Mutex
	of     identity       // all 0: none yet
	open   map[*held]bool // whether its header is read
	count  uint64         // of all that were accepted
	closed bool
}

func (p *peers) start() {
	p.wait.Go(func() {
		for {
			c, err := p.listen.Accept()
			if err != nil {
				select {
				case <-p.closing:
					return
				default:
				}
				if errors.Is(err, net.ErrClosed) {
					return
				}
				p.log.Warn("a node's connection was not accepted", "error", err)
				select { // descriptors are scarce, as a rule
				case <-p.closing:
					return
				case <-time.After(100 * time.Millisecond):
				}
				continue
			}
			if h := p.hold(c); h != nil {
				p.wait.Go(func() { p.greet(h) })
			}
		}
	})
}

// held is an accepted connection, which peers closes with itself.
type held struct {
	net.Conn
	p      *peers
	number uint64
}

func (h *held) Close() error {
	h.p.mu.Lock()
	delete(h.p.open, h)
	h.p.mu.Unlock()
	return h.Conn.Close()
}

// hold is c, to be closed by peers, too. Where there are too many, the one goes that has said for longest not who it
// is; nil where all have said it. So whoever holds connections and says nothing keeps no node out.
func (p *peers) hold(c net.Conn) *held {
	p.mu.Lock()
	var out *held
	if len(p.open) >= p.most {
		for h, greeted := range p.open {
			if !greeted && (out == nil || h.number < out.number) {
				out = h
			}
		}
		delete(p.open, out)
	}
	if p.closed || len(p.open) >= p.most {
		p.mu.Unlock()
		_ = c.Close()
		return nil
	}
	p.count++
	h := &held{c, p, p.count}
	p.open[h] = false
	p.mu.Unlock()
	if out != nil {
		_ = out.Conn.Close()
	}
	return h
}

// greet reads a connection's header and hands it on.
func (p *peers) greet(c *held) {
	kind, of, err := p.header(c)
	if err != nil {
		p.log.Debug("a node's connection was cut", "from", c.RemoteAddr(), "error", err)
		_ = c.Close()
		return
	}
	if kind == forCall || kind == forWord {
		if kind == forCall {
			p.serve(c)
		} else {
			p.word(c, of)
		}
		_ = c.Close()
		return
	}
	select {
	case p.accepted <- c:
	case <-p.closing:
		_ = c.Close()
	}
}

func (p *peers) header(c *held) (kind byte, of identity, err error) {
	var b [headerSize]byte
	_ = c.SetDeadline(time.Now().Add(ioTimeout))
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return 0, of, err
	}
	_ = c.SetDeadline(time.Time{})
	const op = "accept a node's connection"
	kind = b[len(magic)]
	if string(b[:len(magic)]) != magic || kind != forRaft && kind != forCall && kind != forWord {
		return 0, of, &skep.Error{Op: op, Kind: skep.Version, Field: "header", Value: fmt.Sprintf("%q", b[:len(magic)+1]), Limit: magic}
	}
	if to := binary.LittleEndian.Uint64(b[headerSize-8:]); to != p.self {
		return 0, of, skep.Invalidf(op, "node", to, p.self)
	}
	of = identity(b[len(magic)+1:])
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of == (identity{}) && of != (identity{}) && kind == forRaft {
		if err := p.keep(of); err != nil { // the leader of its cluster speaks to it for the first time
			return 0, of, err
		}
		p.of = of
	}
	if kind != forWord && (of != p.of || of == (identity{})) {
		return 0, of, skep.Invalidf(op, "cluster", "another", "this node's")
	}
	if _, held := p.open[c]; held && kind != forWord { // who asks for word may be of no cluster
		p.open[c] = true
	}
	return kind, of, nil
}

// reach connects to a node.
func (p *peers) reach(ctx context.Context, kind byte, id uint64, peer string) (net.Conn, error) {
	p.mu.Lock()
	of, closed := p.of, p.closed
	p.mu.Unlock()
	if closed {
		return nil, net.ErrClosed
	}
	c, err := p.dial(ctx, peer)
	if err != nil {
		return nil, err
	}
	b := append([]byte(magic), kind)
	b = append(b, of[:]...)
	b = binary.LittleEndian.AppendUint64(b, id)
	_ = c.SetDeadline(time.Now().Add(ioTimeout))
	if _, err := c.Write(b); err != nil {
		_ = c.Close()
		return nil, err
	}
	_ = c.SetDeadline(time.Time{})
	return c, nil
}

// Accept implements net.Listener, for raft's transport.
func (p *peers) Accept() (net.Conn, error) {
	select {
	case c := <-p.accepted:
		return c, nil
	case <-p.closing:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener: nothing is accepted or made from now on, and what was accepted is cut.
func (p *peers) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	open := p.open
	p.open = nil
	p.mu.Unlock()
	close(p.closing)
	err := p.listen.Close()
	for c := range open {
		_ = c.Conn.Close()
	}
	return err
}

// Addr implements net.Listener.
func (p *peers) Addr() net.Addr { return p.listen.Addr() }

// Dial implements raft.StreamLayer.
func (p *peers) Dial(a raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	id, peer, err := splitAddress(a)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return p.reach(ctx, forRaft, id, peer)
}

// request is a call of one node on another, reply its answer.
type (
	request struct {
		Propose json.RawMessage `json:"propose,omitempty"` // a command; none: the node's state is asked for
		Reach   uint64          `json:"reach,omitempty"`   // a node's number: whether it is reached
		Renew   uint64          `json:"renew,omitempty"`   // a node's number: it is heard
		Load    bool            `json:"load,omitempty"`    // what the node has is asked for, too
	}
	reply struct {
		Epoch     uint32  `json:"epoch"`
		Applied   uint64  `json:"applied"`
		Elsewhere bool    `json:"elsewhere,omitempty"` // nothing was done: the node does not lead
		Error     *failed `json:"error,omitempty"`
		Reached   bool    `json:"reached,omitempty"` // Reach is
		Renewed   bool    `json:"renewed,omitempty"` // Renew was, and is not down
		// Where the state was asked for: whether the node leads, and who is in raft's configuration, as it knows it.
		Leads   bool     `json:"leads,omitempty"`
		Members []uint64 `json:"members,omitempty"`
		Load    *Load    `json:"load,omitempty"`
	}
	failed struct {
		Op    string    `json:"op"`
		Kind  skep.Kind `json:"kind"`
		Field string    `json:"field,omitempty"`
		Value string    `json:"value,omitempty"`
		Limit string    `json:"limit,omitempty"`
		Text  string    `json:"text,omitempty"`
	}
)

func failedOf(err error) *failed {
	if err == nil {
		return nil
	}
	f := &failed{Kind: skep.KindOf(err)}
	e := (*skep.Error)(nil)
	if !errors.As(err, &e) {
		f.Text = err.Error()
		return f
	}
	f.Op, f.Field = e.Op, e.Field
	if e.Value != nil {
		f.Value = fmt.Sprint(e.Value)
	}
	if e.Limit != nil {
		f.Limit = fmt.Sprint(e.Limit)
	}
	if e.Err != nil {
		f.Text = e.Err.Error()
	}
	return f
}

func (f *failed) err() error {
	if f == nil {
		return nil
	}
	e := &skep.Error{Op: f.Op, Kind: f.Kind, Field: f.Field}
	if f.Value != "" {
		e.Value = f.Value
	}
	if f.Limit != "" {
		e.Limit = f.Limit
	}
	if f.Text != "" {
		e.Err = errors.New(f.Text)
	}
	return e
}

// errNotReached marks calls of which the other node knows nothing.
var errNotReached = errors.New("the node is not reached")

// call asks a node.
func (p *peers) call(ctx context.Context, id uint64, peer string, q request) (r reply, err error) {
	b, err := json.Marshal(q)
	if err != nil {
		return reply{}, err
	}
	dialling, cancel := context.WithTimeout(ctx, ioTimeout)
	defer cancel()
	c, err := p.reach(dialling, forCall, id, peer)
	if err != nil {
		return reply{}, errors.Join(errNotReached, err)
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	if err := writeMessage(c, b); err != nil {
		return reply{}, err
	}
	if b, err = readMessage(c); err == nil {
		err = json.Unmarshal(b, &r)
	}
	return r, err
}

func writeMessage(w io.Writer, b []byte) error {
	_, err := w.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(b))), b...))
	return err
}

func readMessage(r io.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(size[:])
	if n > maxMessage {
		return nil, skep.Invalidf("call between nodes", "message's size in bytes", n, maxMessage)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	return b, err
}
