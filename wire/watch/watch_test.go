package watch

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTheSlowestOfLateAreRemembered(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	r := New()
	require.NoError(t, reg.Register(r))
	require.Error(t, reg.Register(New()), "two servers' metrics in one registry are told apart by labels")
	start := time.Unix(1_000_000*60, 0)
	call := func(at time.Duration, took time.Duration, tenant string) {
		r.Record(Call{Protocol: "resp", Name: "GET", Tenant: tenant, Outcome: OK, Start: start.Add(at), Duration: took, Bytes: 10})
	}
	call(0, time.Hour, "a") // ends an hour later: of the minute it ended in
	for i := range 100 {
		call(time.Hour, time.Duration(i)*time.Millisecond, "a")
	}
	call(time.Hour+time.Minute, 5*time.Second, "b")

	got := r.Slowest(start.Add(time.Hour+2*time.Minute), 4, "")
	require.Len(t, got, 4)
	assert.Equal(t, []time.Duration{time.Hour, 5 * time.Second, 99 * time.Millisecond, 98 * time.Millisecond},
		[]time.Duration{got[0].Duration, got[1].Duration, got[2].Duration, got[3].Duration})
	assert.Len(t, r.Slowest(start.Add(time.Hour+2*time.Minute), 10, "b"), 1, "a tenant's own")
	assert.Empty(t, r.Slowest(start.Add(2*time.Hour), 10, ""), "a quarter of an hour later they are forgotten")

	families, err := reg.Gather()
	require.NoError(t, err)
	require.Len(t, families, 2)
	assert.Equal(t, "skep_call_duration_seconds", families[1].GetName())
	assert.Equal(t, uint64(102), families[1].Metric[0].Histogram.GetSampleCount())
	var none *Recorder
	none.Record(Call{})
	assert.Empty(t, none.Slowest(start, 1, ""))
}
