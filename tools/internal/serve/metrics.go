package serve

import (
	"github.com/prometheus/client_golang/prometheus"

	wireserver "github.com/skepkv/skep/wire/server"
)

// wireMetrics shows the binary protocol's server to Prometheus.
type wireMetrics struct{ s *wireserver.Server }

var (
	descWireConns = prometheus.NewDesc("skep_wire_connections", "Connections of the binary protocol open.", nil, nil)
	descWireTotal = prometheus.NewDesc("skep_wire_connections_total", "Connections of the binary protocol, by what became of them.", []string{"result"}, nil)
	descWireShed  = prometheus.NewDesc("skep_wire_shed_total", "Calls of the binary protocol refused for want of memory or room.", nil, nil)
	descWireBusy  = prometheus.NewDesc("skep_wire_sessions", "Restore sessions under way.", nil, nil)
	descWireMem   = prometheus.NewDesc("skep_wire_memory_bytes", "Memory held for calls and sessions, and its cap.", []string{"what"}, nil)
	descWireBytes = prometheus.NewDesc("skep_wire_bytes_total", "Payload, by direction.", []string{"direction"}, nil)
)

// Describe implements prometheus.Collector.
func (wireMetrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m wireMetrics) Collect(out chan<- prometheus.Metric) {
	st := m.s.Stats()
	gauge := func(d *prometheus.Desc, n int64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	count := func(d *prometheus.Desc, n int64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge(descWireConns, int64(st.Connections))
	count(descWireTotal, st.Accepted, "accepted")
	count(descWireTotal, st.Refused, "refused")
	count(descWireShed, st.Shed)
	gauge(descWireBusy, int64(st.Sessions))
	gauge(descWireMem, st.Memory, "used")
	gauge(descWireMem, st.MemoryCap, "cap")
	count(descWireBytes, st.SentBytes, "sent")
	count(descWireBytes, st.TakenBytes, "taken")
}
