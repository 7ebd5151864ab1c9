package layout

import (
	"fmt"

	"github.com/skepkv/skep"
)

// Sparse reads want single entries (the KV of one token at one layer), so a clustered
// context is stored entry-major: a record an entry, all of one size, whole pages. A
// device's records are numbered; Spot is one record's place.
//
//	2 clusters of 5 and 4 entries on 4 devices, strips of 1 (the paper's eq. 7)
//
//	slot      dev 0    dev 1    dev 2    dev 3
//	0         a0       a1       a2       a3        cluster a begins on device 0
//	1         a4       b0       b1       b2        cluster b on device 5 mod 4
//	2         b3
//
// A cluster's records on one device are neighbours, so what of the cluster is wanted
// comes in as few reads as there are devices.

// Spot is where a copy of an entry lies.
type Spot struct {
	Device uint32
	Slot   uint32 // record, from the device's first
}

// NoEntry stands in a slot that holds none.
const NoEntry = ^uint32(0)

// Limits of a placement.
const (
	MaxSparseEntries = 1 << 22
	MaxSparseRecords = 1 << 26
)

// PlaceOptions say how clusters are dealt out.
type PlaceOptions struct {
	Devices int
	// Strip is how many successive entries of a cluster one device gets before the next
	// takes over; 0: 1, as in the paper. StripFor chooses it for a drive.
	Strip int
	// Whole puts each cluster on one device.
	Whole bool
	// MaxRecords is the byte budget, in records, first copies included: once it is used
	// up, an entry that has a copy gets no further one. 0: no limit.
	MaxRecords int
}

// Placement says where the copies of each entry lie. It is made once, by PlaceClusters,
// and grows by Append.
type Placement struct {
	devices int
	spots   [][]Spot   // [entry]
	at      [][]uint32 // [device][slot] entry
	next    int        // eq. 7's pointer, in strips
	records int
}

// PlaceClusters deals clusters over devices: cluster i begins on device p mod n, where p
// counts the strips before it (eq. 7), and goes on around. An entry of several clusters
// has as many copies, on the same device too if that is how it falls. What no cluster
// names is dealt out last, in order, so that every entry has a place.
func PlaceClusters(entries int, clusters [][]uint32, o PlaceOptions) (*Placement, error) {
	const op = "place clusters"
	if entries < 1 || entries > MaxSparseEntries {
		return nil, skep.Invalidf(op, "entries", entries, fmt.Sprintf("1 to %d", MaxSparseEntries))
	}
	if o.Devices < 1 || o.Devices > MaxDevices {
		return nil, skep.Invalidf(op, "devices", o.Devices, fmt.Sprintf("1 to %d", MaxDevices))
	}
	if o.Strip < 0 || o.MaxRecords < 0 {
		return nil, skep.Invalidf(op, "strip and records", min(o.Strip, o.MaxRecords), "0 or more")
	}
	members := 0
	for _, c := range clusters {
		members += len(c)
		for _, e := range c {
			if int(e) >= entries {
				return nil, skep.Invalidf(op, "entry", e, fmt.Sprintf("below %d", entries))
			}
		}
	}
	if members > MaxSparseRecords {
		return nil, skep.Invalidf(op, "members of clusters", members, fmt.Sprintf("at most %d", MaxSparseRecords))
	}
	p := &Placement{devices: o.Devices, spots: make([][]Spot, entries), at: make([][]uint32, o.Devices)}
	strip := max(o.Strip, 1)
	missing := entries
	for _, c := range clusters {
		placed := 0
		for _, e := range c {
			has := len(p.spots[e]) > 0
			if has && o.MaxRecords > 0 && p.records+missing >= o.MaxRecords {
				continue
			}
			if !has {
				missing--
			}
			d := p.next
			if !o.Whole {
				d += placed / strip
			}
			p.put(e, d%o.Devices)
			placed++
		}
		if o.Whole {
			p.next++
		} else {
			p.next += (placed + strip - 1) / strip
		}
	}
	placed := 0
	for e := range p.spots {
		if len(p.spots[e]) == 0 {
			p.put(uint32(e), (p.next+placed/strip)%o.Devices)
			placed++
		}
	}
	p.next += (placed + strip - 1) / strip
	return p, nil
}

