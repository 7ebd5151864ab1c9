package bench

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/skepkv/skep"
)

// RESPOptions of RESP.
type RESPOptions struct {
	Common
	Sizes       []int64 // of a value
	Connections int
	TotalBytes  int64 // of the values: what fits the server's memory and Redis's
	Devices     int
	Seconds     float64  // of a run
	Only        []string // of respParts; empty: all
	Self        []string
}

// respParts are what RESP measures, by names to choose from.
var respParts = []string{"set", "get", "drives", "tls"}

// part is which of respParts a row belongs to.
func (r *RESPRow) part() string {
	switch {
	case r.TLS:
		return "tls"
	case r.From == "drives":
		return "drives"
	}
	return strings.ToLower(r.Command)
}

func (o *RESPOptions) validate() error {
	const op = "bench resp"
	for _, part := range o.Only {
		if !slices.Contains(respParts, part) {
			return skep.Invalidf(op, "--only", part, strings.Join(respParts, ", "))
		}
	}
	switch {
	case o.Connections < 1 || o.Connections > 1000:
		return skep.Invalidf(op, "--connections", o.Connections, "1 to 1000")
	case o.Seconds <= 0 || o.Seconds > 600:
		return skep.Invalidf(op, "--seconds", o.Seconds, "more than 0, at most 600")
	case o.Devices < 1 || o.Devices > 64:
		return skep.Invalidf(op, "--file-devices", o.Devices, "1 to 64")
	case len(o.Sizes) == 0:
		return skep.Invalidf(op, "--sizes", "none", "at least one")
	}
	for _, n := range o.Sizes {
		if n < 1 || n > 512<<20 || o.TotalBytes < n*int64(o.Connections) {
			return skep.Invalidf(op, "--sizes", n, "1 to 536870912, and one for each connection within --total-size")
		}
	}
	return o.Common.Validate()
}

// RESPRow is one command at one size, from one place.
type RESPRow struct {
	Command    string   `json:"command"`            // GET or SET
	ValueBytes int64    `json:"value_bytes"`        // of a value (bytes)
	From       string   `json:"from"`               // memory, drives, or to drives
	TLS        bool     `json:"tls"`                // over TLS 1.3
	GBps       float64  `json:"gbps"`               // of values (GB/s)
	CPU        float64  `json:"cpu_s_per_gb"`       // of the server (s/GB)
	RedisGBps  float64  `json:"redis_gbps"`         // Redis; 0: not comparable, or not installed (GB/s)
	RedisCPU   float64  `json:"redis_cpu_s_per_gb"` // of redis-server (s/GB)
	LimitGBps  float64  `json:"limit_gbps"`         // the limit (GB/s)
	Limit      string   `json:"limit"`              // what it is
	Ratio      float64  `json:"ratio"`              // gbps ÷ the lower of Redis and the limit
	CPURatio   float64  `json:"cpu_ratio"`          // CPU ÷ Redis's; 0: not measured
	Samples    []Sample `json:"samples"`            // the server's, a round each
	Redis      []Sample `json:"redis_samples"`      // Redis's, a round each
	Limits     []Sample `json:"limit_samples"`      // the limit's, a round each

	// of a SET, which is answered when its value outlives the process: Redis with the same promise (appendonly yes,
	// appendfsync always); 0: not measured (GB/s)
	LastingGBps float64 `json:"lasting_redis_gbps"`
	LastingCPU  float64 `json:"lasting_redis_cpu_s_per_gb"` // of that redis-server (s/GB)
	// of a SET: the same drives written, without a server (GB/s)
	WriteGBps float64  `json:"drives_write_gbps"`
	Lasting   []Sample `json:"lasting_redis_samples"` // Redis with its log, a round each; of a SET
	// the drives written without a server, a round each; of a SET
	Writes []Sample `json:"drives_write_samples"`
}

// RESPResult is what RESP measured.
type RESPResult struct {
	About
	Redis  string    `json:"redis"`  // its version; empty: not installed
	Rounds int       `json:"rounds"` // rounds, of which medians are given
	Method string    `json:"method"` // how it was measured
	Rows   []RESPRow `json:"rows"`   // by command, size of a value and where it comes from
}

