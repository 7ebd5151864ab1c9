package storm

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/replication/clustermap"
)

// seeds are those that SKEP_STORM_SEED (one) and SKEP_STORM_SEEDS (how many, from that one on) say.
func seeds(t *testing.T, usual int) (first uint64, n int) {
	t.Helper()
	first, n = 1, usual
	for name, set := range map[string]func(v uint64){
		"SKEP_STORM_SEED":  func(v uint64) { first = v },
		"SKEP_STORM_SEEDS": func(v uint64) { n = int(v) },
	} {
		if text := os.Getenv(name); text != "" {
			v, err := strconv.ParseUint(text, 10, 63)
			require.NoError(t, err, name)
			set(v)
		}
	}
	if os.Getenv("SKEP_STORM_SEED") != "" && os.Getenv("SKEP_STORM_SEEDS") == "" {
		n = 1
	}
	return first, n
}

// A cluster in a storm keeps what it promises: see the package's text.
func TestStorm(t *testing.T) {
	t.Parallel()
	usual := 15
	switch {
	case raced:
		usual = 1
	case testing.Short():
		usual = 3
	}
	first, n := seeds(t, usual)
	for i := range n {
		seed := first + uint64(i)
		if !t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { storm(t, seed) }) }) {
			return
		}
	}
}

func storm(t *testing.T, seed uint64) {
	t.Logf("SKEP_STORM_SEED=%d", seed)
	w := newWorld(t, seed)
	defer func() { t.Log(w.count) }()
	defer w.end()
	w.act(20, true, func() {})
	rounds := 4
	if raced { // the detector takes seven times as long
		rounds = 2
	}
	for round := 0; round < rounds && !w.isBroken(); round++ {
		if w.r.IntN(2) == 0 {
			w.refill()
		}
		for range 1 + w.r.IntN(3) {
			w.act(8+w.r.IntN(16), false, w.fault)
		}
		w.calm()
		w.act(10, true, func() {})
	}
}

// act has the clients do things, and something fail meanwhile.
func (w *world) act(steps int, calm bool, fault func()) {
	pause := 3 * time.Second
	if calm {
		pause /= 30
	}
	var wait sync.WaitGroup
	wait.Go(func() { w.calls(func(c *client) { c.step(calm) }, steps, pause) })
	fault()
	wait.Wait()
}

// refill has clients delete what nodes are sending to one that lost its drives, while nodes are slow to each other: no
// copy is to come after a deletion and stay.
func (w *world) refill() {
	for i, a := range w.nodes {
		late := time.Duration(w.r.Int64N(int64(800 * time.Millisecond)))
		w.note("what %s sends to other nodes takes %v", a.of.Name, late)
		w.n.change(func() { w.n.slow[way{a.of.Name, w.nodes[(i+1)%3].of.Name}] = late })
		w.n.change(func() { w.n.slow[way{a.of.Name, w.nodes[(i+2)%3].of.Name}] = late })
	}
	w.loses(w.nodes[w.r.IntN(3)])
	w.calls(func(c *client) {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		defer w.books.enter(false)()
		c.remove(ctx, c.mine[c.r.IntN(len(c.mine))], false)
	}, 8, 2*time.Second)
	w.n.heal()
}

// calls has each client do something so many times, with pauses between.
func (w *world) calls(do func(c *client), times int, pause time.Duration) {
	var wait sync.WaitGroup
	for _, c := range w.clients {
		wait.Go(func() {
			for range times {
				if w.isBroken() {
					return
				}
				do(c)
				time.Sleep(time.Duration(c.r.Int64N(int64(pause))))
			}
		})
	}
	wait.Wait()
}

// fault has something fail, for a while or until all is healed.
func (w *world) fault() {
	w.pause()
	all := w.all()
	from, to := all[w.r.IntN(len(all))], all[w.r.IntN(len(all))]
	n := w.nodes[w.r.IntN(3)]
	switch k := w.r.IntN(24); {
	case k < 24 && k >= 22:
		w.replace(n)
	case k < 22 && k >= 21 && !w.lost:
		w.backups()
	case k < 21 && k >= 20:
		w.recover()
	case k < 1:
		w.split(n.of.Name)
	case k < 2:
		w.split(w.some(all)...)
	case k < 20 && k >= 18: // of what was acknowledged meanwhile there are two copies, and not one of them was lost
		w.split(n.of.Name)
		w.pause()
		w.loses(w.nodes[(n.of.ID+uint64(w.r.IntN(2)))%3])
	case k < 18 && k >= 16: // a node and some clients are one side, and are to see nothing that the other deletes
		w.split(append(w.some(all[3:]), n.of.Name)...)
		w.pause()
		w.pause()
	case k < 4:
		w.note("nothing gets from %s to %s", from, to)
		w.n.change(func() { w.n.cut[way{from, to}] = from != to })
	case k < 5:
		late := time.Duration(w.r.Int64N(int64(time.Second)))
		w.note("what %s sends to %s takes %v", from, to, late)
		w.n.change(func() { w.n.slow[way{from, to}] = late })
	case k < 6:
		w.note("connections are cut")
		w.n.sever(w.r.Float64())
	case k < 9:
		if w.crashed(n) && w.r.IntN(2) == 0 {
			w.pause()
			w.again(n)
		}
	case k < 10 && n.run != nil && len(w.running()) > 1:
		w.note("%s is stopped", n.of.Name)
		w.stop(n)
	case k < 12:
		w.loses(n)
	case k < 14:
		if w.crashed(n) {
			down := clustermap.Command{Do: clustermap.SetState, Name: n.of.Name, ID: n.of.ID, State: clustermap.Down}
			_ = w.propose(down, n.of.Name+" down")
			w.pause()
			w.pause()
			w.again(n)
		}
	case k < 15:
		_ = w.propose(clustermap.Command{Do: clustermap.SetState, Name: n.of.Name, State: clustermap.Out}, n.of.Name+" out")
	default:
		weight := 1 + w.r.IntN(3)
		_ = w.propose(clustermap.Command{Do: clustermap.SetWeight, Name: n.of.Name, Weight: weight},
			fmt.Sprint("weight ", weight, " of ", n.of.Name))
	}
	w.pause()
	if w.r.IntN(2) == 0 {
		w.note("the network is healed")
		w.n.heal()
	}
}

// split has nobody of one side reach anybody of the other.
func (w *world) split(side ...string) {
	w.note("%v is one side", side)
	w.n.change(func() {
		for _, a := range w.all() {
			for _, b := range w.all() {
				if slices.Contains(side, a) != slices.Contains(side, b) {
					w.n.cut[way{a, b}] = true
				}
			}
		}
	})
}

func (w *world) some(of []string) (out []string) {
	for _, x := range of {
		if w.r.IntN(2) == 0 {
			out = append(out, x)
		}
	}
	return out
}

// loses has a node lose its drives, where nobody else has since all was whole: of what two nodes acknowledged there is
// another copy.
func (w *world) loses(n *node) {
	if w.lost || !w.crashed(n) {
		return
	}
	w.note("%s has lost its drives", n.of.Name)
	w.lost = true
	n.disk.wipe()
	w.books.unsure()
	w.pause()
	w.again(n)
}

func (w *world) pause() { time.Sleep(time.Duration(w.r.Int64N(int64(8 * time.Second)))) }

// all is the names of all machines.
func (w *world) all() (out []string) {
	for _, n := range w.nodes {
		out = append(out, n.of.Name)
	}
	for _, c := range w.clients {
		out = append(out, c.m.name)
	}
	return out
}
