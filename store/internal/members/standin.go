package members

import (
	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/space"
)

// StandIn keeps the place of a drive, expected at path, that cannot be used: why says so.
func StandIn(r catalog.DeviceState, path string, why error) *space.Drive {
	d := &space.Drive{Index: r.Index, ID: r.ID, Path: path, Serial: r.Serial, SegBytes: r.SegmentBytes, Segments: int(r.Segments), Limit: int(r.Segments)}
	d.Absent = why
	err := why
	if skep.KindOf(why) != skep.Missing { // which names the path
		err = &skep.Error{Op: "open device", Kind: skep.Missing, Field: path, Err: why}
	}
	d.Gone(device.NewGone(path, r.Serial, max(r.Size, layout.SegmentOffset(1, r.SegmentBytes)), err), err)
	d.Standing.Say(why.Error())
	return d
}

// Removed keeps the place of a drive that was removed.
func Removed(i int, segBytes int64) *space.Drive {
	d := &space.Drive{Index: uint16(i), Path: "removed", SegBytes: segBytes}
	d.Removed.Store(true)
	d.Retired.Store(true)
	d.Gone(device.NewGone("", "", layout.SegmentOffset(1, segBytes), space.ErrRemoved), space.ErrRemoved)
	return d
}
