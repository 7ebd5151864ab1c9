package report

// Scrub is what a scrub found and did.
type Scrub struct {
	Groups      int     `json:"groups"`           // stripe groups read
	OfGroups    int     `json:"of_groups"`        // stripe groups there were
	Blocks      int64   `json:"blocks"`           // read (blocks)
	Bytes       int64   `json:"bytes"`            // of payload, each copy counted (bytes)
	BadCopies   int64   `json:"bad_copies"`       // with a wrong copy and their bytes all there; not repaired (blocks)
	Repaired    int64   `json:"repaired"`         // with a wrong copy, written again (blocks)
	Lost        int64   `json:"lost"`             // no copy of which is right: forgotten (blocks)
	Unread      int64   `json:"unread"`           // a drive did not deliver (blocks)
	Headers     int64   `json:"headers"`          // headers and superblocks that were wrong
	LogsMended  int64   `json:"logs"`             // records and names that were missing in the logs, written again
	Unmended    int64   `json:"unmended"`         // superblocks, headers, logs and rows that could not be read or mended
	Seconds     float64 `json:"seconds"`          // it took (s)
	DryRun      bool    `json:"dry_run"`          // nothing was changed
	Faults      []Fault `json:"faults"`           // what was found, the first 1,000
	MoreFaults  int64   `json:"more_faults"`      // faults after the first 1,000
	BytesPerSec float64 `json:"bytes_per_second"` // payload read a second (bytes/s)
}

// Sound says that nothing was wrong.
func (r *Scrub) Sound() bool {
	return r.BadCopies+r.Repaired+r.Lost+r.Unread+r.Headers+r.LogsMended+r.Unmended+r.MoreFaults == 0 && len(r.Faults) == 0
}

// Ill says that something is lost, or was not read or mended.
func (r *Scrub) Ill() bool { return r.Lost+r.Unread+r.BadCopies+r.Unmended > 0 }

// Fault adds a fault.
func (r *Scrub) Fault(f Fault) { Note(&r.Faults, &r.MoreFaults, f) }

// Verify is what was found.
type Verify struct {
	Sound      bool   `json:"sound"`      // no fault
	Store      string `json:"store"`      // its id
	Clean      bool   `json:"clean"`      // it was closed in order
	Devices    int    `json:"devices"`    // devices of the store
	Groups     int    `json:"groups"`     // stripe groups in use
	Blocks     int64  `json:"blocks"`     // rows of namespaces and salts that are not purged (blocks)
	Namespaces int    `json:"namespaces"` // namespaces it has
	Pending    int    `json:"pending"`    // log entries the next open writes to the devices
	// records on devices of blocks that were evicted or never committed, of which the store knows
	Leftovers int64 `json:"leftovers"`
	// logs with pages that are damaged or that a crash or an error left unfinished; what is missing by that is among
	// the faults
	TornLogs int `json:"torn_logs"`
	// blocks with side rows: layers of clustered contexts. Rows are compared with the checksums of their block's record
	Sides int `json:"side_sets"`
	// of them, and of what was cut off, of an earlier version of the block or of none: not used, made anew or deleted
	StaleSides int     `json:"stale_side_sets"`
	Deep       bool    `json:"deep"`        // payload was read
	BytesRead  int64   `json:"bytes_read"`  // of payload, each copy counted (bytes)
	Seconds    float64 `json:"seconds"`     // it took (s)
	Faults     []Fault `json:"faults"`      // what was found, the first 1,000
	MoreFaults int64   `json:"more_faults"` // faults after the first 1,000
}

// Fault adds a fault.
func (r *Verify) Fault(f Fault) { Note(&r.Faults, &r.MoreFaults, f) }
