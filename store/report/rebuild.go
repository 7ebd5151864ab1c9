package report

// Rebuild is what a rebuild found and did.
type Rebuild struct {
	Store      string  `json:"store"`
	Devices    int     `json:"devices"`
	Segments   int     `json:"segments"`           // looked at
	Groups     int     `json:"groups"`             // that hold something
	Freed      int     `json:"freed"`              // groups that had been cleaned
	Namespaces int     `json:"namespaces"`         //
	Purges     int     `json:"purges"`             //
	Blocks     int64   `json:"blocks"`             // stored now
	BlockBytes int64   `json:"block_bytes"`        // their payload
	Older      int64   `json:"older"`              // records of blocks of which there was a newer one
	Deleted    int64   `json:"deleted"`            // records that tombstones covered
	Purged     int64   `json:"purged"`             // records of purged namespaces and salts
	Unnamed    int64   `json:"unnamed"`            // records of namespaces of which nothing is known
	Verified   int64   `json:"verified"`           // blocks whose payload was read
	Lost       int64   `json:"lost"`               // of these, not whole
	Missing    int     `json:"missing"`            // devices it went on without
	Unreadable int64   `json:"unreadable"`         // blocks of which these held all copies of something
	Durable    int64   `json:"unreadable_durable"` // of these, in Durable namespaces
	LogBytes   int64   `json:"log_bytes"`          // read of logs and headers
	ReadBytes  int64   `json:"read_bytes"`         // payload read
	Seconds    float64 `json:"seconds"`
	DryRun     bool    `json:"dry_run"`
	MayBeOld   int64   `json:"may_be_old"` // blocks kept of which a missing device may have held a newer version
	Faults     []Fault `json:"faults"`
	MoreFaults int64   `json:"more_faults"` // that were not listed

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
