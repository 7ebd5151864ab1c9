package storm

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/placement"
)

// world is three nodes, their clients, and what is between them.
type world struct {
	t       *testing.T
	r       *rand.Rand // of the goroutine that has things fail
	n       *network
	nodes   []*node
	clients []*client
	first   *clustermap.Map
	maps    *maps
	books   *books
	log     *slog.Logger
	leaving sync.WaitGroup // processes that crashed and end
	silence uint32         // after which nodes are down by themselves, in seconds; 0: never
	lost    bool           // drives were lost since all was whole

	mu    sync.Mutex
	began time.Time
	lines []string
	wrong []string
	count map[string]int
}

const lastLines = 120

func newWorld(t *testing.T, seed uint64) *world {
	r := rand.New(rand.NewPCG(seed, 1))
	w := &world{t: t, r: r, n: newNetwork(seed), maps: newMaps(), began: time.Now(), count: map[string]int{},
		log: slog.New(slog.DiscardHandler)}
	if os.Getenv("SKEP_STORM_LOG") != "" {
		w.log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	w.first = &clustermap.Map{Epoch: 1, Seed: clustermap.Seed{byte(seed), byte(seed >> 8), 7}, Group: 4, Replicas: 2,
		Acks: r.IntN(2)}
	if r.IntN(5) == 0 {
		w.first.Replicas, w.first.Acks = 1, 0
	}
	for i := range 3 {
		name := fmt.Sprint("n", i+1)
		w.first.Nodes = append(w.first.Nodes, clustermap.Node{ID: uint64(i + 1), Name: name, Addr: name + ":7420",
			Peer: name + ":7440", Weight: 1})
	}
	w.books = newBooks(w)
	for i := range w.first.Nodes {
		n := &node{of: w.first.Nodes[i], disk: newDisk(w.first)}
		w.nodes = append(w.nodes, n)
		found := w.first
		if i > 0 {
			found = nil
		}
		w.start(n, found)
	}
	w.eventually("all nodes serve", w.serving)
	for i := range 3 {
		w.clients = append(w.clients, newClient(w, i, rand.New(rand.NewPCG(seed, uint64(10+i)))))
	}
	if r.IntN(2) == 0 {
		w.silence = 10 + uint32(r.IntN(10))
		if err := w.propose(clustermap.Command{Do: clustermap.SetSilence, After: w.silence}, "silence"); err != nil {
			w.broken("while all is well: %v", err)
		}
		time.Sleep(2 * time.Second) // each node notes it, by a map of its own
		w.eventually("all nodes serve", w.serving)
	}
	w.note("%d replicas, %d acks, silence %d", w.first.Replicas, w.first.Acks, w.silence)
	return w
}

// note keeps what was done, for when something goes wrong.
func (w *world) note(form string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, fmt.Sprintf("%8.3f  ", time.Since(w.began).Seconds())+fmt.Sprintf(form, args...))
	if len(w.lines) > lastLines {
		w.lines = slices.Delete(w.lines, 0, len(w.lines)-lastLines)
	}
}

// broken notes that a promise was not kept.
func (w *world) broken(form string, args ...any) {
	w.note("WRONG: "+form, args...)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wrong = append(w.wrong, fmt.Sprintf(form, args...))
}

func (w *world) did(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count[what]++
}

func (w *world) isBroken() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.wrong) > 0
}

func (w *world) start(n *node, found *clustermap.Map) {
	p, err := start(w.n.boot(n.of.Name), n.of, n.disk, found, w.maps, w.log)
	require.NoError(w.t, err)
	n.run = p
}

// crash ends a node's process, of which nothing is seen or kept any more; power: its machine runs on.
func (w *world) crash(n *node, power bool) {
	p := n.run
	n.run = nil
	p.m.crash(power)
	n.disk.crash(w.r.IntN)
	w.leaving.Go(func() { _ = p.stop() })
}

// stop ends a node's process as an operator does.
func (w *world) stop(n *node) {
	p := n.run
	n.run = nil
	if err := p.stop(); err != nil {
		w.broken("node %s does not end as it should: %v", n.of.Name, err)
	}
	p.m.crash(true)
}

func (w *world) running() (out []*node) {
	for _, n := range w.nodes {
		if n.run != nil {
			out = append(out, n)
		}
	}
	return out
}

// eventually waits for something that is to come within the bubble's next minutes.
func (w *world) eventually(what string, ok func() bool) {
	for range 600 {
		if ok() {
			return
		}
		time.Sleep(200 * time.Millisecond)
	}
	for _, n := range w.running() {
		st := n.run.member.Status(context.Background())
		w.note("%s: open %v, told %d, epoch %d, leader %d, error %q", n.of.Name, n.run.fence.Open(), n.run.told.Load(),
			st.Epoch, st.Leader, st.Error)
	}
	w.broken("in two minutes it did not come to this: %s", what)
}

