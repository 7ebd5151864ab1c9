package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire"
)

// WireOverload is what became of a server that was asked for far more than it can serve.
type WireOverload struct {
	Connections int `json:"connections"` // of clients
	// served to four connections, one request at a time each; the best of three runs (GB/s)
	PeakGBps    float64 `json:"peak_gbps"`
	OfferedGBps float64 `json:"offered_gbps"` // asked for, in an open loop (GB/s)
	GoodputGBps float64 `json:"goodput_gbps"` // delivered whole and in time (GB/s)
	Ratio       float64 `json:"ratio"`        // goodput ÷ peak
	Served      int64   `json:"served"`       // restores delivered whole
	Refused     int64   `json:"refused"`      // restores refused
	// from asking to reading the refusal, by the client, which shares the machine (ms)
	RefusalMsP50 float64 `json:"refusal_ms_p50"`
	RefusalMsP99 float64 `json:"refusal_ms_p99"` // 99th percentile (ms)
	// refusals by the server's own clock, from the read that brought the request to the answer's write
	RefusedAt   int64   `json:"server_refused"`
	RefusedIn10 float64 `json:"server_refused_within_10.24_ms"` // share of these, within 10.24 ms
	// upper end of the histogram's bucket that holds their 99th percentile (ms)
	RefusedMs99  float64 `json:"server_refusal_ms_p99_at_most"`
	RefusedMsAll float64 `json:"server_refusal_ms_at_most"` // upper end of the bucket that holds the slowest (ms)
	MemoryPeak   int64   `json:"memory_peak"`               // resident, of the server, at most (bytes)
	MemoryBefore int64   `json:"memory_before"`             // with all connections open (bytes)
	MemoryAfter  int64   `json:"memory_after"`              // a second afterwards (bytes)
}

// overloadBlocks is how many blocks a restore of the overload asks for.
const overloadBlocks = 4

// overload asks the DRAM server for ten times what it serves, from many connections.
func (w *wireBench) overload(ctx context.Context) (out WireOverload, err error) {
	out.Connections = w.Connections
	scope, keys := w.tcp[0].scope, w.tcp[0].keys
	if len(keys) > overloadBlocks {
		keys = keys[:overloadBlocks]
	}
	size := int64(len(keys)) * w.BlockBytes
	conns := make([]*wire.Client, w.Connections)
	var g sync.WaitGroup
	errs := make([]error, len(conns))
	gate := make(chan struct{}, 32)
	for i := range conns {
		g.Go(func() {
			gate <- struct{}{}
			defer func() { <-gate }()
			o := w.dram.options(false)
			o.Conns, o.Window, o.Timeout, o.Retries = 1, 1<<20, 10*time.Second, -1
			conns[i], errs[i] = wire.Dial(ctx, o)
		})
	}
	g.Wait()
	defer func() {
		for _, c := range conns {
			if c != nil {
				g.Go(func() { _ = c.Close() })
			}
		}
		g.Wait()
	}()
	if err := errors.Join(errs...); err != nil {
		return out, err
	}
	out.MemoryBefore, _ = residentOf(w.dram.cmd.Process.Pid)
	var served, bytes, refused atomic.Int64
	var mu sync.Mutex
	var refusals []float64
	one := func(ctx context.Context, c *wire.Client) {
		began := time.Now()
		n, err := drainOnce(ctx, c, scope, keys)
		switch {
		case err == nil && n == size:
			served.Add(1)
			bytes.Add(n)
		case skep.KindOf(err) == skep.Overloaded:
			refused.Add(1)
			mu.Lock()
			refusals = append(refusals, float64(time.Since(began))/1e6)
			mu.Unlock()
		}
	}
	// Long enough that what is under way at its end, and not counted, is little.
	span := time.Duration(8 * max(w.Seconds, 0.25) * float64(time.Second))
	run := func(f func(ctx context.Context)) float64 {
		served.Store(0)
		bytes.Store(0)
		refused.Store(0)
		ctx, cancel := context.WithTimeout(ctx, span)
		defer cancel()
		began := time.Now()
		f(ctx)
		return float64(bytes.Load()) / 1e9 / time.Since(began).Seconds()
	}
	before, err := w.dram.refusals(ctx)
	if err != nil {
		return out, err
	}
	for range 3 {
		out.PeakGBps = max(out.PeakGBps, run(func(ctx context.Context) {
			for _, c := range conns[:min(4, len(conns))] {
				g.Go(func() {
					for ctx.Err() == nil {
						one(ctx, c)
					}
				})
			}
			g.Wait()
		}))
	}
	watch := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			if n, err := residentOf(w.dram.cmd.Process.Pid); err == nil {
				out.MemoryPeak = max(out.MemoryPeak, n)
			}
			select {
			case <-watch:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	// Ten times the peak, whatever comes back: each connection asks on its own clock.
	rate := 10 * out.PeakGBps * 1e9 / float64(size) / float64(len(conns)) // a connection's asks a second
	var asked atomic.Int64
	mu.Lock()
	refusals = nil
	mu.Unlock()
	out.GoodputGBps = run(func(ctx context.Context) {
		for i, c := range conns {
			g.Go(func() {
				step := time.Duration(float64(time.Second) / rate)
				next := time.Now().Add(step * time.Duration(i) / time.Duration(len(conns)))
				var mine sync.WaitGroup
				slots := make(chan struct{}, 16) // more under way on one connection are not sent
				for {
					select {
					case <-ctx.Done():
						mine.Wait()
						return
					case <-time.After(time.Until(next)):
					}
					next = next.Add(step)
					asked.Add(1)
					select {
					case slots <- struct{}{}:
						mine.Go(func() {
							one(ctx, c)
							<-slots
						})
					default:
					}
				}
			})
		}
		g.Wait()
	})
	close(watch)
	watching.Wait()
	out.OfferedGBps = float64(asked.Load()*size) / 1e9 / span.Seconds()
	out.Ratio, out.Served, out.Refused = Div(out.GoodputGBps, out.PeakGBps), served.Load(), refused.Load()
	out.RefusalMsP50, out.RefusalMsP99 = quantile(refusals, 0.5), quantile(refusals, 0.99)
	after, err := w.dram.refusals(ctx)
	if err != nil {
		return out, err
	}
	out.sumRefusals(before, after)
	time.Sleep(time.Second)
	out.MemoryAfter, _ = residentOf(w.dram.cmd.Process.Pid)
	return out, nil
}

func quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Clone(v)
	slices.Sort(s)
	return s[min(int(q*float64(len(s))), len(s)-1)]
}

// drainOnce restores a chain and gives its bytes back at once.
func drainOnce(ctx context.Context, c *wire.Client, scope skep.Scope, keys []skep.Key) (n int64, err error) {
	err = skep.Load(ctx, c, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: scope, Keys: keys}}}, func(ch *skep.Chunk) error {
		n += ch.Bytes
		return ch.Err
	})
	return n, err
}

// residentOf is the resident memory of a process in bytes.
func residentOf(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	f := strings.Fields(string(b))
	if len(f) < 2 {
		return 0, fmt.Errorf("odd /proc statm: %q", b)
	}
	pages, err := strconv.ParseInt(f[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}
