package store

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skepkv/skep"
)

// metrics shows Stats to Prometheus. It keeps no numbers of its own, so the two cannot
// disagree.
type metrics struct {
	s *Store
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("skep_"+name, help, labels, nil)
}

var (
	descInfo     = desc("info", "1, labelled with the back end of the devices and why not another.", "backend", "reason", "simulated", "state")
	descBlocks   = desc("blocks", "Blocks stored.")
	descBytes    = desc("block_bytes", "Payload of stored blocks, one copy each.")
	descGroups   = desc("groups", "Stripe groups by state.", "state")
	descLookups  = desc("lookups_total", "Lookups.")
	descKeys     = desc("lookup_keys_total", "Keys asked for by lookups, by result.", "result")
	descPuts     = desc("put_blocks_total", "Blocks put, by outcome.", "outcome")
	descDeclined = desc("put_declined_total", "Blocks declined, by reason.", "reason")
	descPutBytes = desc("put_bytes_total", "Payload committed.")
	descRestored = desc("restored_bytes_total", "Bytes restored, by tier.", "tier")
	descMisses   = desc("restore_misses_total", "Chunks that were a miss, by reason.", "reason")
	descCopied   = desc("copied_bytes_total", "Bytes that took a copy for want of alignment.")
	descBroken   = desc("broken_promises_total", "Leased blocks that could not be restored.")
	descEvicted  = desc("evicted_blocks_total", "Blocks dropped to make room.")
	descMoved    = desc("moved_bytes_total", "Payload written again by cleaning.")
	descDamaged  = desc("damaged_total", "Blocks whose bytes did not match.")
	descLeases   = desc("leases", "Leases held.")
	descLeased   = desc("leased_bytes", "Bytes under lease.")
	descDevBytes = desc("device_bytes_total", "Bytes moved by a device, by direction.", "device", "direction")
	descDevOps   = desc("device_ops_total", "Operations of a device, by kind.", "device", "kind")
	descDevErr   = desc("device_errors_total", "Operations of a device that failed.", "device")
	descDevBusy  = desc("device_in_flight", "Operations under way.", "device")
	descDevLat   = desc("device_read_latency_seconds", "Moving average of read latency.", "device")
	descAdmitted = desc("admitted_blocks_total", "Cache blocks admitted to the drives.")
	descRefused  = desc("refused_blocks_total", "Cache blocks dropped from DRAM unwritten, or declined, by reason.", "reason")
	descLost     = desc("refused_hits_total", "Blocks put again after they were refused: hits that refusing cost.")
	descBudget   = desc("write_budget_left_bytes", "Bytes that may be written now under the write budget; below 0: owed.")
	descWaiting  = desc("waiting_bytes", "Blocks in DRAM that are not decided on.")
	descMemory   = desc("memory_bytes", "Memory in use, by holder.", "holder")
)

// Describe implements prometheus.Collector. Without descriptions up front the
// collector is unchecked, which is right for labels that come with the stats.
func (m *metrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	st, err := m.s.Stats(context.Background())
	if err != nil {
		return // closed
	}
	m.s.collectSpaces(out)
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v int64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	simulated := "no"
	if st.Simulated {
		simulated = "yes"
	}
	gauge(descInfo, 1, st.Backend, st.BackendReason, simulated, st.State)
	gauge(descBlocks, float64(st.Blocks))
	gauge(descBytes, float64(st.BlockBytes))
	gauge(descGroups, float64(st.Groups), "used")
	gauge(descGroups, float64(st.FreeGroups), "free")
	count(descLookups, st.Lookups)
	count(descKeys, st.LookupHits, "hit")
	count(descKeys, st.LookupKeys-st.LookupHits, "miss")
	count(descPuts, st.PutBlocks, skep.Committed.String())
	count(descPuts, st.PutExists, skep.Exists.String())
	for reason, n := range st.PutDeclined {
		count(descDeclined, n, reason)
	}
	count(descPutBytes, st.PutBytes)
	for tier, n := range st.RestoreTiers {
		count(descRestored, n, tier)
	}
	for reason, n := range st.RestoreMisses {
		count(descMisses, n, reason)
	}
	count(descCopied, st.CopiedBytes)
	count(descBroken, st.BrokenPromises)
	count(descEvicted, st.Evicted)
	count(descMoved, st.MovedBytes)
	count(descDamaged, st.Damaged)
	gauge(descLeases, float64(st.Leases))
	gauge(descLeased, float64(st.LeasedBytes))
	count(descAdmitted, st.Admission.AdmittedBlocks)
	for reason, n := range st.Admission.Refused {
		count(descRefused, n, reason)
	}
	count(descLost, st.Admission.RefusedHits)
	gauge(descBudget, float64(st.Admission.BudgetLeft))
	gauge(descWaiting, float64(st.Admission.WaitingBytes))
	for _, d := range st.Devices {
		count(descDevBytes, d.BytesRead, d.Path, "read")
		count(descDevBytes, d.BytesWritten, d.Path, "write")
		count(descDevOps, d.Reads, d.Path, "read")
		count(descDevOps, d.Writes, d.Path, "write")
		count(descDevOps, d.Flushes, d.Path, "flush")
		count(descDevErr, d.Errors, d.Path)
		gauge(descDevBusy, float64(d.InFlight), d.Path)
		gauge(descDevLat, d.ReadLatencyUs/1e6, d.Path)
	}
	for _, row := range st.Memory {
		gauge(descMemory, float64(row.Used), row.Name)
	}
}
