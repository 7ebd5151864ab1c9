package serve

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// nodesUp says which nodes of the map answer this one, by name; nil: the server is of no cluster, or cannot tell.
func (s *server) nodesUp(ctx context.Context) map[string]bool {
	up := map[string]bool{}
	switch {
	case s.member != nil:
		for _, n := range s.member.c.Status(ctx).Nodes {
			if n.Name != "" { // else it is removed, and votes yet
				up[n.Name] = n.Reached
			}
		}
	case s.others != nil:
		gone := s.others.gone(ctx)
		for _, n := range s.whole.Map().Nodes {
			up[n.Name] = !gone[n.ID]
		}
	}
	return up
}

// nodeMetrics shows which nodes answer, to who asks for metrics.
type nodeMetrics struct{ s *server }

var descNodeUp = prometheus.NewDesc("skep_node_up",
	"1: the cluster's node answers this one; 0: not.", []string{"node"}, nil)

// scrapePatience is how long nodes may take to answer who asks for metrics.
const scrapePatience = time.Second

// Describe implements prometheus.Collector.
func (nodeMetrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m nodeMetrics) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapePatience)
	defer cancel()
	for name, up := range m.s.nodesUp(ctx) {
		n := 0.0
		if up {
			n = 1
		}
		out <- prometheus.MustNewConstMetric(descNodeUp, prometheus.GaugeValue, n, name)
	}
}
