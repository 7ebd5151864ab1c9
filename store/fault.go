package store

import "strings"

// Fault is one thing that is wrong: where, what, and what to do about it. Fields that do
// not apply are empty or zero.
type Fault struct {
	Device  string `json:"device"`  // path
	Group   int    `json:"group"`   // 0: none
	Segment int    `json:"segment"` // of the device
	Key     string `json:"key"`     // of the block, in hexadecimal
	What    string `json:"what"`    // the structure: superblock, segment header, log, record, block, catalog row, …
	Problem string `json:"problem"`
	Do      string `json:"do"`

	torn bool // a log's page that may be of an append that was cut off
}

func (f *Fault) String() string {
	var where []string
	if f.Device != "" {
		where = append(where, f.Device)
	}
	if f.Group != 0 {
		where = append(where, "group "+itoa(f.Group))
	}
	if f.Segment != 0 {
		where = append(where, "segment "+itoa(f.Segment))
	}
	if f.Key != "" {
		where = append(where, "block "+f.Key[:min(16, len(f.Key))])
	}
	out := f.What
	if len(where) > 0 {
		out += " (" + strings.Join(where, ", ") + ")"
	}
	return out + ": " + f.Problem + "; " + f.Do
}
