package replication

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/auth"
)

// MaxAddresses is how many addresses Connect takes.
const MaxAddresses = 64

// seeds are the addresses that Connect was given: servers that tell the map while there is none, and where none of its
// nodes answers.
type seeds struct {
	addrs   []string // Store.seed's is the first
	open    func(addr string) (*wire.Client, error)
	clients []*wire.Client // of addrs, while they are asked; guarded by Store.mu
	who     atomic.Pointer[identity]

	asking atomic.Bool // somebody asks them again, who has asked
	asked  time.Time   // when they were asked again last
}

// identity is what a server said of the credentials.
type identity struct {
	tenant string
	rights auth.Rights
}

// Addresses splits a list of addresses at its commas. field names the list in errors.
//
// Errors: Invalid (an element is empty, or there twice; there are over MaxAddresses).
func Addresses(op, field, list string) ([]string, error) {
	out := strings.Split(list, ",")
	if len(out) > MaxAddresses {
		return nil, skep.Invalidf(op, field, fmt.Sprintf("%d addresses", len(out)), fmt.Sprintf("at most %d", MaxAddresses))
	}
	for i := range out {
		if len(out) > 1 {
			out[i] = strings.TrimSpace(out[i])
		}
		switch {
		case out[i] == "" && len(out) > 1:
			return nil, skep.Invalidf(op, field, fmt.Sprintf("%q", list), "an address before and after each comma")
		case slices.Contains(out[:i], out[i]):
			return nil, skep.Invalidf(op, field, fmt.Sprintf("%q twice", out[i]), "each address once")
		}
	}
	return out, nil
}

// addresses are those of Options.Addr: the server's own that memory is shared with, or else the first, comes first.
func addresses(list string) ([]string, error) {
	const op, field = "dial", "addr"
	out, err := Addresses(op, field, list)
	if err != nil || len(out) == 1 {
		return out, err
	}
	for _, a := range out {
		path, socket := strings.CutPrefix(a, "unix:")
		host, port, err := net.SplitHostPort(a)
		n, bad := strconv.ParseUint(port, 10, 16)
		if socket && path == "" || !socket && (err != nil || bad != nil || host == "" || n == 0) {
			return nil, skep.Invalidf(op, field, fmt.Sprintf("%q", a), "host:port, or unix:path")
		}
	}
	if i := slices.IndexFunc(out, local); i > 0 {
		out[0], out[i] = out[i], out[0]
	}
	return out, nil
}

// local says whether an address is a socket's of this machine: every connection to it goes to the same server, which
// that of a host may not.
func local(addr string) bool { return strings.HasPrefix(addr, "unix:") }

// several says whether Connect was given several addresses. A server of no cluster is none of them then.
func (s *Store) several() bool { return len(s.seeds.addrs) > 1 }

// seek asks the addresses of Connect for a map where a call by v would reach nobody. An error is of what a server said;
// where none answers the call goes on, and is that of a server that is away.
func (s *Store) seek(ctx context.Context, v *view) error {
	switch {
	case v.mapped():
		if len(s.seeds.addrs) > 0 && v.lost() {
			s.seekAgain()
		}
	case s.several():
		if err := s.find(ctx); err != nil && (!s.away(err) || ctx.Err() != nil) {
			return err
		}
	}
	return nil
}

// find asks the addresses of Connect for a map that is newer than what there is, and goes on by it.
//
// Errors: those of the servers, Unavailable only where none said anything else; Deadline.
func (s *Store) find(ctx context.Context) error {
	if err := s.turn(ctx); err != nil {
		return err
	}
	defer func() { <-s.learns }()
	v := s.now.Load()
	if v.mapped() && !v.lost() {
		return nil // somebody else asked
	}
	ask, err := s.tellers()
	if err != nil {
		return err
	}
	m, by, err := s.newest(ctx, v, ask)
	if m == nil {
		if ctx.Err() != nil {
			return ended(ctx, "cluster map")
		}
		return err
	}
	if c, ok := by.teller.(*wire.Client); ok {
		tenant, rights := c.Identity()
		s.seeds.who.Store(&identity{tenant, rights})
	}
	if err := s.adopt(ctx, v, m); err != nil {
		return err
	}
	s.log.Info("the cluster is found", "by", by.name, "epoch", m.Epoch, "nodes", len(m.Nodes))
	s.hush()
	if s.several() && local(s.seeds.addrs[0]) && s.now.Load().seedNode(s) == nil {
		s.start(s.awaitSeed)
	}
	return nil
}

// tellers are clients of the addresses that Connect was given.
func (s *Store) tellers() ([]told, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		return nil, &skep.Error{Op: "cluster map", Kind: skep.Closed}
	}
	ask := []told{{s.seeds.addrs[0], s.seed}}
	for i, addr := range s.seeds.addrs[1:] {
		if i == len(s.seeds.clients) {
			c, err := s.seeds.open(addr)
			if err != nil {
				return nil, err
			}
			s.seeds.clients = append(s.seeds.clients, c)
		}
		ask = append(ask, told{addr, s.seeds.clients[i]})
	}
	return ask, nil
}

