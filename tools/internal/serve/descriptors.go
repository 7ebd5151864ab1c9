package serve

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/wire/gate"
)

// What a server keeps of its descriptors. Connections get what is left: however many come, the store can open
// its next file.
const (
	ownFiles         = 64 // the runtime's, the log's, listeners, sockets for onlookers, files read again
	filesOfADevice   = 4
	devicesToCome    = 4  // that are added while it serves
	leastConnections = 64 // descriptors that connections need for a server to be of use
)

// reserved is how many descriptors are the store's and the server's own.
func reserved(devices int) int {
	return ownFiles + filesOfADevice*(devices+devicesToCome) + catalog.OpenFiles()
}

// forConnections is how many are left of a process's limit; an error where that is too few to serve.
func forConnections(limit, devices int) (int, error) {
	left := limit - reserved(devices)
	if left < leastConnections {
		return 0, &skep.Error{Op: "settings", Kind: skep.Invalid, Field: "limit of open files", Value: limit,
			Limit: fmt.Sprintf("at least %d (%d for the store's files, %d for connections): raise it with ulimit -n, or LimitNOFILE= of a systemd unit", limit-left+leastConnections, limit-left, leastConnections)}
	}
	return left, nil
}

// devices is how many the configuration names.
func (c *Config) devices() int {
	return max(c.FileDevices, len(c.Devices))
}

// gates bound connections by protocol. None can take all there are: three quarters at most go to the binary
// protocol or to RESP, and an eighth to HTTP and to KV events.
type gates struct {
	all, wire, resp, http, events *gate.Gate
}

func newGates(left, connections int) *gates {
	all := gate.New(left, nil)
	most := left / 4 * 3
	return &gates{all: all, wire: gate.New(min(connections, most), all), resp: gate.New(min(connections, most), all), http: gate.New(min(connections, left/8), all),
		events: gate.New(min(eventConnections, left/8), all)}
}

var (
	descGateUsed  = prometheus.NewDesc("skep_connection_files", "Descriptors of connections, by protocol: a connection over a Unix socket counts as five.", []string{"protocol"}, nil)
	descGateLimit = prometheus.NewDesc("skep_connection_files_limit", "How many descriptors connections may have, by protocol; all: together.", []string{"protocol"}, nil)
	descHTTPConns = prometheus.NewDesc("skep_http_connections", "HTTP connections open.", nil, nil)
	descHTTPTotal = prometheus.NewDesc("skep_http_connections_total", "HTTP connections, by what became of them.", []string{"result"}, nil)
)

// Describe implements prometheus.Collector.
func (*gates) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (g *gates) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	for name, one := range map[string]*gate.Gate{
		"all": g.all, "wire": g.wire, "resp": g.resp, "http": g.http, "events": g.events,
	} {
		gauge(descGateUsed, one.Used(), name)
		gauge(descGateLimit, one.Limit(), name)
	}
	gauge(descHTTPConns, g.http.Used())
	out <- prometheus.MustNewConstMetric(descHTTPTotal, prometheus.CounterValue, float64(g.http.Accepted()), "accepted")
	out <- prometheus.MustNewConstMetric(descHTTPTotal, prometheus.CounterValue, float64(g.http.Refused()), "refused")
}
