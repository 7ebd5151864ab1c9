package report

// Rebuild is what a rebuild found and did.
type Rebuild struct {
	Store      string  `json:"store"`              // its id
	Devices    int     `json:"devices"`            // devices it was made from
	Segments   int     `json:"segments"`           // segments whose headers were read
	Groups     int     `json:"groups"`             // stripe groups that hold something
	Freed      int     `json:"freed"`              // stripe groups that had been cleaned
	Namespaces int     `json:"namespaces"`         // namespaces found
	Purges     int     `json:"purges"`             // purged instances and salts
	Blocks     int64   `json:"blocks"`             // stored now (blocks)
	BlockBytes int64   `json:"block_bytes"`        // their payload (bytes)
	Older      int64   `json:"older"`              // records of blocks of which there was a newer one
	Deleted    int64   `json:"deleted"`            // records that tombstones cover, or that were never committed
	Purged     int64   `json:"purged"`             // records of purged namespaces and salts
	Unnamed    int64   `json:"unnamed"`            // records of namespaces of which the devices say nothing
	Verified   int64   `json:"verified"`           // whose payload was read: written after the last flush (blocks)
	Lost       int64   `json:"lost"`               // of these, not whole (blocks)
	Missing    int     `json:"missing"`            // devices it went on without
	Unreadable int64   `json:"unreadable"`         // lost with them, as far as the others know of them (blocks)
	Durable    int64   `json:"unreadable_durable"` // of these, in namespaces of class Durable (blocks)
	LogBytes   int64   `json:"log_bytes"`          // of headers and logs (bytes)
	ReadBytes  int64   `json:"read_bytes"`         // payload read (bytes)
	Seconds    float64 `json:"seconds"`            // it took (s)
	DryRun     bool    `json:"dry_run"`            // nothing was changed
	// kept, of which a missing device may have held a newer version (blocks)
	MayBeOld   int64   `json:"may_be_old"`
	Faults     []Fault `json:"faults"`      // what was found, the first 1,000
	MoreFaults int64   `json:"more_faults"` // faults after the first 1,000

	// Reads is what of headers and logs had to be read, by device path: for those who
	// compare the time with a plain read of the same.
	Reads []RebuildRead `json:"-"`

	// Levels is how many tables the rows of one place were spread over, for lack of memory: 1 where there was enough.
	Levels int `json:"-"`
}

// RebuildRead is one range of a device that a rebuild needs.
type RebuildRead struct {
	Path       string
	Off, Bytes int64
}

// RebuildProgress is told now and then.
type RebuildProgress struct {
	Stage    string // headers, logs, verify, settle
	Done, Of int    // segments, or blocks
	Records  int64
}
