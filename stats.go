package skep

import "time"

// Stats is what a store did since it was opened, and how it stands. Sizes are bytes.
type Stats struct {
	Backend       string    `json:"backend"`        // "iouring", "pool", "memory"; of the devices
	BackendReason string    `json:"backend_reason"` // why not another
	Simulated     bool      `json:"simulated"`      // a device is a simulation
	Opened        time.Time `json:"opened"`
	Epoch         uint64    `json:"epoch"`
	State         string    `json:"state"` // "ok", "read-only", "failed: why"

	Blocks        int64 `json:"blocks"`
	BlockBytes    int64 `json:"block_bytes"`    // payload of stored blocks, one copy each; purged ones count until they are cleaned away
	CapacityBytes int64 `json:"capacity_bytes"` // the cap on DeviceBytes
	DeviceBytes   int64 `json:"device_bytes"`   // size of the devices, as far as they are allotted
	FreeGroups    int   `json:"free_groups"`
	Groups        int   `json:"groups"`

	Lookups        int64            `json:"lookups"`
	LookupKeys     int64            `json:"lookup_keys"`
	LookupHits     int64            `json:"lookup_hits"`  // keys found
	PutBlocks      int64            `json:"put_blocks"`   // committed
	PutBytes       int64            `json:"put_bytes"`    // payload of them, one copy each
	PutExists      int64            `json:"put_exists"`   //
	PutDiffers     int64            `json:"put_differs"`  // Exists with other bytes
	PutDeclined    map[string]int64 `json:"put_declined"` // by reason
	RestoredBlocks int64            `json:"restored_blocks"`
	RestoredBytes  int64            `json:"restored_bytes"`
	RestoreTiers   map[string]int64 `json:"restore_tiers"`  // bytes by tier
	RestoreMisses  map[string]int64 `json:"restore_misses"` // chunks by reason
	CopiedBytes    int64            `json:"copied_bytes"`   // that took a copy for want of alignment
	BrokenPromises int64            `json:"broken_promises"`
	Evicted        int64            `json:"evicted"` // blocks dropped to make room
	MovedBytes     int64            `json:"moved_bytes"`
	Damaged        int64            `json:"damaged"` // granules that did not match
	Leases         int              `json:"leases"`
	LeasedBytes    int64            `json:"leased_bytes"`

	Devices []DeviceStats `json:"devices"`
	Memory  []MemoryStats `json:"memory"`
}

// DeviceStats is one device's share.
type DeviceStats struct {
	Index         int     `json:"index"`
	Path          string  `json:"path"`
	Backend       string  `json:"backend"`
	Simulated     bool    `json:"simulated"`
	State         string  `json:"state"`
	Size          int64   `json:"size"`
	BytesRead     int64   `json:"bytes_read"`
	BytesWritten  int64   `json:"bytes_written"`
	Reads         int64   `json:"reads"`
	Writes        int64   `json:"writes"`
	Flushes       int64   `json:"flushes"`
	Errors        int64   `json:"errors"`
	InFlight      int     `json:"in_flight"`
	ReadLatencyUs float64 `json:"read_latency_us"` // moving average
}

// MemoryStats is one row of the memory table: who holds how much, and its cap.
type MemoryStats struct {
	Name string `json:"name"`
	Used int64  `json:"used"`
	Cap  int64  `json:"cap"` // 0: bounded by what Name says
}