// crashed takes a node that does not run, or crashes one, where that leaves another one running.
func (w *world) crashed(n *node) bool {
	if n.run == nil {
		return true
	}
	if len(w.running()) < 2 {
		return false
	}
	power := w.r.IntN(2) == 0
	w.note("%s crashes, power %v", n.of.Name, power)
	w.crash(n, power)
	return true
}

// again starts a node that does not run.
func (w *world) again(n *node) {
	if n.run == nil {
		w.note("%s starts", n.of.Name)
		w.start(n, nil)
	}
}

// serving says whether all nodes run, serve, and go by one map.
func (w *world) serving() bool {
	epoch := uint32(0)
	for _, n := range w.nodes {
		if n.run == nil || !n.run.fence.Open() {
			return false
		}
		m := n.run.member.Map()
		if m == nil || epoch != 0 && m.Epoch != epoch || n.run.told.Load() != max(m.Epoch, w.first.Epoch) {
			return false
		}
		epoch = m.Epoch
	}
	return true
}

// propose has the nodes agree on a change, by way of any that runs.
func (w *world) propose(c clustermap.Command, what string) error {
	list := w.running()
	if len(list) == 0 {
		return skep.Unavailable
	}
	n := list[w.r.IntN(len(list))]
	cluster := n.run.member.Cluster()
	after := w.maps.begins(cluster)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	epoch, err := n.run.member.Propose(ctx, &c)
	w.note("%s, by %s: epoch %d, %v", what, n.of.Name, epoch, err)
	if err == nil {
		w.maps.ends(cluster, after, epoch, what)
	}
	return err
}

// calm ends what is wrong, and waits until the cluster is whole again.
func (w *world) calm() {
	w.note("all is healed")
	w.n.heal()
	for _, n := range w.nodes {
		w.again(n)
	}
	w.eventually("all nodes serve", w.serving)
	if w.isBroken() {
		return
	}
	for _, n := range w.nodes[0].run.member.Map().Nodes {
		if n.State != clustermap.Up {
			up := clustermap.Command{Do: clustermap.SetState, Name: n.Name, State: clustermap.Up}
			if err := w.propose(up, n.Name+" up"); err != nil {
				w.broken("while all is well, %s is not set up: %v", n.Name, err)
			}
		}
	}
	time.Sleep(doubtFor + 40*time.Second) // a keeper remembers copies in doubt for a minute, and refuses deletions of them
	w.eventually("all nodes serve by one map", w.serving)
	for pass := 0; !w.isBroken(); pass++ {
		if pass == 20 {
			w.broken("twenty repairs of a whole cluster, and there are copies missing yet")
		}
		sent := int64(0)
		for _, n := range w.nodes {
			was, tries := n.run.sent.Load(), n.run.tries.Load()
			w.eventually("a repair ends", func() bool {
				select {
				case n.run.wake <- struct{}{}:
				default:
				}
				return n.run.tries.Load() >= tries+2 // one may have been under way
			})
			sent += n.run.sent.Load() - was + n.run.lacks.Load()
		}
		if sent == 0 {
			break
		}
	}
	w.lost = false
	for i, c := range w.clients {
		if w.r.IntN(3) == 0 {
			c.connect(w.nodes[(i+1+w.r.IntN(2))%3].of.Addr)
		}
	}
	for _, c := range w.clients {
		if err := c.openSpaces(context.Background()); err != nil {
			w.broken("while all is well, %s cannot open namespaces: %v", c.m.name, err)
		}
	}
	for _, c := range w.clients { // one that found a node away asks it again after a while
		w.eventually("a client reaches every node", func() bool { return c.st.Flush(context.Background()) == nil })
	}
	w.books.whole()
	w.books.contest()
}

// end ends all of it, and says what was wrong.
func (w *world) end() {
	for _, c := range w.clients {
		if err := c.st.Close(); err != nil {
			w.note("client %s ends with %v", c.m.name, err)
		}
	}
	w.n.heal()
	for _, n := range w.running() {
		w.stop(n)
	}
	w.leaving.Wait()
	w.maps.mu.Lock()
	defer w.maps.mu.Unlock()
	w.wrong = append(w.wrong, w.maps.wrong...)
	if len(w.wrong) > 0 {
		w.t.Errorf("%s\n\nwhat was done:\n%s", strings.Join(w.wrong, "\n"), strings.Join(w.lines, "\n"))
	}
}

// holders are the nodes that are to have block i of a chain by a map and its table.
func (w *world) holders(m *clustermap.Map, t *placement.Table, c *chain, i int) (out []int) {
	slot := t.Slot(t.Space(tenant, c.space), c.keys[placement.Anchor(i, m.Group)])
	for _, at := range t.Nodes(slot) {
		for k, n := range w.nodes {
			if n.of.ID == m.Nodes[at].ID {
				out = append(out, k)
			}
		}
	}
	return out
}
