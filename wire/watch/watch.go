package watch

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Call is one call a server answered.
type Call struct {
	Protocol string        `json:"protocol"` // "resp", "wire", "http"
	Name     string        `json:"name"`     // the command or call
	Tenant   string        `json:"tenant"`
	Outcome  string        `json:"outcome"` // "ok", "miss", "error", "shed"
	Start    time.Time     `json:"start"`
	Duration time.Duration `json:"duration_ns"`
	Keys     int           `json:"keys"`
	Bytes    int64         `json:"bytes"` // payload, either direction
}

// Outcomes of a Call.
const (
	OK    = "ok"
	Miss  = "miss"
	Error = "error"
	Shed  = "shed"
)

const (
	slots   = 15          // minutes remembered
	perSlot = 32          // slowest calls kept of each
	slot    = time.Minute //
)

// Recorder takes calls from any goroutine. A nil Recorder takes them too, and forgets.
type Recorder struct {
	latency *prometheus.HistogramVec
	bytes   *prometheus.CounterVec

	tell func(Call) // nil: nobody

	mu    sync.Mutex
	rings [slots]minute
}

type minute struct {
	at    int64 // minutes since 1970
	calls []Call
}

// New makes a recorder, which is a collector of its metrics: a registry takes those of one only.
func New() *Recorder {
	return &Recorder{
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "skep_call_duration_seconds", Help: "Time from a call's arrival to its last byte sent, by protocol, call and outcome.",
			Buckets: prometheus.ExponentialBuckets(20e-6, 2, 20),
		}, []string{"protocol", "call", "outcome"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "skep_call_bytes_total", Help: "Payload of calls, by protocol, call and tenant.",
		}, []string{"protocol", "call", "tenant"}),
	}
}

// Tell has f told of each call, which must not block. It comes before the first of them.
func (r *Recorder) Tell(f func(Call)) { r.tell = f }

// Describe implements prometheus.Collector.
func (r *Recorder) Describe(to chan<- *prometheus.Desc) {
	r.latency.Describe(to)
	r.bytes.Describe(to)
}

// Collect implements prometheus.Collector.
func (r *Recorder) Collect(to chan<- prometheus.Metric) {
	r.latency.Collect(to)
	r.bytes.Collect(to)
}

// Record takes a call that has ended.
func (r *Recorder) Record(c Call) {
	if r == nil {
		return
	}
	r.latency.WithLabelValues(c.Protocol, c.Name, c.Outcome).Observe(c.Duration.Seconds())
	if c.Bytes > 0 {
		r.bytes.WithLabelValues(c.Protocol, c.Name, strings.ToValidUTF8(c.Tenant, "\uFFFD")).Add(float64(c.Bytes))
	}
	if r.tell != nil {
		r.tell(c)
	}
	now := c.Start.Add(c.Duration).Unix() / int64(slot/time.Second)
	r.mu.Lock()
	defer r.mu.Unlock()
	m := &r.rings[now%slots]
	if m.at != now {
		m.at, m.calls = now, m.calls[:0]
	}
	if len(m.calls) == perSlot && c.Duration <= m.calls[perSlot-1].Duration {
		return
	}
	i, _ := slices.BinarySearchFunc(m.calls, c, slowerFirst)
	if len(m.calls) == perSlot {
		m.calls = m.calls[:perSlot-1]
	}
	m.calls = slices.Insert(m.calls, i, c)
}

func slowerFirst(a, b Call) int {
	switch {
	case a.Duration > b.Duration:
		return -1
	case a.Duration < b.Duration:
		return 1
	}
	return 0
}

// Slowest lists at most n calls of the last quarter of an hour before now, slowest
// first; of one tenant, or of all when tenant is "".
func (r *Recorder) Slowest(now time.Time, n int, tenant string) []Call {
	out := []Call{}
	if r == nil {
		return out
	}
	minuteNow := now.Unix() / int64(slot/time.Second)
	r.mu.Lock()
	for i := range r.rings {
		if m := &r.rings[i]; minuteNow-m.at < slots {
			for _, c := range m.calls {
				if tenant == "" || c.Tenant == tenant {
					out = append(out, c)
				}
			}
		}
	}
	r.mu.Unlock()
	slices.SortStableFunc(out, slowerFirst)
	return out[:min(n, len(out))]
}
