package storm

import (
	"fmt"
	"os"
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
	usual := 10
	if testing.Short() || raced {
		usual = 2
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
	for round := 0; round < 4 && !w.isBroken(); round++ {
		for range 1 + w.r.IntN(3) {
			w.act(12, false, w.fault)
		}
		w.calm()
		w.act(10, true, func() {})
	}
}

// act has the clients do things, and something fail meanwhile.
func (w *world) act(steps int, calm bool, fault func()) {
	var wait sync.WaitGroup
	for _, c := range w.clients {
		wait.Go(func() {
			for range steps {
				if w.isBroken() {
					return
				}
				c.step(calm)
				most := int64(3 * time.Second)
				if calm {
					most /= 30
				}
				time.Sleep(time.Duration(c.r.Int64N(most)))
			}
		})
	}
	fault()
	wait.Wait()
}

// fault has something fail, for a while or until all is healed.
func (w *world) fault() {
	w.pause()
	all := w.all()
	from, to := all[w.r.IntN(len(all))], all[w.r.IntN(len(all))]
	n := w.nodes[w.r.IntN(3)]
	switch k := w.r.IntN(16); {
	case k < 2:
		w.note("%s is cut off", n.of.Name)
		w.n.change(func() {
			for _, o := range all {
				w.n.cut[way{n.of.Name, o}], w.n.cut[way{o, n.of.Name}] = o != n.of.Name, o != n.of.Name
			}
		})
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
	case k < 12: // of all that was acknowledged there is another copy, if it was acknowledged by two
		if !w.lost && w.crashed(n) {
			w.note("%s has lost its drives", n.of.Name)
			w.lost = true
			n.disk.wipe()
			w.books.unsure()
			w.pause()
			w.books.unsure() // what was answered meanwhile, too
			w.again(n)
		}
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
