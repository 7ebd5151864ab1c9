package bench

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"github.com/skepkv/skep/tools/internal/self"
)

// iperf measures loopback with n connections; without iperf3 a connection of our own.
func (w *wireBench) iperf(ctx context.Context, n int, r *WireRow) error {
	path, err := exec.LookPath("iperf3")
	if err != nil {
		return w.bare(ctx, false, n, r)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	l.Close()
	server := self.Other(ctx, path, "-s", "-1", "-B", "127.0.0.1", "-p", port)
	if err := server.Start(); err != nil {
		return err
	}
	defer server.Wait()
	defer server.Process.Kill()
	for try := 0; ; try++ {
		time.Sleep(50 * time.Millisecond)
		out, err := self.Other(ctx, path, "-c", "127.0.0.1", "-p", port, "-P", strconv.Itoa(n), "-t", fmt.Sprint(max(1, int(w.Seconds+0.5))), "-J").Output()
		if err != nil && try < 20 {
			continue // it does not listen so soon
		}
		if err != nil {
			return fmt.Errorf("iperf3: %w: %s", err, firstLine(string(out)))
		}
		var res struct {
			End struct {
				Sum struct {
					BitsPerSecond float64 `json:"bits_per_second"`
				} `json:"sum_received"`
			} `json:"end"`
		}
		if err := json.Unmarshal(out, &res); err != nil {
			return fmt.Errorf("iperf3: %w", err)
		}
		r.Limits = append(r.Limits, res.End.Sum.BitsPerSecond/8e9)
		return nil
	}
}

// bare moves bytes over n connections of our own, 1 MiB at a time, with TLS or without.
func (w *wireBench) bare(ctx context.Context, secure bool, n int, r *WireRow) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	until := time.Now().Add(time.Duration(w.Seconds * float64(time.Second)))
	var g sync.WaitGroup
	g.Go(func() {
		for range n {
			c, err := l.Accept()
			if err != nil {
				return
			}
			g.Go(func() {
				defer c.Close()
				if secure {
					c = tls.Server(c, w.secure.tls)
				}
				b := make([]byte, 1<<20)
				for time.Now().Before(until) {
					if _, err := c.Write(b); err != nil {
						return
					}
				}
			})
		}
	})
	var mu sync.Mutex
	var total int64
	var failed error
	began := time.Now()
	var readers sync.WaitGroup
	for range n {
		readers.Go(func() {
			var d net.Dialer
			c, err := d.DialContext(ctx, "tcp", l.Addr().String())
			if err == nil {
				defer c.Close()
				if secure {
					c = tls.Client(c, w.secure.tls)
				}
				b := make([]byte, 1<<20)
				var sum int64
				for err == nil {
					var k int
					k, err = c.Read(b)
					sum += int64(k)
				}
				if err == io.EOF || time.Now().After(until) {
					err = nil
				}
				mu.Lock()
				total += sum
				mu.Unlock()
			}
			if err != nil {
				mu.Lock()
				failed = err
				mu.Unlock()
			}
		})
	}
	readers.Wait()
	took := time.Since(began).Seconds()
	l.Close()
	g.Wait()
	r.Limits = append(r.Limits, float64(total)/1e9/took)
	return failed
}
