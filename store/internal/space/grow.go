package space

import (
	"cmp"
	"path/filepath"
	"slices"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// growth is how many more segments each drive that may grow without a limit would get now,
// if its file system were shared out among those on it and ReserveBytes left free. A drive
// whose file system does not say is not in it.
func (t *Table) growth(list []*Drive) map[*Drive]int {
	type fileSystem struct {
		free   int64
		drives int64
	}
	found := map[uint64]*fileSystem{}
	on := map[*Drive]*fileSystem{}
	for _, d := range list {
		id, free, ok := t.FileSystem(filepath.Dir(d.Path))
		if !ok {
			continue
		}
		if found[id] == nil {
			found[id] = &fileSystem{free: max(0, free-t.ReserveBytes)}
		}
		on[d] = found[id]
		on[d].drives++
	}
	out := map[*Drive]int{}
	for d, f := range on {
		out[d] = int(min(f.free/f.drives/t.SegmentBytes, Unlimited))
	}
	return out
}

// Uncapped are the drives that grow as their file systems allow.
func (t *Table) Uncapped() (list []*Drive) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, d := range t.Drives() {
		if d.Limit == Unlimited && !d.Retired.Load() && d.Absent == nil {
			list = append(list, d)
		}
	}
	return list
}

// growDrives makes room for another group on drives that have none and may grow. REQUIRES: t.growing.
func (t *Table) growDrives() {
	var growing []*Drive
	t.mu.Lock()
	for _, d := range t.Drives() {
		// The cleaner's reserve must be allotted, not only allowed: a file system that
		// fills up must leave cleaning something to write to.
		if d.Failed == nil && len(d.Free) <= t.KeptFree && d.Segments < d.Limit {
			growing = append(growing, d)
		}
	}
	t.mu.Unlock()
	if len(growing) == 0 {
		return
	}
	fits := t.growth(t.Uncapped())
	stunted := false
	for _, d := range growing {
		t.mu.Lock()
		segments, limit := d.Segments, d.Limit
		t.mu.Unlock()
		// Few and large steps: a file system may hold up the writes under way for each.
		step := min(max(segments, int(growLeast/d.SegBytes), 1), max(1, int(growBytes/d.SegBytes)))
		if n, ok := fits[d]; ok {
			step = max(1, min(step, n))
		}
		// Its size may be larger: when it grew before, the flush failed.
		size := d.Dev.Size()
		to := min(limit, max(segments+step, layout.Segments(size, d.SegBytes)))
		size = max(size, d.SegmentOffset(uint32(to)))
		err := t.checkReserve(d, size-d.Dev.Size())
		since := FailedFlushes([]*Drive{d})
		if err == nil {
			err = d.Dev.Grow(size)
		}
		if err == nil {
			if e := t.FlushWritten(t.Context, []*Drive{d}, since); e != nil { // it is not its length for good
				if t.Context.Err() == nil {
					t.Fence(d, e) // else the next group would take the cleaner's reserve of it
				}
				continue
			}
		}
		t.mu.Lock()
		if err != nil {
			d.wanted, d.Stunted = max(d.wanted, limit), time.Now()
			d.Limit = segments // the file system is full: what is there is the cap until there is space again
			stunted = true
			t.mu.Unlock()
			t.Log.Warn("device cannot grow; its size is the cap for now. "+
				"Free space in its file system, or lower ReserveBytes, or set CapacityBytes",
				"device", d.Path, "bytes", d.Dev.Size(), "error", err)
			continue
		}
		for n := segments; n < to; n++ {
			d.Free = append(d.Free, uint32(n))
		}
		slices.SortFunc(d.Free, func(a, b uint32) int { return cmp.Compare(b, a) })
		d.Segments = to
		t.mu.Unlock()
	}
	if stunted {
		t.Reroom()
	}
}

// checkReserve keeps a growing device from filling its file system.
func (t *Table) checkReserve(d *Drive, more int64) error {
	_, free, ok := t.FileSystem(filepath.Dir(d.Path))
	if !ok || free-more >= t.ReserveBytes {
		return nil
	}
	return &skep.Error{Op: "grow device", Kind: skep.Full, Field: "free bytes of the file system", Value: free,
		Limit: t.ReserveBytes + more}
}

// growAgain is how long a device that could not grow is taken as it is.
const growAgain = 5 * time.Second

// A file device grows by as much as it has, within these limits.
const (
	growLeast = 64 << 20
	growBytes = 1 << 30
)

// Unlimited stands for no limit.
const Unlimited = 1 << 30

const (
	// lookEvery is how often file systems are looked at.
	lookEvery = 250 * time.Millisecond
	// reckonEvery is how often the room of a store without a cap is reckoned anew.
	reckonEvery = 5 * time.Second
)

// WatchFileSystems looks after devices whose file systems fill up, until the store closes. They are preallocated, so a
// full file system keeps them from growing and from nothing else: what they have is the cap then, until there is space
// again.
func (t *Table) WatchFileSystems() {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	reckoned := time.Now()
	for {
		select {
		case <-t.Closing:
			return
		case <-tick.C:
		}
		t.TryGrowing()
		if time.Since(reckoned) > reckonEvery && len(t.Uncapped()) > 0 {
			reckoned = time.Now()
			t.Reroom() // others use the file systems, too
		}
	}
}

// TryGrowing lets devices grow again that could not for a while, where there is space now.
func (t *Table) TryGrowing() {
	t.mu.Lock()
	var list []*Drive
	for _, d := range t.Drives() {
		if d.wanted > d.Limit && time.Since(d.Stunted) > growAgain {
			list = append(list, d)
		}
	}
	t.mu.Unlock()
	grown := false
	for _, d := range list {
		grow := t.checkReserve(d, d.SegBytes) == nil
		grown = grown || grow
		t.mu.Lock()
		d.Stunted = time.Now()
		if grow {
			d.Limit = d.wanted
		}
		t.mu.Unlock()
		if grow {
			t.Log.Info("device may grow again: its file system has room", "device", d.Path)
		}
	}
	if grown {
		t.Reroom()
	}
}

// WarnOfCramped says at an open what will keep devices from growing.
func (t *Table) WarnOfCramped() {
	for _, d := range t.Drives() {
		if d.Limit != Unlimited || d.Absent != nil {
			continue
		}
		if err := t.checkReserve(d, growLeast); err != nil {
			t.Log.Warn("device cannot grow: puts will find room only by dropping what is stored, or be declined. "+
				"Free space in its file system, or lower ReserveBytes, or set CapacityBytes",
				"device", d.Path, "bytes", d.Dev.Size(), "error", err)
		}
	}
}
