package replication

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire"
)

// behind is a server behind a link on which every answer takes so much longer.
func behind(b *testing.B, path string, d time.Duration) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	var wait sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	b.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		wait.Wait()
	})
	type piece struct {
		bytes []byte
		due   time.Time
	}
	carry := func(to, from net.Conn, d time.Duration) {
		defer to.Close()
		on := make(chan piece, 1<<10)
		wait.Go(func() {
			for p := range on {
				<-time.After(time.Until(p.due))
				_, _ = to.Write(p.bytes)
			}
		})
		defer close(on)
		for {
			buf := make([]byte, 64<<10)
			n, err := from.Read(buf)
			if err != nil {
				return
			}
			on <- piece{buf[:n], time.Now().Add(d)}
		}
	}
	wait.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("unix", path)
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c, s)
			mu.Unlock()
			wait.Go(func() { carry(s, c, 0) })
			wait.Go(func() { carry(c, s, d) })
		}
	})
	return l.Addr().String()
}

// Lookups of 2,000 keys and restores of 32 MiB in a cluster of three servers and two copies, one of them behind a link
// that is 200 ms longer, or no longer; with other nodes asked for what it is late with, and without. One round of all
// four is one operation: -benchtime 7x gives medians of seven, and p99 of all their lookups.
func BenchmarkASlowNode(b *testing.B) {
	const n, bytes, lookups, restores = 2000, 16 << 10, 50, 3
	dir, err := os.MkdirTemp("", "skep")
	require.NoError(b, err)
	b.Cleanup(func() { os.RemoveAll(dir) })
	var paths []string
	for i, st := range memstores(3, storetest.Config{}) {
		paths = append(paths, serve(b, filepath.Join(dir, fmt.Sprint(i)), st).path)
	}
	type client struct {
		name   string
		st     *Store
		ns     *skep.Namespace
		p50    []float64 // milliseconds, of each round
		all    []float64
		gbytes []float64 // a second, of each round
	}
	var clients []*client
	var keys []skep.Key
	for _, d := range []time.Duration{0, 200 * time.Millisecond} {
		for _, off := range []bool{true, false} {
			addrs := []string{behind(b, paths[0], d), "unix:" + paths[1], "unix:" + paths[2]}
			var stores []skep.Store
			for _, a := range addrs {
				c, err := wire.NewClient(wire.Options{Addr: a, Token: operator, Strict: true})
				require.NoError(b, err)
				stores = append(stores, c)
			}
			x := &client{name: fmt.Sprintf("%v,off=%v", d, off)}
			x.st, err = New(Options{Map: twice(3, 16), Stores: stores, OneAtATime: off})
			require.NoError(b, err)
			b.Cleanup(func() { require.NoError(b, x.st.Close()) })
			x.st.judged()
			x.ns, keys = stored(b, x.st, n, bytes)
			clients = append(clients, x)
		}
	}
	mem := make([]byte, n*bytes)
	at := func(list []float64, q float64) float64 {
		slices.Sort(list)
		return list[min(int(q*float64(len(list))), len(list)-1)]
	}
	for b.Loop() {
		for _, x := range clients {
			var took []float64
			for range lookups {
				began := time.Now()
				r, err := x.st.Lookup(b.Context(), &skep.LookupRequest{Scope: x.ns.Scope(), Keys: keys, Lease: skep.NoLease})
				require.NoError(b, err)
				require.Equal(b, n, r.Blocks)
				took = append(took, float64(time.Since(began).Microseconds())/1e3)
			}
			x.p50, x.all = append(x.p50, at(took, .5)), append(x.all, took...)
			began := time.Now()
			for range restores {
				r, err := x.st.Lookup(b.Context(), &skep.LookupRequest{Scope: x.ns.Scope(), Keys: keys, Lease: time.Minute})
				require.NoError(b, err)
				chain := skep.Chain{Scope: x.ns.Scope(), Keys: keys, Lease: r.Lease.ID, Dest: skep.Destination{Memory: mem, Stride: bytes}}
				err = skep.Load(b.Context(), x.st, &skep.RestoreRequest{Chains: []skep.Chain{chain}}, func(c *skep.Chunk) error { return c.Err })
				require.NoError(b, err)
				require.NoError(b, x.st.Release(b.Context(), r.Lease.ID))
			}
			x.gbytes = append(x.gbytes, float64(restores*n*bytes)/time.Since(began).Seconds()/1e9)
		}
	}
	for _, x := range clients {
		st, err := x.st.Stats(b.Context())
		require.NoError(b, err)
		b.Logf("%s: lookup p50 %.2f ms, p99 %.2f ms; restore %.3f GB/s; %+v", x.name, at(x.p50, .5), at(x.all, .99),
			at(x.gbytes, .5), st.Hedges)
	}
}