// hush closes the clients of addresses that nobody has to ask any more, which the caller does not wait for.
func (s *Store) hush() {
	s.mu.Lock()
	clients := s.seeds.clients
	s.seeds.clients = nil
	s.mu.Unlock()
	for _, c := range clients {
		if !s.start(func() { _ = c.Close() }) {
			_ = c.Close()
		}
	}
}

// lost says whether none of the map's nodes has been there at the last look.
func (v *view) lost() bool {
	return !slices.ContainsFunc(v.live, func(n *node) bool {
		c, ok := skep.As[interface{ Away() bool }](n.st)
		return !ok || !c.Away()
	})
}

// seekAgain has the addresses asked beside the caller, once a second at most: nodes may have got new addresses.
func (s *Store) seekAgain() {
	if s.seeds.asking.Swap(true) {
		return
	}
	now := skep.Steady()
	if now.Sub(s.seeds.asked) >= time.Second {
		s.seeds.asked = now
		if s.start(func() {
			defer s.seeds.asking.Store(false)
			if err := s.find(s.ctx); err != nil && !s.away(err) && !s.closed.Load() {
				s.log.Warn("no node of the cluster answers, and no address tells a newer map", "error", err)
			}
		}) {
			return
		}
	}
	s.seeds.asking.Store(false)
}

// alone is what is said of a server of no cluster among several addresses.
func (s *Store) alone(addr string, err error) error {
	if !s.several() || skep.KindOf(err) != skep.Unsupported {
		return err
	}
	return &skep.Error{Op: "dial", Kind: skep.Unsupported, Field: "addr", Value: addr + ", which is no node of a cluster",
		Limit: "a cluster's nodes, or the address of one server alone: several servers of their own are no Store", Err: err}
}

// seedLook is how often a server that was not there is asked which node it is.
const seedLook = time.Second

// awaitSeed has calls for the node behind the first address go there, as soon as it says which node it is: memory is
// shared with it.
func (s *Store) awaitSeed() {
	look := time.NewTicker(seedLook)
	defer look.Stop()
	for !s.seatSeed() {
		select {
		case <-look.C:
		case <-s.ctx.Done():
			return
		}
	}
}

// seatSeed is one look. It says whether no other is needed.
func (s *Store) seatSeed() bool {
	name, err := s.seed.Node(s.ctx)
	if err != nil || name == "" {
		return false
	}
	if s.turn(s.ctx) != nil {
		return true
	}
	defer func() { <-s.learns }()
	v := s.now.Load()
	i := slices.IndexFunc(v.owner, func(n *node) bool { return n.Name == name })
	if i < 0 || v.only() != nil || v.seedNode(s) != nil {
		return v.seedNode(s) != nil
	}
	was := v.owner[i]
	n := newNode(was.Node, len(v.nodes), s.seed)
	next := &view{of: v.of, table: v.table, nodes: append(slices.Clip(v.nodes), n), owner: slices.Clone(v.owner)}
	next.owner[i] = n
	s.mu.Lock()
	if s.closed.Load() {
		s.mu.Unlock()
		return true
	}
	next.ready()
	s.now.Store(next)
	s.mu.Unlock()
	was.gone.Store(true)
	s.merge.KeepUp()
	s.log.Info("the node at the first address is there", "node", name)
	return true
}

// Identity is whose blocks the credentials of Connect reach, and with which rights: see wire.Client. It connects where
// nobody has yet.
//
// Errors: those of wire.Dial; Unsupported (a server of no cluster among several addresses; the Store is not of Connect).
func (s *Store) Identity(ctx context.Context) (tenant string, rights auth.Rights, err error) {
	const op = "identity"
	if s.seed == nil {
		return "", 0, &skep.Error{Op: op, Kind: skep.Unsupported, Field: "store", Limit: "one of Connect or Dial"}
	}
	if err := s.begin(ctx, op); err != nil {
		return "", 0, err
	}
	if s.several() {
		if who := s.seeds.who.Load(); who != nil {
			return who.tenant, who.rights, nil
		}
		if err := s.find(ctx); err != nil {
			return "", 0, err
		}
		if who := s.seeds.who.Load(); who != nil {
			return who.tenant, who.rights, nil
		}
	}
	if _, err := s.seed.Node(ctx); err != nil {
		return "", 0, err
	}
	tenant, rights = s.seed.Identity()
	return tenant, rights, nil
}

// worst is what is to be said of servers none of which told a map: that one lets nobody in, say, rather than that others
// are away.
func (s *Store) worst(errs []error) error {
	i := slices.IndexFunc(errs, func(err error) bool { return err != nil && !s.away(err) })
	if i < 0 {
		i = max(slices.IndexFunc(errs, func(err error) bool { return err != nil }), 0)
	}
	if err := errs[i]; err == nil || !s.several() || !s.away(err) {
		return err
	}
	return &skep.Error{Op: "cluster map", Kind: skep.Unavailable, Field: "addresses", Value: strings.Join(s.seeds.addrs, ","),
		Limit: "one that answers", Err: errs[i]}
}
