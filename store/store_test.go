package store

import (
	"cmp"
	"context"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
)

func openTest(t *testing.T, o Options) *Store {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	s, err := Open(context.Background(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Test(t, func(t *testing.T, c storetest.Config) skep.Store {
		return openTest(t, Options{CapacityBytes: c.CapacityBytes, BlockBytes: 64 << 10, IOBytes: 64 << 20, CacheBytes: 32 << 20,
			LeasedBytes: cmp.Or(c.TenantLeaseBytes, 1<<40), PinnedBytes: cmp.Or(c.TenantPinBytes, 1<<40), TenantNamespaces: c.TenantNamespaces})
	})
}

func TestMetricsAreTheStats(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	s := openTest(t, Options{CapacityBytes: 16 << 20, BlockBytes: 64 << 10, IOBytes: 16 << 20, Registerer: reg})
	ns, err := s.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "n", Chained: true, Shape: skep.Shape{BlockTokens: 16}})
	require.NoError(t, err)
	_, err = s.Put(t.Context(), &skep.PutRequest{Scope: skep.Scope{Namespace: ns.ID}, Blocks: []skep.Block{{Key: skep.Key{1}, Parts: []skep.Part{{Bytes: make([]byte, 5000)}}}}})
	require.NoError(t, err)
	families, err := reg.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			values[f.GetName()] += m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	require.EqualValues(t, 1, values["skep_blocks"])
	require.EqualValues(t, 5000, values["skep_put_bytes_total"])
	require.EqualValues(t, 5000, values["skep_block_bytes"])
	require.Positive(t, values["skep_device_bytes_total"])
	for _, name := range []string{"skep_info", "skep_joined_bytes_total", "skep_kept_bytes_total", "skep_two_pointer_chains_total", "skep_prefetch_bytes_total", "skep_two_pointer_loads_total", "skep_boundary_bytes_total",
		"skep_device_state", "skep_memory_cap_bytes", "skep_tenant_bytes"} {
		require.Contains(t, values, name)
	}
}
