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
	JoinedBytes    int64            `json:"joined_bytes"`   // that another restore's read brought
	KeptBytes      int64            `json:"kept_bytes"`     // read by one restore and put into the DRAM tier because others under way wanted them
	BrokenPromises int64            `json:"broken_promises"`
	Overloaded     int64            `json:"overloaded"`     // calls refused because too much was under way
	Evicted        int64            `json:"evicted"`        // blocks dropped to make room
	EvictedUnread  int64            `json:"evicted_unread"` // of these, the ones never found by a lookup, read or put again since they were put
	MovedBytes     int64            `json:"moved_bytes"`
	Damaged        int64            `json:"damaged"` // granules that did not match
	Leases         int              `json:"leases"`
	LeasedBytes    int64            `json:"leased_bytes"`

	Admission   AdmissionStats  `json:"admission"`
	TwoPointers TwoPointerStats `json:"two_pointers"`
	Prefetch    PrefetchStats   `json:"prefetch"`
	Reuse       ReuseStats      `json:"reuse"`

	Tenants  []TenantStats  `json:"tenants"`  // the 64 that hold most
	Programs []ProgramStats `json:"programs"` // of Hint.Program
	Work     []WorkStats    `json:"work"`     // in the background, now

	Devices []DeviceStats `json:"devices"`
	Memory  []MemoryStats `json:"memory"`
}

// AdmissionStats is what became of Cache blocks on their way from DRAM to the drives.
type AdmissionStats struct {
	Policy          string           `json:"policy"`            // "all", "budget", "second-touch"
	BudgetPerDay    int64            `json:"budget_per_day"`    // of each device; 0: none
	BudgetLeft      int64            `json:"budget_left"`       // that may be written now, all devices; below 0: owed
	WaitingBlocks   int64            `json:"waiting_blocks"`    // in DRAM, not decided on
	WaitingBytes    int64            `json:"waiting_bytes"`     //
	QueuedBytes     int64            `json:"queued_bytes"`      // admitted, not written yet
	AdmittedBlocks  int64            `json:"admitted_blocks"`   //
	AdmittedBytes   int64            `json:"admitted_bytes"`    //
	PromisedBlocks  int64            `json:"promised_blocks"`   // of them, only because a lease or pin protects them
	Refused         map[string]int64 `json:"refused"`           // blocks by reason
	RefusedHits     int64            `json:"refused_hits"`      // blocks put again after they were refused: hits that cost
	RefusedHitBytes int64            `json:"refused_hit_bytes"` //
}

// PrefetchStats is what became of blocks read into DRAM because a hint said they are needed soon.
type PrefetchStats struct {
	Waiting     int64 `json:"waiting"`      // hints not followed yet
	Dropped     int64 `json:"dropped"`      // hints beyond what is remembered
	Promoted    int64 `json:"promoted"`     // hints whose request came before all was read: it read the rest
	ReadBytes   int64 `json:"read_bytes"`   // read ahead
	UsedBytes   int64 `json:"used_bytes"`   // of them, restored since
	WastedBytes int64 `json:"wasted_bytes"` // of them, that left memory unused or were not used in time
	UnusedBytes int64 `json:"unused_bytes"` // of them, in memory and not used yet: at most the budget
}

// TwoPointerStats is what restores beside computing did.
type TwoPointerStats struct {
	Declined      int64 `json:"declined"`       // loads that were expected to take longer than computing
	Judged        int64 `json:"judged"`         // of them, computed to their end since
	Right         int64 `json:"right"`          // of those, loads that would have taken longer indeed
	BoundaryPut   int64 `json:"boundary_put"`   // bytes of boundary activations committed
	BoundaryBytes int64 `json:"boundary_bytes"` // of them restored
	ByTokens      int64 `json:"by_tokens"`      // chains that could go either way and went by tokens
	ByLayers      int64 `json:"by_layers"`      // and by layers
	Crossover     int64 `json:"crossover"`      // tokens from which on such a chain alone goes by tokens, as last reckoned; 0: not yet
	Reckoned      int64 `json:"reckoned"`       // how often it was, because a cost was new or a speed had moved
}

// ReuseStats is what a sample of the looked-up keys says about sizes: the hit ratio an
// LRU of a size would have had lately.
type ReuseStats struct {
	References   int64        `json:"references"`    // keys looked up that it speaks of
	SampleRate   float64      `json:"sample_rate"`   // of the keys
	Dropped      int64        `json:"dropped"`       // sampled references that were not taken in, for want of time
	DRAM         float64      `json:"dram"`          // hit ratio of the DRAM tier's size alone
	TwiceDRAM    float64      `json:"twice_dram"`    //
	Devices      float64      `json:"devices"`       // of the devices' size
	TwiceDevices float64      `json:"twice_devices"` //
	Curve        []ReusePoint `json:"curve"`         // by size
}

// ReusePoint is one point of a miss-ratio curve.
type ReusePoint struct {
	Blocks   int64   `json:"blocks"`
	Bytes    int64   `json:"bytes"`
	HitRatio float64 `json:"hit_ratio"`
}

// TenantStats is what one tenant holds on the devices, one copy of each block.
type TenantStats struct {
	Name       string `json:"name"`
	Bytes      int64  `json:"bytes"`
	ShareBytes int64  `json:"share_bytes"` // 0: none
}

// ProgramStats is what the blocks that hints gave to a program brought.
type ProgramStats struct {
	Name           string `json:"name"`
	Blocks         int64  `json:"blocks"` // known to be its
	RestoredBlocks int64  `json:"restored_blocks"`
}

// WorkStats is a piece of background work under way.
type WorkStats struct {
	Name  string    `json:"name"`
	Unit  string    `json:"unit"`  // of Done and Total: bytes, blocks, groups
	Done  int64     `json:"done"`  //
	Total int64     `json:"total"` // 0: not known
	Since time.Time `json:"since"`
}

// WearStats is what a drive reports of its own wear. Known is false where it does not,
// or may not be asked.
type WearStats struct {
	Known        bool    `json:"known"`
	Why          string  `json:"why"`           // it is not known
	PercentUsed  float64 `json:"percent_used"`  // of the life the maker promises; may pass 100
	BytesWritten int64   `json:"bytes_written"` // by the host, over the drive's life
	PowerOnHours int64   `json:"power_on_hours"`
	Spare        float64 `json:"spare"`     // percent of spare blocks left
	DaysLeft     float64 `json:"days_left"` // at the rate of its life so far; 0: cannot be said
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
	WrongReads    int64   `json:"wrong_reads"` // that brought other bytes than were written
	InFlight      int     `json:"in_flight"`
	ReadLatencyUs float64 `json:"read_latency_us"` // moving average

	WriteLatencyUs float64   `json:"write_latency_us"` // moving average
	Wear           WearStats `json:"wear"`
}

// MemoryStats is one row of the memory table: who holds how much, and its cap.
type MemoryStats struct {
	Name string `json:"name"`
	Used int64  `json:"used"`
	Cap  int64  `json:"cap"` // 0: bounded by what Name says
}
