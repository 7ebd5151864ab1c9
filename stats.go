package skep

import "time"

// Stats is what a store did since it was opened, and how it stands. Sizes are bytes.
type Stats struct {
	Backend       string    `json:"backend"`        // "iouring", "pool", "memory"; of the devices
	BackendReason string    `json:"backend_reason"` // why not another
	Simulated     bool      `json:"simulated"`      // a device is a simulation
	Opened        time.Time `json:"opened"`         // when the store was opened
	Epoch         uint64    `json:"epoch"`          // of its event cursors: another one at each open (Cursor)
	State         string    `json:"state"`          // "ok", "read-only"; or "full: ", "read-only: ", "failed: " and why
	Idle          bool      `json:"idle"`           // of a server: clients have left; false: not known, or not

	Blocks        int64 `json:"blocks"`         // stored
	BlockBytes    int64 `json:"block_bytes"`    // payload of stored blocks, one copy each; purged ones count until they are cleaned away
	CapacityBytes int64 `json:"capacity_bytes"` // the cap that was set on the devices; what was added later has its size beyond it; 0: none
	DeviceBytes   int64 `json:"device_bytes"`   // size of the devices, as far as they are allotted
	RoomBytes     int64 `json:"room_bytes"`     // payload that they have room for at most, every copy counted: each as much as the smallest; 0: not known
	FreeGroups    int   `json:"free_groups"`    // stripe groups that are free
	Groups        int   `json:"groups"`         // stripe groups in use

	Lookups        int64            `json:"lookups"`         // calls of Lookup
	LookupKeys     int64            `json:"lookup_keys"`     // keys looked up
	LookupHits     int64            `json:"lookup_hits"`     // keys found
	PutBlocks      int64            `json:"put_blocks"`      // committed
	PutBytes       int64            `json:"put_bytes"`       // payload of them, one copy each
	PutExists      int64            `json:"put_exists"`      // blocks that were there already
	PutDiffers     int64            `json:"put_differs"`     // Exists with other bytes
	PutDeclined    map[string]int64 `json:"put_declined"`    // by reason
	RestoredBlocks int64            `json:"restored_blocks"` // blocks delivered by restores
	RestoredBytes  int64            `json:"restored_bytes"`  // bytes delivered by restores
	RestoreTiers   map[string]int64 `json:"restore_tiers"`   // bytes by tier
	RestoreMisses  map[string]int64 `json:"restore_misses"`  // chunks by reason
	CopiedBytes    int64            `json:"copied_bytes"`    // that took a copy for want of alignment
	JoinedBytes    int64            `json:"joined_bytes"`    // that another restore's read brought
	KeptBytes      int64            `json:"kept_bytes"`      // read by one restore and put into the DRAM tier because others under way wanted them
	BrokenPromises int64            `json:"broken_promises"` // leased blocks that could not be restored
	Overloaded     int64            `json:"overloaded"`      // calls refused because too much was under way
	Evicted        int64            `json:"evicted"`         // blocks dropped to make room
	EvictedUnread  int64            `json:"evicted_unread"`  // of these, the ones never found by a lookup, read or put again since they were put
	MovedBytes     int64            `json:"moved_bytes"`     // payload written again by cleaning
	Damaged        int64            `json:"damaged"`         // blocks whose bytes did not match
	Leases         int              `json:"leases"`          // held now
	LeasedBytes    int64            `json:"leased_bytes"`    // payload under them: a block counts once, however many leases it has; of several nodes, at each that leased it

	Admission   AdmissionStats  `json:"admission"`    // of Cache blocks on their way from DRAM to the drives
	TwoPointers TwoPointerStats `json:"two_pointers"` // of restores beside computing
	Prefetch    PrefetchStats   `json:"prefetch"`     // of blocks read ahead because of hints
	Reuse       ReuseStats      `json:"reuse"`        // hit ratios by size, as lookups were seen

	Hedges HedgeStats `json:"hedges"` // of a Store of several nodes

	Tenants  []TenantStats  `json:"tenants"`  // the 64 that hold most
	Programs []ProgramStats `json:"programs"` // of Hint.Program
	Work     []WorkStats    `json:"work"`     // in the background, now

	Devices []DeviceStats `json:"devices"` // drives of the store
	ToName  []string      `json:"to_name"` // paths of Devices, where the store was told to open others: its settings should name these; else none
	Memory  []MemoryStats `json:"memory"`  // what memory is held for
}

