// Package seeds asks servers for the map of their cluster: those at the addresses that a client was given, while it has
// no map, and where none of the map's nodes answers.
package seeds

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/auth"
)

const op = "cluster map"

// Max is how many addresses a client takes.
const Max = 64

// Options of New. All are needed.
type Options struct {
	Addrs []string     // of Parse
	First *wire.Client // of the first address; who makes the List closes it
	Open  func(addr string) (*wire.Client, error)
	Log   *slog.Logger
	Ctx   context.Context     // ends before Close
	Start func(f func()) bool // runs f beside the caller; false where that ends
	Away  func(err error) bool

	Turn  func(ctx context.Context) (done func(), err error) // waits until nobody else changes the map
	Map   func() (m *clustermap.Map, lost bool)              // nil: there is none; lost: none of its nodes answers
	Adopt func(ctx context.Context, m *clustermap.Map) error // in a turn
	// Seat has calls for the node of that name go to First, in a turn; false: it is not in the map.
	Seat func(name string) bool
}

// List is the addresses of one client. nil is of one that was given none.
type List struct {
	o   Options
	who atomic.Pointer[identity]

	again Again

	mu      sync.Mutex
	clients []*wire.Client // of Addrs but for the first, while they are asked
	closed  bool
}

// identity is what a server said of the credentials.
type identity struct {
	tenant string
	rights auth.Rights
}

// New makes one. Nobody is asked yet.
func New(o Options) *List { return &List{o: o} }

// Several says whether there are several addresses. A server of no cluster is none of them then.
func (l *List) Several() bool { return l != nil && len(l.o.Addrs) > 1 }

// Seek asks for a map before a call that would reach nobody. An error is of what a server said; where none answers the
// call goes on, and is that of a server that is away.
func (l *List) Seek(ctx context.Context) error {
	if l == nil {
		return nil
	}
	switch m, lost := l.o.Map(); {
	case m != nil && lost:
		l.again.Ask(l.o.Start, l.findAgain)
	case m == nil && l.Several():
		if err := l.Find(ctx); err != nil && (!l.o.Away(err) || ctx.Err() != nil) {
			return err
		}
	}
	return nil
}

// findAgain asks the addresses again: nodes may have got new ones.
func (l *List) findAgain() {
	if err := l.Find(l.o.Ctx); err != nil && !l.o.Away(err) && l.o.Ctx.Err() == nil {
		l.o.Log.Warn("no node of the cluster answers, and no address tells a newer map", "error", err)
	}
}

// Again has a newer map asked for beside callers that find the one there is to be wrong. The zero value is ready.
type Again struct {
	asking atomic.Bool // somebody asks, or looks when that was
	asked  time.Time   // when it was
}

// Ask has ask run by start, once a second at most, and not while it runs.
func (a *Again) Ask(start func(f func()) bool, ask func()) {
	if a.asking.Swap(true) {
		return
	}
	if now := skep.Steady(); now.Sub(a.asked) >= time.Second {
		a.asked = now
		if start(func() { defer a.asking.Store(false); ask() }) {
			return
		}
	}
	a.asking.Store(false)
}

// Find asks for a map that is newer than what there is, and has it adopted.
//
// Errors: those of the servers, Unavailable only where none said anything else; Deadline.
func (l *List) Find(ctx context.Context) error {
	done, err := l.o.Turn(ctx)
	if err != nil {
		return err
	}
	defer done()
	was, lost := l.o.Map()
	if was != nil && !lost {
		return nil // somebody else asked
	}
	ask, err := l.tellers()
	if err != nil {
		return err
	}
	m, i, errs := Newest(ctx, was, ask, l.o.Log)
	if m == nil {
		if ctx.Err() != nil {
			return &skep.Error{Op: op, Kind: skep.Deadline, Err: ctx.Err()}
		}
		for i := range errs {
			errs[i] = l.alone(l.o.Addrs[i], errs[i])
		}
		return l.worst(errs)
	}
	tenant, rights := ask[i].From.(*wire.Client).Identity()
	l.who.Store(&identity{tenant, rights})
	if err := l.o.Adopt(ctx, m); err != nil {
		return err
	}
	l.o.Log.Info("the cluster is found", "by", ask[i].Name, "epoch", m.Epoch, "nodes", len(m.Nodes))
	l.hush()
	if was == nil && l.Several() && Local(l.o.Addrs[0]) {
		l.o.Start(l.await)
	}
	return nil
}

// tellers are clients of the addresses.
func (l *List) tellers() ([]Teller, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, &skep.Error{Op: op, Kind: skep.Closed}
	}
	ask := []Teller{{l.o.Addrs[0], l.o.First}}
	for i, addr := range l.o.Addrs[1:] {
		if i == len(l.clients) {
			c, err := l.o.Open(addr)
			if err != nil {
				return nil, err
			}
			l.clients = append(l.clients, c)
		}
		ask = append(ask, Teller{addr, l.clients[i]})
	}
	return ask, nil
}