// RESP measures GET and SET over loopback beside Redis, one client for both: it sends
// the same bytes and drains what comes. CPU is the server's processes' alone.
func RESP(ctx context.Context, o RESPOptions) (_ *RESPResult, err error) {
	if runtime.GOOS != "linux" {
		return nil, &skep.Error{Op: "bench resp", Kind: skep.Unsupported, Field: "system", Value: runtime.GOOS, Limit: "linux"}
	}
	o.EnsureDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	dir, remove, err := o.Workspace("resp")
	if err != nil {
		return nil, err
	}
	defer remove()
	w := &respBench{RESPOptions: o, dir: dir}
	defer w.stop()
	if err := w.start(ctx); err != nil {
		return nil, err
	}
	res := &RESPResult{Redis: w.redisVersion, Rounds: o.Rounds,
		Method: fmt.Sprintf("%d connections, each one command at a time; %.1f s a run; servers in turns; server CPU from /proc", o.Connections, o.Seconds)}
	for _, size := range o.Sizes {
		rows := []*RESPRow{
			{Command: "SET", ValueBytes: size, From: "to drives"}, {Command: "GET", ValueBytes: size, From: "memory"},
			{Command: "GET", ValueBytes: size, From: "drives"}, {Command: "SET", ValueBytes: size, From: "to drives", TLS: true},
			{Command: "GET", ValueBytes: size, From: "memory", TLS: true},
		}
		if len(o.Only) > 0 {
			rows = slices.DeleteFunc(rows, func(r *RESPRow) bool { return !slices.Contains(o.Only, r.part()) })
		}
		for _, row := range rows {
			if err := w.fill(ctx, row); err != nil {
				return nil, err
			}
		}
		for round := range o.Rounds {
			o.Note("values of %d bytes, round %d of %d", size, round+1, o.Rounds)
			for _, row := range rows {
				if err := w.round(ctx, row); err != nil {
					return nil, err
				}
			}
		}
		for _, row := range rows {
			row.sum()
			res.Rows = append(res.Rows, *row)
		}
	}
	res.About = w.about
	return res, nil
}

func (r *RESPRow) sum() {
	r.GBps, r.CPU = median(r.Samples, Sample.GBps), median(r.Samples, Sample.CPUPerGB)
	r.RedisGBps, r.RedisCPU = median(r.Redis, Sample.GBps), median(r.Redis, Sample.CPUPerGB)
	r.LastingGBps, r.LastingCPU = median(r.Lasting, Sample.GBps), median(r.Lasting, Sample.CPUPerGB)
	r.LimitGBps, r.WriteGBps = median(r.Limits, Sample.GBps), median(r.Writes, Sample.GBps)
	least := r.LimitGBps
	if r.RedisGBps > 0 {
		least = min(least, r.RedisGBps)
		r.CPURatio = Div(r.CPU, r.RedisCPU)
	}
	r.Ratio = Div(r.GBps, least)
}

// respBench is the servers of a run.
type respBench struct {
	RESPOptions
	dir          string
	about        About
	redisVersion string
	servers      []*respServer

	memory, drives, secure *respServer
	redis, lasting         *respServer // nil: not installed; lasting keeps a log on the drives
	plainLoop, tlsLoop     *loopback
}

func (w *respBench) start(ctx context.Context) (err error) {
	if w.memory, err = w.startSkep(ctx, "memory", 2*w.TotalBytes, false); err != nil {
		return err
	}
	if w.drives, err = w.startSkep(ctx, "drives", 0, false); err != nil {
		return err
	}
	if w.secure, err = w.startSkep(ctx, "secure", 2*w.TotalBytes, true); err != nil {
		return err
	}
	if path, lerr := exec.LookPath("redis-server"); lerr == nil {
		if w.redis, err = w.startRedis(ctx, path, false); err != nil {
			return err
		}
		if w.lasting, err = w.startRedis(ctx, path, true); err != nil {
			return err
		}
	}
	if w.plainLoop, err = startLoopback(nil); err != nil {
		return err
	}
	w.tlsLoop, err = startLoopback(w.secure.tls)
	return err
}

func (w *respBench) stop() {
	for _, s := range w.servers {
		s.stop()
	}
	for _, l := range []*loopback{w.plainLoop, w.tlsLoop} {
		if l != nil {
			l.close()
		}
	}
}

// of is the server a row is about.
func (w *respBench) of(r *RESPRow) *respServer {
	switch {
	case r.TLS:
		return w.secure
	case r.From == "drives":
		return w.drives
	}
	return w.memory
}

