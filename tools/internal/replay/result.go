package replay

import (
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/internal/hist"
)

// Percentiles of a latency, in the unit its field names.
type Percentiles struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

// PercentilesOf reads them off a histogram.
func PercentilesOf(h *hist.Hist, unit time.Duration) Percentiles {
	return Percentiles{float64(h.Quantile(.5)) / float64(unit), float64(h.Quantile(.99)) / float64(unit)}
}

// Result is what a replay did. docs/reference/bench-json.md says what each field means.
type Result struct {
	Requests         int     `json:"requests"`
	BlocksReferenced int64   `json:"blocks_referenced"`
	BlocksHit        int64   `json:"blocks_hit"`
	BlocksFound      int64   `json:"blocks_found"`
	HitRatio         float64 `json:"hit_ratio"`

	BytesPut       int64            `json:"bytes_put"`
	BytesRestored  int64            `json:"bytes_restored"`
	WrongBytes     int64            `json:"wrong_bytes"`
	BrokenPromises int64            `json:"broken_promises"`
	LeasesDenied   int64            `json:"leases_denied"`
	Misses         map[string]int64 `json:"misses"`
	PutExists      int64            `json:"put_exists"`
	PutDiffers     int64            `json:"put_differs"`
	Declined       map[string]int64 `json:"declined"`

	WriteAmplification float64 `json:"write_amplification"`
	DeviceBytesRead    int64   `json:"device_bytes_read"`
	DeviceBytesWritten int64   `json:"device_bytes_written"`
	RestoreGBps        float64 `json:"restore_gbps"`
	PutGBps            float64 `json:"put_gbps"`

	LookupUs  Percentiles `json:"lookup_us"`
	RestoreMs Percentiles `json:"restore_ms"`

	Seconds         float64 `json:"seconds"`
	LookupSeconds   float64 `json:"lookup_seconds"`
	RestoreSeconds  float64 `json:"restore_seconds"`
	PutSeconds      float64 `json:"put_seconds"`
	GenerateSeconds float64 `json:"generate_seconds"`
	VerifySeconds   float64 `json:"verify_seconds"`
	PaceSeconds     float64 `json:"pace_seconds"`

	Backend           string `json:"backend"`
	BackendReason     string `json:"backend_reason"`
	Simulated         bool   `json:"simulated"`
	Policy            string `json:"policy"`
	Format            string `json:"format"`
	Speed             string `json:"speed"`
	Interrupted       bool   `json:"interrupted"`
	RegisteredBuffers bool   `json:"registered_buffers"`

	Admission      string           `json:"admission"`
	BudgetPerDay   int64            `json:"budget_per_day"`
	BlocksAdmitted int64            `json:"blocks_admitted"`
	BytesAdmitted  int64            `json:"bytes_admitted"`
	Refused        map[string]int64 `json:"refused"`
	RefusedHits    int64            `json:"refused_hits"`

	CapacityBytes int64 `json:"capacity_bytes"`
	DeviceBytes   int64 `json:"device_bytes"`
	Devices       int   `json:"devices"`
	BlocksStored  int64 `json:"blocks_stored"`
	BlocksEvicted int64 `json:"blocks_evicted"`

	// Latencies behind the percentiles, of calls to Lookup and of whole restores.
	Lookups  hist.Hist `json:"-"`
	Restores hist.Hist `json:"-"`
}

// Bad reports whether the run broke what must always hold.
func (r *Result) Bad() bool { return r.WrongBytes > 0 || r.BrokenPromises > 0 }

// finish fills what follows from the sums and from the store's own counters, which
// are those of this run alone.
func (r *Result) finish(before, after *skep.Stats, seconds float64) {
	r.Seconds = seconds
	r.HitRatio = ratio(float64(r.BlocksHit), float64(r.BlocksReferenced))
	r.RestoreGBps = ratio(float64(r.BytesRestored)/1e9, r.RestoreSeconds)
	r.PutGBps = ratio(float64(r.BytesPut)/1e9, r.PutSeconds)
	r.LookupUs = PercentilesOf(&r.Lookups, time.Microsecond)
	r.RestoreMs = PercentilesOf(&r.Restores, time.Millisecond)
	for i, d := range after.Devices {
		r.DeviceBytesRead += d.BytesRead
		r.DeviceBytesWritten += d.BytesWritten
		if i < len(before.Devices) {
			r.DeviceBytesRead -= before.Devices[i].BytesRead
			r.DeviceBytesWritten -= before.Devices[i].BytesWritten
		}
	}
	r.WriteAmplification = ratio(float64(r.DeviceBytesWritten), float64(r.BytesPut))
	r.Backend, r.BackendReason, r.Simulated = after.Backend, after.BackendReason, after.Simulated
	r.CapacityBytes, r.DeviceBytes, r.Devices = after.CapacityBytes, after.DeviceBytes, len(after.Devices)
	r.BlocksStored, r.BlocksEvicted = after.Blocks, after.Evicted-before.Evicted
	a := after.Admission
	r.Admission, r.BudgetPerDay, r.Refused = a.Policy, a.BudgetPerDay, a.Refused
	r.BlocksAdmitted, r.BytesAdmitted = a.AdmittedBlocks-before.Admission.AdmittedBlocks, a.AdmittedBytes-before.Admission.AdmittedBytes
	r.RefusedHits = a.RefusedHits - before.Admission.RefusedHits
	// The store may know of promises it broke that this run did not see.
	r.BrokenPromises = max(r.BrokenPromises, after.BrokenPromises-before.BrokenPromises)
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