// AdmissionStats is what became of Cache blocks on their way from DRAM to the drives.
type AdmissionStats struct {
	Policy          string           `json:"policy"`            // "all", "budget", "second-touch"
	BudgetPerDay    int64            `json:"budget_per_day"`    // of each device; 0: none
	BudgetLeft      int64            `json:"budget_left"`       // that may be written now, all devices; below 0: owed
	WaitingBlocks   int64            `json:"waiting_blocks"`    // in DRAM, not decided on
	WaitingBytes    int64            `json:"waiting_bytes"`     // payload of them
	QueuedBytes     int64            `json:"queued_bytes"`      // admitted, not written yet
	AdmittedBlocks  int64            `json:"admitted_blocks"`   // blocks written to the drives, or to be
	AdmittedBytes   int64            `json:"admitted_bytes"`    // payload of them
	PromisedBlocks  int64            `json:"promised_blocks"`   // of them, only because a lease or pin protects them
	Refused         map[string]int64 `json:"refused"`           // blocks by reason
	RefusedHits     int64            `json:"refused_hits"`      // blocks put again after they were refused: hits that cost
	RefusedHitBytes int64            `json:"refused_hit_bytes"` // payload of them
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

// HedgeStats is what another node of a cluster was asked for besides, because one was late.
type HedgeStats struct {
	Lookups    int64 `json:"lookups"`     // calls to other nodes for lookups
	LookupsWon int64 `json:"lookups_won"` // of these, the ones that were answered first
	Runs       int64 `json:"runs"`        // runs of restores that were taken from a node
	RunsWon    int64 `json:"runs_won"`    // of these, the ones that came whole from another node
	Bytes      int64 `json:"bytes"`       // of the runs
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
	References   int64        `json:"references"`    // keys looked up that the curve speaks of
	SampleRate   float64      `json:"sample_rate"`   // share of the keys that were followed
	Dropped      int64        `json:"dropped"`       // sampled references that were left out, for want of time
	DRAM         float64      `json:"dram"`          // hit ratio of the DRAM tier's size alone
	TwiceDRAM    float64      `json:"twice_dram"`    // of twice that
	Devices      float64      `json:"devices"`       // of the devices' size
	TwiceDevices float64      `json:"twice_devices"` // of twice that
	Curve        []ReusePoint `json:"curve"`         // hit ratio by size
}

// ReusePoint is one point of a miss-ratio curve.
type ReusePoint struct {
	Blocks   int64   `json:"blocks"`    // a size (blocks)
	Bytes    int64   `json:"bytes"`     // the same (bytes)
	HitRatio float64 `json:"hit_ratio"` // of an LRU of that size
}

// TenantStats is what one tenant holds on the devices, one copy of each block.
type TenantStats struct {
	Name       string `json:"name"`        // the tenant's name
	Bytes      int64  `json:"bytes"`       // it holds, one copy of each block
	ShareBytes int64  `json:"share_bytes"` // 0: none
}

// ProgramStats is what the blocks that hints gave to a program brought.
type ProgramStats struct {
	Name           string `json:"name"`            // the program's name
	Blocks         int64  `json:"blocks"`          // known to be its
	RestoredBlocks int64  `json:"restored_blocks"` // of them, delivered by restores
}

// WorkStats is a piece of background work under way.
type WorkStats struct {
	Name  string    `json:"name"`  // what work it is
	Unit  string    `json:"unit"`  // of Done and Total: bytes, blocks, groups
	Done  int64     `json:"done"`  // how far it is
	Total int64     `json:"total"` // 0: not known
	Since time.Time `json:"since"` // when it began
}

// WearStats is what a drive reports of its own wear. Known is false where it does not,
// or may not be asked.
type WearStats struct {
	Known        bool    `json:"known"`          // the drive says how worn it is
	Why          string  `json:"why"`            // it is not known
	PercentUsed  float64 `json:"percent_used"`   // of the life the maker promises; may pass 100
	BytesWritten int64   `json:"bytes_written"`  // by the host, over the drive's life
	PowerOnHours int64   `json:"power_on_hours"` // over the drive's life
	Spare        float64 `json:"spare"`          // percent of spare blocks left
	DaysLeft     float64 `json:"days_left"`      // at the rate of its life so far; 0: cannot be said
}

// DeviceStats is one device's share.
type DeviceStats struct {
	Index         int     `json:"index"`           // its number
	Path          string  `json:"path"`            // where it is
	Backend       string  `json:"backend"`         // what moves its bytes
	Simulated     bool    `json:"simulated"`       // its speed is a model's
	State         string  `json:"state"`           // in use, fenced, dead, …, and why
	Size          int64   `json:"size"`            // of the drive
	BytesRead     int64   `json:"bytes_read"`      // from the drive
	BytesWritten  int64   `json:"bytes_written"`   // to the drive
	Reads         int64   `json:"reads"`           // operations
	Writes        int64   `json:"writes"`          // operations
	Flushes       int64   `json:"flushes"`         // operations
	Errors        int64   `json:"errors"`          // operations that failed
	WrongReads    int64   `json:"wrong_reads"`     // that brought other bytes than were written
	Unannounced   int64   `json:"unannounced"`     // operations that were done, and no signal said so
	Reissued      int64   `json:"reissued"`        // operations that io_uring did not begin, done by system calls
	InFlight      int     `json:"in_flight"`       // operations under way
	ReadLatencyUs float64 `json:"read_latency_us"` // moving average

	WriteLatencyUs float64   `json:"write_latency_us"` // moving average
	Wear           WearStats `json:"wear"`             // what the drive reports of it
}

// MemoryStats is one row of the memory table: who holds how much, and its cap.
type MemoryStats struct {
	Name string `json:"name"` // who holds it
	Used int64  `json:"used"` // held now (bytes)
	Cap  int64  `json:"cap"`  // the most it may hold; 0: bounded by what its name says (bytes)
}
