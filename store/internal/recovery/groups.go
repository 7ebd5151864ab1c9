package recovery

import (
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/members"
	"github.com/skepkv/skep/store/internal/space"
)

// Groups makes the groups and the lists of free segments. Every group is taken as
// sealed: what was open when the store ended is not written to again.
func (ld *Loader) Groups(ctx context.Context, clean bool) error {
	rows, err := ld.Catalog.Groups(ctx)
	if err != nil {
		return err
	}
	ld.loseTruncated(rows)
	used := make([]map[uint32]bool, len(ld.Members.Opened))
	for i := range used {
		used[i] = map[uint32]bool{}
	}
	for _, r := range rows {
		free := r.State == catalog.GroupFree
		if !free && slices.ContainsFunc(r.Devices, ld.isRemoved) {
			if free, err = ld.isBare(ctx, r.Group); err != nil { // a spare, say, that nobody gave back
				return err
			}
		}
		if free {
			ld.Root.Pass(r.Generation)
			ld.leftFree[r.Group] = true
			ld.Space.Pass(r.Group)
			continue
		}
		g := space.Found(r)
		if r.State == catalog.GroupOpen {
			ld.wasOpen = append(ld.wasOpen, g)
		}
		switch {
		case r.State == catalog.GroupCleaning, r.State == catalog.GroupOpen && !clean:
			g.Unsure = true
			ld.Space.Suspect(g)
		}
		for _, m := range r.Devices {
			if int(m.Device) >= len(ld.Members.Opened) {
				return &skep.Error{Op: "catalog", Kind: skep.Damaged, Field: "device of group " + strconv.Itoa(int(r.Group)), Value: m.Device, Limit: "below " + strconv.Itoa(len(ld.Members.Opened))}
			}
			g.Drives = append(g.Drives, ld.Members.Opened[m.Device])
			g.Segments = append(g.Segments, m.Segment)
			used[m.Device][m.Segment] = true
		}
		ld.Space.Add(g)
		ld.Root.Pass(r.Generation)
		if first := &ld.found[0]; *first == 0 || r.OpenedSeq < *first {
			*first = r.OpenedSeq
		}
	}
	ld.found[1] = ld.Root.Last()
	for i, d := range ld.Members.Opened {
		d.FreeAll(func(n uint32) bool { return used[i][n] })
	}
	return nil
}

// isRemoved says of a place in a group that its drive was taken out of the store.
func (ld *Loader) isRemoved(m catalog.Member) bool {
	return int(m.Device) < len(ld.Members.Opened) && ld.Members.Opened[m.Device].Removed.Load()
}

// isBare says that no block's row lies in a group.
func (ld *Loader) isBare(ctx context.Context, num uint32) (bool, error) {
	bare := true
	err := ld.Catalog.ScanGroup(ctx, num, func(layout.Location, []byte) error {
		bare = false
		return nil
	})
	return bare, err
}

// loseTruncated puts a stand-in in the place of a drive that ends before a segment of one of its
// groups.
func (ld *Loader) loseTruncated(rows []catalog.GroupState) {
	for _, r := range rows {
		for _, m := range r.Devices {
			if r.State == catalog.GroupFree || int(m.Device) >= len(ld.Members.Opened) {
				continue
			}
			d := ld.Members.Opened[m.Device]
			if d.Absent != nil || d.Removed.Load() || int(m.Segment) < d.Segments {
				continue
			}
			if int(m.Segment) < layout.Segments(d.Dev.Size(), d.SegBytes) { // from before the cap counted
				d.Segments = int(m.Segment) + 1
				d.Limit = max(d.Limit, d.Segments)
				continue
			}
			why := &skep.Error{Op: "open store", Kind: skep.Damaged, Field: "size of " + d.Path, Value: d.Dev.Size(),
				Limit: "at least " + strconv.FormatInt(layout.SegmentOffset(int(m.Segment)+1, d.SegBytes), 10) + ": the device was truncated"}
			ld.Log.Error("device truncated: the store goes on without it", "device", d.Index, "path", d.Path, "error", errors.Join(why, d.Dev.Close()))
			ld.Members.Opened[m.Device] = members.StandIn(d.Row(), d.Path, why)
		}
	}
}