// fill stores a row's values where they will be asked for, and reads them once.
func (w *respBench) fill(ctx context.Context, r *RESPRow) error {
	for _, s := range []*respServer{w.of(r), w.redis, w.lasting} {
		if s == nil || r.TLS && s == w.redis || s == w.lasting && !r.durable() {
			continue
		}
		for _, cmd := range []string{"SET", "GET"} {
			if _, err := w.drive(ctx, s, cmd, r.ValueBytes, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// round measures a row once: the server, Redis, the limit.
func (w *respBench) round(ctx context.Context, r *RESPRow) error {
	s, err := w.drive(ctx, w.of(r), r.Command, r.ValueBytes, w.Seconds)
	if err != nil {
		return err
	}
	r.Samples = append(r.Samples, s)
	if w.redis != nil && !r.TLS && r.From != "drives" {
		if s, err = w.drive(ctx, w.redis, r.Command, r.ValueBytes, w.Seconds); err != nil {
			return err
		}
		r.Redis = append(r.Redis, s)
	}
	if r.durable() {
		if err := w.lastingRound(ctx, r); err != nil {
			return err
		}
	}
	switch {
	case r.From == "drives":
		l := newLimiter(w.dir)
		r.Limit = "the same drives, " + l.Name()
		s, err = l.run(ctx, load{RW: "randread", Size: min(r.ValueBytes, 1<<20), Depth: max(16/w.Devices, 1), Bytes: w.TotalBytes / int64(w.Devices), Seconds: w.Seconds, Files: w.drives.devices})
	case r.TLS:
		r.Limit = "loopback with TLS 1.3, no server behind"
		s, err = w.loop(ctx, w.tlsLoop, r)
	default:
		r.Limit = "loopback, no server behind"
		s, err = w.loop(ctx, w.plainLoop, r)
	}
	if err != nil {
		return err
	}
	r.Limits = append(r.Limits, s)
	return nil
}

// durable says whether the row is of values that are to outlive the server.
func (r *RESPRow) durable() bool { return r.Command == "SET" && !r.TLS }

// lastingRound measures once what else keeps a row's values: Redis with its log, and the drives.
func (w *respBench) lastingRound(ctx context.Context, r *RESPRow) error {
	if w.lasting != nil {
		s, err := w.drive(ctx, w.lasting, r.Command, r.ValueBytes, w.Seconds)
		if err != nil {
			return err
		}
		r.Lasting = append(r.Lasting, s)
	}
	l := load{RW: "write", Size: min(r.ValueBytes, 1<<20), Depth: max(16/w.Devices, 1), Bytes: w.TotalBytes / int64(w.Devices), Seconds: w.Seconds}
	for i := range w.Devices {
		l.Files = append(l.Files, filepath.Join(w.dir, fmt.Sprint("limit-", i)))
	}
	s, err := newLimiter(w.dir).run(ctx, l)
	if err != nil {
		return err
	}
	r.Writes = append(r.Writes, s)
	return nil
}

// loop moves values of a row's size through a bare connection.
func (w *respBench) loop(ctx context.Context, l *loopback, r *RESPRow) (Sample, error) {
	return w.connections(ctx, l.dial, r.Command, r.ValueBytes, w.Seconds, func() (float64, error) { return 0, nil })
}

// drive asks a server on every connection for seconds, or for every value once when 0.
func (w *respBench) drive(ctx context.Context, s *respServer, cmd string, size int64, seconds float64) (Sample, error) {
	return w.connections(ctx, s.dial, cmd, size, seconds, s.cpu)
}

func (w *respBench) connections(ctx context.Context, dial dialer, cmd string, size int64, seconds float64, cpu func() (float64, error)) (Sample, error) {
	perConn := int(w.TotalBytes / size / int64(w.Connections))
	clients := make([]*respClient, 0, w.Connections)
	defer func() {
		for _, c := range clients {
			c.close()
		}
	}()
	for i := range w.Connections {
		c, err := dialClient(ctx, dial, i, size)
		if err != nil {
			return Sample{}, err
		}
		clients = append(clients, c)
	}
	before, err := cpu()
	if err != nil {
		return Sample{}, err
	}
	start := time.Now()
	end := start.Add(time.Duration(seconds * float64(time.Second)))
	errs := make(chan error, len(clients))
	for _, c := range clients {
		go func() { errs <- c.run(ctx, cmd, perConn, seconds == 0, end) }()
	}
	var out Sample
	for range clients {
		if cerr := <-errs; cerr != nil && err == nil {
			err = cerr
		}
	}
	if err != nil {
		return out, fmt.Errorf("%s of %d bytes: %w", cmd, size, err)
	}
	out.Seconds = time.Since(start).Seconds()
	after, err := cpu()
	if err != nil {
		return out, err
	}
	out.CPUSeconds = after - before
	for _, c := range clients {
		out.Bytes += c.moved
		out.Ops += c.ops
	}
	return out, nil
}

// tail keeps the end of what a process says, for errors.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if len(t.b) > 4096 {
		t.b = t.b[len(t.b)-4096:]
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.b))
}

var _ io.Writer = (*tail)(nil)
