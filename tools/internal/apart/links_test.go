//go:build linux

package apart

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

const (
	fillBytes = 256 << 10 // of a block
	fillLong  = 128       // blocks of a chain
	fillMany  = 16        // chains
	readers   = 8         // restores at once
	rawPort   = "7999"
)

// linkRate is each node's, as tc has it. Two cores carry five links of 20 MB/s, and not five of 100 MB/s: plain TCP over
// them gave half of that.
func linkRate() string { return cmp.Or(os.Getenv("SKEP_LINK_RATE"), "160mbit") }

// BenchmarkLinks has one client restore from 1, 3 and 5 nodes, in turns, whose links are of linkRate each, and beside
// that has it read plain TCP streams from the same nodes: what the links give. Rounds are benchtime's, as in
// -benchtime 7x.
func BenchmarkLinks(b *testing.B) {
	n := newNetwork(b)
	sizes := []int{1, 3, 5}
	var workers []*worker
	var clusters []*cluster
	for _, nodes := range sizes {
		c := newCluster(b, n, nodes, []string{""}, "never")
		token, err := os.ReadFile(c.token("engine"))
		require.NoError(b, err)
		var at []string
		for _, x := range c.nodes {
			x.host.slow(linkRate())
			at = append(at, x.host.ip)
			c.worker(x.host, job{Name: "raw-" + x.host.name, Raw: true})
		}
		name := fmt.Sprint("links", nodes)
		w := c.worker(n.host(name), job{Name: name, Addr: c.nodes[0].addr(), Token: string(token), Links: at,
			Book: filepath.Join(c.dir, "none")})
		_, err = w.tell("fill")
		require.NoError(b, err)
		workers = append(workers, w)
		clusters = append(clusters, c)
	}
	got := map[string][]float64{}
	for b.Loop() {
		for i, w := range workers {
			for _, what := range []string{"raw", "restore"} {
				before := clusters[i].sent()
				said, err := w.tell(what)
				require.NoError(b, err)
				sum, most := 0.0, 0.0
				for k, bytes := range clusters[i].sent() {
					sum, most = sum+bytes-before[k], max(most, bytes-before[k])
				}
				skew := fmt.Sprint(sizes[i], " ", what, " busiest")
				got[skew] = append(got[skew], most/sum*float64(sizes[i]))
				rate, err := strconv.ParseFloat(said, 64)
				require.NoError(b, err)
				key := fmt.Sprint(sizes[i], " ", what)
				got[key] = append(got[key], rate)
			}
		}
	}
	for i, nodes := range sizes {
		for _, what := range []string{"raw", "restore"} {
			list := got[fmt.Sprint(nodes, " ", what)]
			slices.Sort(list)
			median := list[len(list)/2]
			b.ReportMetric(median/1e6, fmt.Sprintf("MB/s-%s-%d", what, nodes))
			skew := got[fmt.Sprint(nodes, " ", what, " busiest")]
			slices.Sort(skew)
			b.ReportMetric(skew[len(skew)/2], fmt.Sprintf("busiest÷mean-%s-%d", what, nodes))
			one := got[fmt.Sprint(sizes[0], " ", what)]
			if i > 0 {
				b.ReportMetric(median/one[len(one)/2]/float64(nodes), fmt.Sprintf("of-linear-%s-%d", what, nodes))
			}
		}
	}
}

// sent is how many bytes each node has sent.
func (c *cluster) sent() (out []float64) {
	for _, n := range c.nodes {
		args := n.host.inside("cat", "/sys/class/net/eth0/statistics/tx_bytes")
		said, err := exec.Command(args[0], args[1:]...).Output()
		require.NoError(c.t, err)
		bytes, err := strconv.ParseFloat(strings.TrimSpace(string(said)), 64)
		require.NoError(c.t, err)
		out = append(out, bytes)
	}
	return out
}

// sendRaw serves a plain stream to whoever connects.
func sendRaw() error {
	l, err := net.Listen("tcp", ":"+rawPort)
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			for buf := make([]byte, 1<<20); ; {
				if _, err := c.Write(buf); err != nil {
					return
				}
			}
		}()
	}
}

