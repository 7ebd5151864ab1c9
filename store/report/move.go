package report

// Progress is how far a task is. Bytes are payload moved, one copy each.
type Progress struct {
	Task       string `json:"task"`        // what moved the blocks; empty: nothing did
	Device     int    `json:"device"`      // index of the drive that drain or re-replicate empties; -1: none
	Groups     int    `json:"groups"`      // stripe groups to be gone through; 0: not known before
	GroupsDone int    `json:"groups_done"` // of them, gone through
	Blocks     int64  `json:"blocks"`      // blocks moved
	Found      int64  `json:"found"`       // blocks that were there when a drain began; 0: not a drain, or a dry run
	// payload moved, one copy each; of a dry run: stored bytes that would be (bytes)
	Bytes int64 `json:"bytes"`
	// blocks that could not be read and stay, or were Cache blocks and are forgotten
	Unreadable int64   `json:"unreadable"`
	GivenUp    int64   `json:"given_up"` // of them, Durable blocks that were given up by force
	Evicted    int64   `json:"evicted"`  // Cache blocks that the store dropped meanwhile to make room
	Seconds    float64 `json:"seconds"`  // since it began (s)
}

// Compact is what Compact did, or with DryRun would do.
type Compact struct {
	Progress
	DryRun      bool    `json:"dry_run"`            // nothing was changed
	GroupsFreed int     `json:"groups_freed"`       // groups that are free now and were not
	FreeBefore  int     `json:"free_groups_before"` // groups that could be opened
	FreeAfter   int     `json:"free_groups_after"`  // the same afterwards
	LiveShare   float64 `json:"live_share"`         // share of the chosen groups that is alive
	// share of links between blocks of a chain that are broken, in the chosen groups
	Disorder     float64 `json:"disorder"`
	DisorderLeft float64 `json:"disorder_left"` // the same of all groups afterwards
	OutOfRoom    bool    `json:"out_of_room"`   // it ended early: no free group to write to
}

// MoveOptions say how Compact, Drain, Remove and Rebalance go about it.
type MoveOptions struct {
	Rate     int64          // bytes a second of payload; 0: as the drives are idle
	All      bool           // of Compact: every group, whether it needs it or not
	DryRun   bool           // say what would be done, and do nothing
	Force    bool           // of RemoveDevice: give durable blocks up that cannot be read
	Joining  int            // with DryRun: devices that will have been added
	Progress func(Progress) // called now and then, on the caller's goroutine
}

// NewDevice is a device to be added to a store.
type NewDevice struct {
	Path  string // of a file that is not there, or a blank block device
	Bytes int64  // of a file; 0: as large as the store's smallest device

	// Smaller takes a device that is so small that all together hold less with it. A group has a segment on each
	// device, so each counts as much as the smallest. Without it such a device is Invalid.
	Smaller bool
}
