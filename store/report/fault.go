package report

import (
	"strconv"
	"strings"
)

// Fault is one thing that is wrong: where, what, and what to do about it. Fields that do
// not apply are empty or zero.
type Fault struct {
	Device  string `json:"device"`  // path of the device
	Group   int    `json:"group"`   // stripe group; 0: none
	Segment int    `json:"segment"` // of the device
	Key     string `json:"key"`     // of the block, in hexadecimal
	// structure: superblock, segment header, log, record, block, catalog row, catalog group, namespace, device,
	// catalog, index, side rows
	What    string `json:"what"`
	Problem string `json:"problem"` // what is wrong with it
	Do      string `json:"do"`      // what to do

	Torn bool `json:"-"` // a log's page that may be of an append that was cut off
}

func (f *Fault) String() string {
	var where []string
	if f.Device != "" {
		where = append(where, f.Device)
	}
	if f.Group != 0 {
		where = append(where, "group "+strconv.Itoa(f.Group))
	}
	if f.Segment != 0 {
		where = append(where, "segment "+strconv.Itoa(f.Segment))
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

// MaxFaults is how many faults a report lists.
const MaxFaults = 1000

// Note adds a fault to a report's list, or counts it where that has enough.
func Note(list *[]Fault, more *int64, f Fault) {
	if len(*list) < MaxFaults {
		*list = append(*list, f)
	} else {
		*more++
	}
}
