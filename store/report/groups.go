package report

// Degraded are blocks that lack copies because drives cannot be read.
type Degraded struct {
	Devices    int   `json:"devices"`    // that cannot be read
	Blocks     int64 `json:"blocks"`     // with a copy missing
	Bytes      int64 `json:"bytes"`      // that lie on those devices
	Unreadable int64 `json:"unreadable"` // blocks no copy of which can be read
}

// StripeMap is how the segments of all devices stand.
type StripeMap struct {
	Devices []StripeDevice
	Groups  []StripeGroup // by number
}

// StripeDevice is one device's segments.
type StripeDevice struct {
	Index        int
	Path         string
	State        string
	Segments     int // it has room for
	Free         int // of them, in no group
	SegmentBytes int64
}

// StripeGroup is one stripe group: a segment on each of its devices. Bytes are of all its
// devices together, every copy counted: whole pages, and of a page that small values share the slots they take.
type StripeGroup struct {
	Group         uint32
	State         string // "open", "sealed", "cleaning"
	Devices       []int  // in striping order
	Segments      []int  // its segment on each
	Blocks        int64
	CapacityBytes int64 // 0 while it is open
	LiveBytes     int64
	HotBytes      int64   // live, and used since they were written here
	Age           float64 // since it was sealed, in capacities written
}
