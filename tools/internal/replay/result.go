package replay

import (
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/internal/hist"
)

// Percentiles of a latency, in the unit its field names.
type Percentiles struct {
	P50 float64 `json:"p50"` // median
	P99 float64 `json:"p99"` // 99th percentile
}

// PercentilesOf reads them off a histogram.
func PercentilesOf(h *hist.Hist, unit time.Duration) Percentiles {
	return Percentiles{float64(h.Quantile(.5)) / float64(unit), float64(h.Quantile(.99)) / float64(unit)}
}

// Result is what a replay did.
type Result struct {
	Requests         int     `json:"requests"`          // requests replayed
	BlocksReferenced int64   `json:"blocks_referenced"` // blocks of all prompts (blocks)
	BlocksHit        int64   `json:"blocks_hit"`        // leading blocks found, restored and right (blocks)
	BlocksFound      int64   `json:"blocks_found"`      // blocks that lookups found (blocks)
	HitRatio         float64 `json:"hit_ratio"`         // blocks_hit ÷ blocks_referenced

	BytesPut      int64 `json:"bytes_put"`      // payload of blocks committed (bytes)
	BytesRestored int64 `json:"bytes_restored"` // payload restored, all of it compared (bytes)
	WrongBytes    int64 `json:"wrong_bytes"`    // restored bytes that are not what was put (bytes)
	// blocks found under a lease that a restore did not deliver (blocks)
	BrokenPromises int64 `json:"broken_promises"`
	// lookups that found blocks and got no lease: the tenant's leased bytes were at their cap
	LeasesDenied int64            `json:"leases_denied"`
	Misses       map[string]int64 `json:"misses"`      // blocks that restores did not deliver, by reason (blocks)
	PutExists    int64            `json:"put_exists"`  // puts of blocks that were there already (blocks)
	PutDiffers   int64            `json:"put_differs"` // of these, with other bytes (blocks)
	// puts that were declined, by reason; "after a declined block" were not tried (blocks)
	Declined map[string]int64 `json:"declined"`

	// device_bytes_written ÷ bytes_put; the catalog's own writes are not in it
	WriteAmplification float64 `json:"write_amplification"`
	DeviceBytesRead    int64   `json:"device_bytes_read"` // read from the devices in this run (bytes)
	// written to the devices in this run, headers, padding and cleaning included (bytes)
	DeviceBytesWritten int64   `json:"device_bytes_written"`
	RestoreGBps        float64 `json:"restore_gbps"` // bytes_restored ÷ restore_seconds (GB/s)
	PutGBps            float64 `json:"put_gbps"`     // bytes_put ÷ put_seconds (GB/s)

	LookupUs  Percentiles `json:"lookup_us"`  // of the calls to Lookup (µs)
	RestoreMs Percentiles `json:"restore_ms"` // over requests, of the time to restore all that was found (ms)

	Seconds       float64 `json:"seconds"`        // the whole run, opening and closing the store not included (s)
	LookupSeconds float64 `json:"lookup_seconds"` // inside Lookup (s)
	// from Restore to the end of the session, comparing not included (s)
	RestoreSeconds  float64 `json:"restore_seconds"`
	PutSeconds      float64 `json:"put_seconds"`      // inside Put (s)
	GenerateSeconds float64 `json:"generate_seconds"` // making keys and payload (s)
	VerifySeconds   float64 `json:"verify_seconds"`   // comparing what was restored (s)
	PaceSeconds     float64 `json:"pace_seconds"`     // waiting for requests to be due (s)

	Backend       string `json:"backend"`        // what moved the bytes
	BackendReason string `json:"backend_reason"` // why not a better one
	Simulated     bool   `json:"simulated"`      // a device is a simulation
	Policy        string `json:"policy"`         // what is kept
	Format        string `json:"format"`         // what kind of trace it was
	Speed         string `json:"speed"`          // as given
	Interrupted   bool   `json:"interrupted"`    // the figures are of what was done until then
	// restores landed in memory the drives were told about beforehand
	RegisteredBuffers bool `json:"registered_buffers"`

	Admission    string `json:"admission"`      // all, budget or second-touch
	BudgetPerDay int64  `json:"budget_per_day"` // of each device; 0: none (bytes)
	// written to devices because they were used, or the budget had something to spare; 0 with all (blocks)
	BlocksAdmitted int64            `json:"blocks_admitted"`
	BytesAdmitted  int64            `json:"bytes_admitted"` // of them (bytes)
	Refused        map[string]int64 `json:"refused"`        // not written, by reason (blocks)
	// put again after they were refused: hits that refusing cost (blocks)
	RefusedHits int64 `json:"refused_hits"`

	CapacityBytes int64 `json:"capacity_bytes"` // the cap; 0: none (bytes)
	DeviceBytes   int64 `json:"device_bytes"`   // size of the devices at the end (bytes)
	Devices       int   `json:"devices"`        // how many
	BlocksStored  int64 `json:"blocks_stored"`  // in the store at the end (blocks)
	BlocksEvicted int64 `json:"blocks_evicted"` // dropped in this run to make room (blocks)

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