func (p *Placement) put(e uint32, device int) {
	p.spots[e] = append(p.spots[e], Spot{uint32(device), uint32(len(p.at[device]))})
	p.at[device] = append(p.at[device], e)
	p.records++
}

// Append places a new copy of entry e (one more than there were, or a further copy) at
// the end of a device's records: an overflow run, until the context is laid out anew.
func (p *Placement) Append(e uint32, device int) (Spot, error) {
	if int(e) > len(p.spots) || len(p.spots) >= MaxSparseEntries {
		return Spot{}, skep.Invalidf("append entry", "entry", e, fmt.Sprintf("at most %d", len(p.spots)))
	}
	if device < 0 || device >= p.devices {
		return Spot{}, skep.Invalidf("append entry", "device", device, fmt.Sprintf("below %d", p.devices))
	}
	if int(e) == len(p.spots) {
		p.spots = append(p.spots, nil)
	}
	p.put(e, device)
	return p.spots[e][len(p.spots[e])-1], nil
}

// PlacementOf rebuilds a placement from what lies in each device's slots.
func PlacementOf(entries int, at [][]uint32) (*Placement, error) {
	const op = "placement"
	if entries < 1 || entries > MaxSparseEntries || len(at) < 1 || len(at) > MaxDevices {
		return nil, skep.Invalidf(op, "entries and devices", entries, fmt.Sprintf("1 to %d entries, 1 to %d devices", MaxSparseEntries, MaxDevices))
	}
	p := &Placement{devices: len(at), spots: make([][]Spot, entries), at: at}
	for d, slots := range at {
		for s, e := range slots {
			if e == NoEntry {
				continue
			}
			if int(e) >= entries {
				return nil, skep.Invalidf(op, "entry", e, fmt.Sprintf("below %d", entries))
			}
			p.spots[e] = append(p.spots[e], Spot{uint32(d), uint32(s)})
			p.records++
		}
	}
	return p, nil
}

// Devices is the number of devices.
func (p *Placement) Devices() int { return p.devices }

// Entries is the number of entries.
func (p *Placement) Entries() int { return len(p.spots) }

// Records is the number of records, copies counted.
func (p *Placement) Records() int { return p.records }

// Spots are the places of an entry's copies; not to be changed.
func (p *Placement) Spots(e uint32) []Spot {
	if int(e) >= len(p.spots) {
		return nil
	}
	return p.spots[e]
}

// Slots lists what lies on a device, slot by slot; not to be changed.
func (p *Placement) Slots(device int) []uint32 { return p.at[device] }

// RunsOf counts the runs of neighbouring records a cluster has when each entry is taken
// where it continues one, if anywhere: what a cluster costs in reads, and what grows as
// appended entries lie in overflow runs.
func (p *Placement) RunsOf(cluster []uint32) int {
	in := make(map[Spot]bool, len(cluster))
	for _, e := range cluster {
		for _, s := range p.Spots(e) {
			in[s] = true
		}
	}
	runs := 0
	for _, e := range cluster {
		joined := false
		for _, s := range p.Spots(e) {
			joined = joined || s.Slot > 0 && in[Spot{s.Device, s.Slot - 1}]
		}
		if !joined {
			runs++
		}
	}
	return runs
}

// RewriteRuns is the number of runs a cluster may have before it should be laid out anew:
// twice what it had when it was placed, and two more.
func RewriteRuns(placed int) int { return 2*placed + 2 }

// StripFor is how many entries of a cluster should lie side by side on a device: the
// fewest at which one read of them is bound by bytes and no longer by operations.
func StripFor(c ReadCost, pages int) int {
	for r := 1; r < 16; r++ {
		if float64(r*pages)*c.Page >= 0.95*(c.Of(r*pages)) {
			return r
		}
	}
	return 16
}
