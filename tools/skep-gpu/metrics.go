package main

import (
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/skepkv/skep"
)

// measure serves metrics at an address, host:port or unix:path, until end is called. An empty
// address is none.
func measure(addr string, of ...prometheus.Collector) (end func(), err error) {
	if addr == "" {
		return func() {}, nil
	}
	r := prometheus.NewRegistry()
	for _, c := range append(of, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewGoCollector()) {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	ln, err := listen("--metrics", addr)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{}))
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(ln) // until it is closed
	}()
	return func() { srv.Close(); <-done }, nil
}

// listen listens at host:port or unix:path. A socket that was left by a process that ended is
// replaced; one that answers is not. Unix sockets are this user's only.
func listen(flag, addr string) (ln net.Listener, err error) {
	invalid := func(err error) error {
		return &skep.Error{Op: "skep-gpu", Kind: skep.Invalid, Field: flag, Value: addr, Limit: "an address to listen at", Err: err}
	}
	path, ok := strings.CutPrefix(addr, "unix:")
	if !ok {
		if ln, err = net.Listen("tcp", addr); err != nil {
			return nil, invalid(err)
		}
		return ln, nil
	}
	if c, err := net.Dial("unix", path); err == nil {
		c.Close()
		return nil, &skep.Error{Op: "skep-gpu", Kind: skep.Locked, Field: flag, Value: addr}
	}
	if st, err := os.Lstat(path); err == nil && st.Mode()&os.ModeSocket != 0 {
		_ = os.Remove(path)
	}
	if ln, err = net.Listen("unix", path); err != nil {
		return nil, invalid(err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		ln.Close()
		return nil, invalid(err)
	}
	return ln, nil
}
