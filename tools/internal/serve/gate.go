package serve

import (
	"context"
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/sealed"
	"github.com/skepkv/skep/store"
)

// openGate has the store take nothing in the clear that other nodes encrypt, where the nodes agree on the map.
func (s *server) openGate(keys map[string][]store.EncryptionKey) error {
	id, _, err := s.c.member()
	switch {
	case err != nil:
		return err
	case id != nil:
		s.gate = sealed.New(s.st, keyed(keys), s.log.With("part", "cluster"))
		s.st = s.gate
	case s.c.Cluster != "" && len(keys) > 0:
		s.log.Warn("the nodes of a map that is a file do not tell each other what they encrypt: one without a tenant's key " +
			"keeps its blocks in the clear; give all of them the keys")
	}
	return nil
}

// keyed are the tenants that there are keys for.
func keyed(keys map[string][]store.EncryptionKey) (out []string) {
	for _, t := range slices.Sorted(maps.Keys(keys)) {
		if t == "" {
			t = clustermap.EveryTenant
		}
		out = append(out, t)
	}
	return out
}

// unencrypt are the commands by which a tenant is encrypted no more. While a node has a key for it, it would be again.
func (s *server) unencrypt(ctx context.Context, tenant string) ([]clustermap.Command, error) {
	const op = "cluster"
	field := "encryption of tenant " + tenant
	m := s.member.c.Map()
	if m == nil || len(m.Unseal(tenant)) == 0 {
		return nil, &skep.Error{Op: op, Kind: skep.NotFound, Field: field, Value: "none",
			Limit: "one that skep cluster status names"}
	}
	for _, n := range s.member.c.Status(ctx).Nodes {
		switch {
		case n.State == string(clustermap.Down):
		case !n.Reached:
			return nil, &skep.Error{Op: op, Kind: skep.Unavailable, Field: "node", Value: n.Name,
				Limit: "one that answers, or is down: it may have a key of the tenant"}
		case n.Load != nil && slices.Contains(n.Load.Keys, tenant):
			return nil, &skep.Error{Op: op, Kind: skep.Conflict, Field: field, Value: "to end",
				Limit: "encrypted, while node " + n.Name + " has a key of it: take that out of its settings first"}
		}
	}
	return m.Unseal(tenant), nil
}

// keyMetrics shows of which tenants the node takes no blocks, because it lacks their encryption key.
type keyMetrics struct{ s *server }

var descKeyMissing = prometheus.NewDesc("skep_encryption_key_missing",
	"1: this node declines the tenant's blocks for lack of its encryption key.", []string{"tenant"}, nil)

// Describe implements prometheus.Collector.
func (keyMetrics) Describe(c chan<- *prometheus.Desc) { c <- descKeyMissing }

// Collect implements prometheus.Collector.
func (m keyMetrics) Collect(out chan<- prometheus.Metric) {
	if m.s.gate == nil {
		return
	}
	for _, t := range m.s.gate.LacksKeys() {
		out <- prometheus.MustNewConstMetric(descKeyMissing, prometheus.GaugeValue, 1, t)
	}
}