// measure is one measurement: after a second of warming up, what arrives in so many seconds.
func measure(run func(stop <-chan struct{}, count *atomic.Int64) error) (float64, error) {
	var count atomic.Int64
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- run(stop, &count) }()
	time.Sleep(time.Second)
	began, before := time.Now(), count.Load()
	time.Sleep(4 * time.Second)
	rate := float64(count.Load()-before) / time.Since(began).Seconds()
	close(stop)
	return rate, <-ended
}

// raw reads plain streams of all nodes at once.
func (c *client) raw() (float64, error) {
	return measure(func(stop <-chan struct{}, count *atomic.Int64) error {
		var wait sync.WaitGroup
		errs := make(chan error, len(c.Links))
		for _, ip := range c.Links {
			conn, err := net.Dial("tcp", net.JoinHostPort(ip, rawPort))
			if err != nil {
				return err
			}
			wait.Go(func() {
				for buf := make([]byte, 1<<20); ; {
					n, err := conn.Read(buf)
					count.Add(int64(n))
					if err != nil {
						if !errors.Is(err, net.ErrClosed) {
							errs <- err
						}
						return
					}
				}
			})
			defer conn.Close()
		}
		<-stop
		return nil
	})
}

// filled are the keys of the chains that fill puts.
func filled() (chains [][]skep.Key) {
	for n := range fillMany {
		var keys []skep.Key
		var parent *skep.Key
		for at := range fillLong {
			k := skep.ChainKey(parent, []uint32{uint32(n), uint32(at)})
			keys, parent = append(keys, k), &k
		}
		chains = append(chains, keys)
	}
	return chains
}

func (c *client) fill() error {
	ctx := context.Background()
	scope, err := c.scope(ctx, spaces[1])
	if err != nil {
		return err
	}
	text := make([]byte, fillBytes)
	for _, keys := range filled() {
		for from := 0; from < len(keys); from += 16 {
			q := &skep.PutRequest{Scope: scope, Depth: from}
			if from > 0 {
				q.Parent, q.Ancestors = &keys[from-1], keys[:from-1]
			}
			for _, k := range keys[from : from+16] {
				q.Blocks = append(q.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: text}}})
			}
			res, err := c.st.Put(ctx, q)
			if err != nil {
				return err
			}
			for _, r := range res {
				if r.Outcome == skep.Declined {
					return fmt.Errorf("declined: %v", r.Reason)
				}
			}
		}
	}
	return c.st.Flush(ctx)
}

// restore has readers look chains up and restore them, one after another.
func (c *client) restore() (float64, error) {
	chains := filled()
	return measure(func(stop <-chan struct{}, count *atomic.Int64) error {
		errs := make(chan error, readers)
		for i := range readers {
			go func() {
				for n := i; ; n += readers {
					select {
					case <-stop:
						errs <- nil
						return
					default:
					}
					if err := c.restoreOne(chains[n%len(chains)], count); err != nil {
						errs <- err
						return
					}
				}
			}()
		}
		var all []error
		for range readers {
			all = append(all, <-errs)
		}
		return errors.Join(all...)
	})
}

func (c *client) restoreOne(keys []skep.Key, count *atomic.Int64) error {
	ctx := context.Background()
	scope, err := c.scope(ctx, spaces[1])
	if err != nil {
		return err
	}
	found, err := c.st.Lookup(ctx, &skep.LookupRequest{Scope: scope, Keys: keys})
	if err != nil || found.Blocks != len(keys) {
		return fmt.Errorf("found %d: %w", found.Blocks, errors.Join(err, io.ErrUnexpectedEOF))
	}
	defer func() { _ = c.st.Release(ctx, found.Lease.ID) }()
	part := skep.Chain{Scope: scope, Keys: keys, Lease: found.Lease.ID}
	return skep.Load(ctx, c.st, &skep.RestoreRequest{Chains: []skep.Chain{part}}, func(ch *skep.Chunk) error {
		count.Add(ch.Bytes)
		return ch.Err
	})
}

// links does what benchmarks ask for.
func (c *client) links(what string) (string, error) {
	var rate float64
	var err error
	switch strings.TrimSpace(what) {
	case "fill":
		return "done", c.fill()
	case "raw":
		rate, err = c.raw()
	case "restore":
		rate, err = c.restore()
	case "load":
		return c.load()
	}
	return fmt.Sprint(rate), err
}