// hush closes the clients of addresses that nobody has to ask any more, which the caller does not wait for.
func (l *List) hush() {
	l.mu.Lock()
	clients := l.clients
	l.clients = nil
	l.mu.Unlock()
	for _, c := range clients {
		if !l.o.Start(func() { _ = c.Close() }) {
			_ = c.Close()
		}
	}
}

// Close ends what is asked.
func (l *List) Close() {
	if l == nil {
		return
	}
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.hush()
}

// look is how often a server that was not there is asked which node it is.
const look = time.Second

// await has calls for the node behind the first address go there, as soon as it says which node it is: memory is shared
// with it.
func (l *List) await() {
	again := time.NewTicker(look)
	defer again.Stop()
	for {
		if name, err := l.o.First.Node(l.o.Ctx); err == nil && name != "" {
			done, err := l.o.Turn(l.o.Ctx)
			if err != nil {
				return
			}
			seated := l.o.Seat(name)
			done()
			if seated {
				return
			}
		}
		select {
		case <-again.C:
		case <-l.o.Ctx.Done():
			return
		}
	}
}

// Identity is whose blocks the credentials reach, and with which rights: see wire.Client. It connects where nobody has
// yet.
//
// Errors: those of Find, and of a connection.
func (l *List) Identity(ctx context.Context) (tenant string, rights auth.Rights, err error) {
	if l.Several() && l.who.Load() == nil {
		if err := l.Find(ctx); err != nil {
			return "", 0, err
		}
	}
	if who := l.who.Load(); who != nil {
		return who.tenant, who.rights, nil
	}
	if _, err := l.o.First.Node(ctx); err != nil {
		return "", 0, err
	}
	tenant, rights = l.o.First.Identity()
	return tenant, rights, nil
}

// Teller is who may be asked for a map, and the name or address that it goes by.
type Teller struct {
	Name string
	From interface {
		ClusterMap(ctx context.Context) ([]byte, error)
	}
}

// Append adds a node's Store, where it tells maps.
func Append(ask []Teller, name string, st skep.Store) []Teller {
	if t, ok := skep.As[interface {
		ClusterMap(ctx context.Context) ([]byte, error)
	}](st); ok {
		ask = append(ask, Teller{name, t})
	}
	return ask
}

// tells is how long a node that knows of a newer map may take to tell it.
const tells = 2 * time.Second

// Await asks for a newer map until there is one: the node that said that it has one may be about to tell it. nil: none
// came in time.
func Await(ctx context.Context, newest func() *clustermap.Map) *clustermap.Map {
	end := time.NewTimer(tells)
	defer end.Stop()
	for {
		if m := newest(); m != nil {
			return m
		}
		select {
		case <-time.After(tells / 64):
		case <-end.C:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// Newest is the first map that one of those who are asked, all at once, answers with, and who did; nil: none does, and
// why. It succeeds was, where that is not nil.
func Newest(ctx context.Context, was *clustermap.Map, ask []Teller, log *slog.Logger) (*clustermap.Map, int, []error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	maps, errs := make([]*clustermap.Map, len(ask)), make([]error, len(ask))
	var wait sync.WaitGroup
	for i, t := range ask {
		wait.Go(func() {
			text, err := t.From.ClusterMap(ctx)
			if err != nil {
				errs[i] = err
				return
			}
			m, err := clustermap.Parse(text)
			if err == nil && was != nil {
				if m.Epoch <= was.Epoch {
					return
				}
				err = m.Succeeds(was)
			}
			if err != nil {
				log.Warn("a node's map of the cluster is not followed", "node", t.Name, "error", err)
				errs[i] = err
				return
			}
			maps[i] = m
			cancel()
		})
	}
	wait.Wait()
	for i, m := range maps {
		if m != nil {
			return m, i, nil
		}
	}
	return nil, 0, errs
}

// alone is what is said of a server of no cluster among several addresses.
func (l *List) alone(addr string, err error) error {
	if !l.Several() || skep.KindOf(err) != skep.Unsupported {
		return err
	}
	return &skep.Error{Op: "dial", Kind: skep.Unsupported, Field: "addr", Value: addr + ", which is no node of a cluster",
		Limit: "a cluster's nodes, or the address of one server alone: several servers of their own are no Store", Err: err}
}

// worst is what is to be said of servers none of which told a map: that one lets nobody in, say, rather than that
// others are away.
func (l *List) worst(errs []error) error {
	i := slices.IndexFunc(errs, func(err error) bool { return err != nil && !l.o.Away(err) })
	if i < 0 {
		i = max(slices.IndexFunc(errs, func(err error) bool { return err != nil }), 0)
	}
	if err := errs[i]; err == nil || !l.Several() || !l.o.Away(err) {
		return err
	}
	return &skep.Error{Op: op, Kind: skep.Unavailable, Field: "addresses", Value: strings.Join(l.o.Addrs, ","),
		Limit: "one that answers", Err: errs[i]}
}
