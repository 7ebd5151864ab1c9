package consensus

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/replication/clustermap"
)

// world is nodes that reach each other through memory, and keep their state there.
type world struct {
	mu    sync.Mutex
	at    map[string]*listener
	away  map[string]bool // addresses that are cut off
	conns map[*link]bool

	nodes map[int]*host
}

// host is a node's machine: what stays when its process ends.
type host struct {
	id        int
	fs        *vfs.MemFS
	snapshots map[string]raft.SnapshotStore // by the directory that they lie below
	m         *Member                       // nil: it does not run
}

type listener struct {
	w      *world
	addr   string
	c      chan net.Conn
	closed chan struct{}
	once   sync.Once
}

type link struct {
	net.Conn
	w        *world
	from, to string
}

func newWorld() *world {
	return &world{at: map[string]*listener{}, away: map[string]bool{}, conns: map[*link]bool{}, nodes: map[int]*host{}}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.c:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

type addr string

func (addr) Network() string       { return "memory" }
func (a addr) String() string      { return string(a) }
func (l *listener) Addr() net.Addr { return addr(l.addr) }

func (l *link) Close() error {
	l.w.mu.Lock()
	delete(l.w.conns, l)
	l.w.mu.Unlock()
	return l.Conn.Close()
}

func (w *world) listen(a string) *listener {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := &listener{w: w, addr: a, c: make(chan net.Conn), closed: make(chan struct{})}
	w.at[a] = l
	return l
}

func (w *world) dialer(from string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, to string) (net.Conn, error) {
		w.mu.Lock()
		l, away := w.at[to], w.away[from] || w.away[to]
		w.mu.Unlock()
		if l == nil || away {
			return nil, errors.New("no route")
		}
		here, there := net.Pipe()
		select {
		case l.c <- there:
		case <-l.closed:
			return nil, errors.New("refused")
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		c := &link{here, w, from, to}
		w.mu.Lock()
		w.conns[c] = true
		w.mu.Unlock()
		return c, nil
	}
}

// cut has nobody reach a node, nor it anybody; heal ends that.
func (w *world) cut(id int) {
	a := nodeOf(id).Peer
	w.mu.Lock()
	w.away[a] = true
	var cut []*link
	for c := range w.conns {
		if c.from == a || c.to == a {
			cut = append(cut, c)
		}
	}
	w.mu.Unlock()
	for _, c := range cut {
		_ = c.Close()
	}
}

func (w *world) heal(id int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.away, nodeOf(id).Peer)
}

// options are those that a node starts with.
func (w *world) options(id int) Options {
	h := w.nodes[id]
	if h == nil {
		h = &host{id: id, fs: vfs.NewCrashableMem(), snapshots: map[string]raft.SnapshotStore{}}
		w.nodes[id] = h
	}
	a := nodeOf(id).Peer
	load := func(context.Context) *Load { return &Load{Blocks: int64(id), Missing: -1} }
	return Options{ID: uint64(id), Load: load, Dir: "data/raft", Listener: w.listen(a), Dial: w.dialer(a), Logger: quiet,
		FS:          h.fs,
		SnapshotsIn: h.snapshotsIn, Threshold: 20, Trailing: 5}
}

func (h *host) snapshotsIn(base string) (raft.SnapshotStore, error) {
	if h.snapshots[base] == nil {
		h.snapshots[base] = raft.NewInmemSnapshotStore()
	}
	return h.snapshots[base], nil
}

func (w *world) start(t *testing.T, id int, found *clustermap.Map) *Member {
	t.Helper()
	o := w.options(id)
	o.Found = found
	m, err := Open(o)
	require.NoError(t, err)
	w.nodes[id].m = m
	return m
}

// stop ends a node's process; crash does so, too, and takes what was not synced.
func (w *world) stop(t *testing.T, id int) {
	t.Helper()
	h := w.nodes[id]
	require.NoError(t, h.m.Close())
	h.m = nil
}

func (w *world) crash(t *testing.T, id int) {
	t.Helper()
	w.cut(id)
	after := w.nodes[id].fs.CrashClone(vfs.CrashCloneCfg{})
	w.stop(t, id)
	w.heal(id)
	w.nodes[id].fs = after
}

func (w *world) end(t *testing.T) {
	t.Helper()
	for id, h := range w.nodes {
		if h.m != nil {
			w.stop(t, id)
		}
	}
}

// eventually waits, by the bubble's clock, for something that comes within a minute of it. A child has no bubble.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 600 {
		if os.Getenv(child) == "" {
			synctest.Wait()
		}
		if ok() {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	require.Fail(t, "it never happened", what)
}

// leader is the node that most think leads, among those that run and are not cut off; 0: there is none yet.
func (w *world) leader() int {
	for id, h := range w.nodes {
		w.mu.Lock()
		away := w.away[nodeOf(id).Peer]
		w.mu.Unlock()
		if h.m != nil && !away && h.m.raft.State() == raft.Leader {
			return id
		}
	}
	return 0
}

func (w *world) awaitLeader(t *testing.T) int {
	t.Helper()
	id := 0
	eventually(t, "a leader", func() bool { id = w.leader(); return id != 0 })
	return id
}

// voters are the nodes that vote, as one of them has it.
func (h *host) voters() (out []string) {
	f := h.m.raft.GetConfiguration()
	if f.Error() != nil {
		return nil
	}
	for _, s := range f.Configuration().Servers {
		if s.Suffrage == raft.Voter {
			out = append(out, string(s.ID))
		}
	}
	slices.Sort(out)
	return out
}

func (w *world) awaitVoters(t *testing.T, ids ...int) {
	t.Helper()
	var want []string
	for _, id := range ids {
		want = append(want, fmt.Sprint(id))
	}
	eventually(t, fmt.Sprint("voters are ", want), func() bool {
		for _, h := range w.nodes {
			if h.m != nil && slices.Contains(ids, h.id) && !slices.Equal(want, h.voters()) {
				return false
			}
		}
		return true
	})
}

// three founds a cluster of three nodes that vote.
func three(t *testing.T) *world {
	t.Helper()
	w := newWorld()
	w.start(t, 1, mapOf(3))
	w.start(t, 2, nil)
	w.start(t, 3, nil)
	w.awaitVoters(t, 1, 2, 3)
	return w
}

// sameMaps waits until every node that runs has the map of that epoch, and compares them.
func (w *world) sameMaps(t *testing.T, epoch uint32) *clustermap.Map {
	t.Helper()
	var m *clustermap.Map
	eventually(t, fmt.Sprint("all have epoch ", epoch), func() bool {
		for _, h := range w.nodes {
			if h.m == nil {
				continue
			}
			if m = h.m.Map(); epochOf(m) < epoch {
				return false
			}
		}
		return true
	})
	for _, h := range w.nodes {
		if h.m != nil {
			require.Equal(t, m, h.m.Map())
		}
	}
	return m
}

func open1(name string) *clustermap.Command {
	return &clustermap.Command{Do: clustermap.OpenNamespace, Spec: specOf(name)}
}
