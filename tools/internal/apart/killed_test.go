//go:build linux

package apart

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

const (
	loadFor    = 25 * time.Second
	killAfter  = 8 * time.Second
	loadWindow = time.Second
)

// window is what a client saw in a second.
type window struct {
	Reads  int           // of 32 blocks each: a lookup and a restore
	P99    time.Duration // of these
	Errors int
	Missed int              // blocks that were not found, or not restored
	Puts   int              // blocks
	Slow   [3]time.Duration // the slowest lookup, restore and release
	Lost   int              // blocks that were not acknowledged
}

// BenchmarkKilled has clients read and write at three nodes, two copies, and one node killed, or, as where a machine
// loses its power, cut off from everybody. It tells how many calls were errors, how many blocks were missed, and how long
// after that the p99 of reads is at most twice what it was.
func BenchmarkKilled(b *testing.B) {
	b.Run("process", func(b *testing.B) { lose(b, (*node).kill) })
	b.Run("machine", func(b *testing.B) {
		lose(b, func(n *node) {
			n.host.silent()
			n.kill()
		})
	})
}

func lose(b *testing.B, loses func(*node)) {
	n := newNetwork(b)
	c := newCluster(b, n, 3, []string{""}, "never")
	token, err := os.ReadFile(c.token("engine"))
	require.NoError(b, err)
	w := c.worker(n.host("load"), job{Name: "load", Addr: c.nodes[0].addr(), Token: string(token), Links: []string{}, Book: filepath.Join(c.dir, "none")})
	_, err = w.tell("fill")
	require.NoError(b, err)
	var errs, missed, back, before, worst []float64
	for b.Loop() {
		victim := c.nodes[len(errs)%len(c.nodes)]
		var said string
		var failed error
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			said, failed = w.tell("load")
		}()
		time.Sleep(killAfter)
		loses(victim)
		<-ended
		require.NoError(b, failed)
		var list []window
		require.NoError(b, json.Unmarshal([]byte(said), &list))
		killed := int(killAfter / loadWindow)
		usual := list[killed-1].P99
		for _, x := range list[1 : killed-1] {
			usual = max(usual, x.P99)
		}
		e, m, last, most := 0, 0, 0, time.Duration(0)
		for i, x := range list[killed:] {
			e, m, most = e+x.Errors, m+x.Missed, max(most, x.P99)
			if x.P99 > 2*usual || x.Reads == 0 {
				last = i + 1
			}
		}
		b.Logf("%+v", list)
		errs, missed, back = append(errs, float64(e)), append(missed, float64(m)), append(back, float64(last))
		before, worst = append(before, usual.Seconds()*1e3), append(worst, most.Seconds()*1e3)
		n.heal()
		require.NoError(b, victim.start())
		c.whole()
	}
	for name, list := range map[string][]float64{"errors": errs, "blocks-missed": missed, "s-until-p99-is-back": back, "ms-p99-before": before, "ms-p99-worst": worst} {
		slices.Sort(list)
		b.ReportMetric(list[len(list)/2], name)
		b.ReportMetric(list[len(list)-1], name+"-most")
	}
}

// load has four readers and a writer, and gives what they saw each second.
func (c *client) load() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), loadFor+callTimeout)
	defer cancel()
	scope, err := c.scope(ctx, spaces[1])
	if err != nil {
		return "", err
	}
	list := make([]window, loadFor/loadWindow)
	took := make([][]time.Duration, len(list))
	began := time.Now()
	var mu sync.Mutex
	var wait sync.WaitGroup
	note := func(at time.Time, do func(i int)) {
		mu.Lock()
		defer mu.Unlock()
		do(min(int(at.Sub(began)/loadWindow), len(list)-1))
	}
	chains := filled()
	for i := range 4 {
		wait.Go(func() {
			for n := i; time.Since(began) < loadFor; n++ {
				at := time.Now()
				var parts [3]time.Duration
				read, err := c.part(ctx, scope, chains[n%len(chains)][:32], &parts)
				d := time.Since(at)
				note(at, func(i int) {
					for p := range parts {
						list[i].Slow[p] = max(list[i].Slow[p], parts[p])
					}
					took[i] = append(took[i], d)
					list[i].Missed += 32 - read
					if err != nil {
						list[i].Errors++
					}
				})
			}
		})
	}
	wait.Go(func() {
		for n := uint32(0); time.Since(began) < loadFor; n++ {
			at := time.Now()
			k := skep.ChainKey(nil, []uint32{1 << 20, uint32(began.Unix()), n})
			res, err := c.st.Put(ctx, &skep.PutRequest{Scope: scope, Blocks: []skep.Block{{Key: k, Parts: []skep.Part{{Bytes: payload(k)}}}}})
			note(at, func(i int) {
				list[i].Puts++
				switch {
				case err != nil:
					list[i].Errors++
				case res[0].Outcome == skep.Declined:
					list[i].Lost++
				}
			})
		}
	})
	wait.Wait()
	for i := range list {
		slices.Sort(took[i])
		if list[i].Reads = len(took[i]); list[i].Reads > 0 {
			list[i].P99 = took[i][len(took[i])*99/100]
		}
	}
	text, err := json.Marshal(list)
	return string(text), err
}

// part looks the beginning of a chain up and restores it.
func (c *client) part(ctx context.Context, scope skep.Scope, keys []skep.Key, took *[3]time.Duration) (read int, err error) {
	at := time.Now()
	step := func(i int) { took[i], at = time.Since(at), time.Now() }
	found, err := c.st.Lookup(ctx, &skep.LookupRequest{Scope: scope, Keys: keys})
	step(0)
	if err != nil || found.Blocks == 0 {
		return 0, err
	}
	defer func() {
		step(1)
		_ = c.st.Release(ctx, found.Lease.ID)
		step(2)
	}()
	of := skep.Chain{Scope: scope, Keys: keys[:found.Blocks], Lease: found.Lease.ID}
	err = skep.Load(ctx, c.st, &skep.RestoreRequest{Chains: []skep.Chain{of}}, func(ch *skep.Chunk) error {
		if ch.Err == nil {
			read++
		}
		return nil
	})
	if err != nil && !passes(err) {
		err = fmt.Errorf("restore: %w", errors.Join(err))
	}
	return read, err
}
