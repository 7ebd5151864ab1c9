package opening

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/members"
	"github.com/skepkv/skep/store/internal/paths"
	"github.com/skepkv/skep/store/internal/places"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// openDrives opens the devices the catalog names, wherever they are now.
func (p *Opening) openDrives(ctx context.Context) error {
	rows, err := p.Catalog.Devices(ctx)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return &skep.Error{Op: "catalog", Kind: skep.Damaged, Field: "device rows", Value: 0, Limit: "at least 1"}
	}
	byID := map[[16]byte]catalog.DeviceState{}
	count := 0
	for _, r := range rows {
		count = max(count, int(r.Index)+1)
		if segment.DeviceID(r.ID) == p.givenUpID(int(r.Index)) {
			p.gone = append(p.gone, r.Index)
		}
		if r.State != catalog.DeviceRemoved {
			byID[r.ID] = r
			if !slices.Contains(p.gone, r.Index) {
				p.live++
			}
		}
	}
	if !p.Own {
		owner, known, err := p.Catalog.Owner(ctx)
		if err != nil {
			return err
		}
		p.Places = places.Of(p.Dir, p.ID, owner, known)
	}
	var left int // given up, and in no group any more
	for _, r := range rows {
		if r.State == catalog.DeviceRemoved && slices.Contains(p.gone, r.Index) {
			left++
		}
	}
	if err := p.checkDeviceCount(len(byID), left); err != nil {
		return err
	}
	p.setAsideOld(ctx, rows)
	p.Members.Opened = make([]*space.Drive, count)
	lacks := map[uint16]lack{}
	var named []lack
	for i, path := range p.Devices {
		if err := p.openDrive(ctx, i, path, byID); goesOn(err) {
			named = append(named, lack{path, err})
		} else if err != nil {
			return err
		}
	}
	for _, r := range rows {
		if r.State == catalog.DeviceRemoved || p.Members.Opened[r.Index] != nil {
			continue
		}
		path, err := p.locate(r)
		if len(p.Devices) > 0 {
			if err == nil && !isAmong(path, named) && p.isThere(path) {
				return p.errNamed(rows, "without device "+strconv.Itoa(int(r.Index))+", "+path, skep.Missing)
			}
			lacks[r.Index], named = takeLack(path, named)
			continue
		}
		if i := p.openAt(path); err == nil && i >= 0 {
			err = &skep.Error{Op: "open device", Kind: skep.Missing, Field: path, Value: "device " + strconv.Itoa(i),
				Limit: "device " + strconv.Itoa(int(r.Index))}
		}
		if err == nil {
			err = p.openDrive(ctx, int(r.Index), path, byID)
		}
		if err != nil && !goesOn(err) {
			return err
		}
		if err != nil {
			lacks[r.Index] = lack{path, err}
		}
	}
	for i, l := range named { // no place is left for it
		if i < left { // whoever names it does not know yet that it was given up
			p.Log.Warn("devices names one that the store was rebuilt without", "path", l.path, "error", l.why)
			continue
		}
		if !p.leftUnused(ctx, l.path) {
			return p.errNamed(rows, "with "+l.path, l.why)
		}
		p.leftByAdd(l.path)
	}
	if err := p.standIns(rows, lacks); err != nil {
		return err
	}
	p.noteNamed()
	return nil
}

// leftUnused says whether the device at path is what an add that was cut short has left: the store's by its
// superblock, not in the catalog, and never written to. REQUIRES: every device of the catalog has its place.
func (p *Opening) leftUnused(ctx context.Context, path string) bool {
	dev, err := p.OpenDevice(0, path, false, 0)
	if err != nil {
		return false
	}
	defer dev.Close()
	sb, err := segio.ReadSuperblock(ctx, dev, path)
	if err != nil || sb.Store != p.ID || slices.ContainsFunc(p.Members.Opened,
		func(d *space.Drive) bool { return d != nil && segment.DeviceID(d.ID) == sb.Device }) {
		return false
	}
	d := &space.Drive{Path: path, SegBytes: sb.SegmentBytes, Segments: layout.Segments(dev.Size(), sb.SegmentBytes)}
	d.Use(dev)
	return p.holdsNothing(ctx, d)
}

// openAt is which drive is open at path; -1: none.
func (p *Opening) openAt(path string) int {
	return slices.IndexFunc(p.Members.Opened, func(d *space.Drive) bool {
		return d != nil && d.Absent == nil && paths.Real(d.Path) == paths.Real(path)
	})
}

// lack is a device that cannot be opened.
type lack struct {
	path string
	why  error
}

// goesOn says whether a store may open without a device that gave err: one that is not there, fails,
// is somebody else's, or cannot be known any more. Not without one of another format, or that
// another process has: they are whole.
func goesOn(err error) bool {
	switch skep.KindOf(err) {
	case skep.Missing, skep.DeviceFailed, skep.Foreign, skep.Damaged, skep.Conflict:
		return err != nil
	}
	return false
}

func isAmong(path string, list []lack) bool {
	return slices.ContainsFunc(list, func(l lack) bool { return paths.Real(l.path) == paths.Real(path) })
}

// takeLack takes what was named out of list for the row of a device expected at path: that path, or
// else any.
func takeLack(path string, list []lack) (lack, []lack) {
	if len(list) == 0 {
		return lack{path, skep.Missing}, nil
	}
	i := max(0, slices.IndexFunc(list, func(l lack) bool { return paths.Real(l.path) == paths.Real(path) }))
	return list[i], slices.Delete(slices.Clone(list), i, i+1)
}

func (p *Opening) isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// openDrive opens what is at path and gives it its place.
func (p *Opening) openDrive(ctx context.Context, i int, path string, byID map[[16]byte]catalog.DeviceState) error {
	dev, err := p.OpenDevice(i, path, false, 0)
	if err != nil {
		return &skep.Error{Op: "open device", Kind: KindOfOpen(err), Field: path, Err: err}
	}
	d := &space.Drive{Path: path}
	d.Use(dev)
	if err := p.adopt(ctx, d, byID); err != nil {
		return errors.Join(err, dev.Close())
	}
	if p.Members.Opened[d.Index] != nil {
		return errors.Join(&skep.Error{Op: "open device", Kind: skep.Conflict, Field: path,
			Value: "device " + strconv.Itoa(int(d.Index)) + " a second time", Limit: "each device once"}, dev.Close())
	}
	p.Members.Opened[d.Index] = d
	return nil
}

// standIns fills the places of drives that were removed or are missing.
func (p *Opening) standIns(rows []catalog.DeviceState, lacks map[uint16]lack) error {
	missing, present := 0, 0
	var first catalog.DeviceState
	for _, r := range rows {
		switch {
		case p.Members.Opened[r.Index] != nil:
			present++
		case r.State != catalog.DeviceRemoved:
			if missing++; missing == 1 {
				first = r
			}
		}
	}
	if missing > 0 && (present == 0 || p.Refuse) {
		if why := lacks[first.Index].why; why != nil && why != skep.Missing {
			return why
		}
		return &skep.Error{Op: "open store", Kind: skep.Missing, Field: "device " + strconv.Itoa(int(first.Index)),
			Value: lacks[first.Index].path, Limit: "present; name every device of the store, in any order"}
	}
	for _, r := range rows {
		if p.Members.Opened[r.Index] != nil {
			continue
		}
		if r.State == catalog.DeviceRemoved {
			d := members.Removed(int(r.Index), r.SegmentBytes)
			d.ID, d.Path, d.Serial, d.GivenUp = r.ID, r.Path, r.Serial, slices.Contains(p.gone, r.Index)
			if d.GivenUp && p.Restamp { // no superblock may say so yet
				p.Space.Doubt()
			}
			p.Members.Opened[r.Index] = d
			continue
		}
		d := members.StandIn(r, lacks[r.Index].path, lacks[r.Index].why)
		if d.GivenUp = slices.Contains(p.gone, d.Index); d.GivenUp {
			p.Space.Doubt()
		}
		p.Members.Opened[r.Index] = d
		p.Log.Error("device missing or unreadable: the store goes on without it", "device", r.Index,
			"path", d.Path, "serial", r.Serial, "error", lacks[r.Index].why)
		p.Space.SegmentBytes = r.SegmentBytes
	}
	return nil
}

// adopt checks a device's superblocks against the catalog's rows.
func (p *Opening) adopt(ctx context.Context, d *space.Drive, byID map[[16]byte]catalog.DeviceState) error {
	const op = "open device"
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	sb, err := segio.ReadSuperblock(ctx, d.Dev, d.Path)
	if err != nil {
		return err
	}
	row, known := byID[sb.Device]
	if sb.Store == p.ID && !known {
		return &skep.Error{Op: op, Kind: skep.Foreign, Field: d.Path,
			Value: fmt.Sprintf("device %d of this store, which the catalog does not know", sb.DeviceIndex),
			Limit: "one that the store has: this one was removed, or an add was cut short (skep device add makes it anew)"}
	}
	if sb.Store != p.ID {
		return &skep.Error{Op: op, Kind: skep.Foreign, Field: d.Path, Value: "store " + sb.Store.String(),
			Limit: "store " + p.ID.String()}
	}
	if p.Places != nil {
		if err := p.Places.Taken(d.Path, sb.Device); err != nil {
			return err
		}
	}
	if d.Dev.Size() < sb.DeviceBytes {
		return &skep.Error{Op: op, Kind: skep.Damaged, Field: "size of " + d.Path, Value: d.Dev.Size(),
			Limit: fmt.Sprintf("at least %d: it was cut short", sb.DeviceBytes)}
	}
	d.Index, d.ID, d.Serial, d.SegBytes = row.Index, sb.Device, sb.Serial, sb.SegmentBytes
	d.Sequence, d.Created = sb.Sequence, sb.Created
	p.Space.SegmentBytes = sb.SegmentBytes
	d.Segments = layout.Segments(d.Dev.Size(), d.SegBytes)
	d.Limit = d.Segments
	p.Restamp = p.Restamp || sb.Capacity != int64(p.Limits.Capacity) || sb.MadeCount != int(p.Limits.Devices) ||
		!slices.Equal(sb.GivenUp, p.gone) || sb.DeviceCount != p.live
	if c := int64(p.Limits.Capacity); c > 0 {
		// A larger cap lets the device grow; a smaller one does not shrink it.
		d.Limit = max(d.Segments, layout.Segments(c/int64(len(byID)), d.SegBytes))
	} else {
		d.Limit = space.Unlimited
	}
	if d.Dev.Info().Raw && int64(p.Limits.Capacity) > 0 { // of its size the store has what the cap gave it, or an add
		share := layout.Segments(int64(p.Limits.Capacity)/int64(len(byID)), d.SegBytes)
		d.Segments = min(d.Segments, max(sb.Segments(), share))
	}
	if d.Dev.Info().Raw || p.ReadOnly {
		d.Limit = d.Segments
	}
	if row.State == catalog.DeviceDraining {
		if d.Failed == nil { // else it is not there
			d.Failed = space.ErrDraining
		}
		d.Retired.Store(true)
	}
	return nil
}

// checkDeviceCount refuses a number of file devices that is neither what the store has nor what it was made with.
func (p *Opening) checkDeviceCount(have, givenUp int) error {
	n := p.Given
	switch {
	case p.Limits.Devices == 0: // from before it was noted
		p.Limits.Devices = uint32(cmp.Or(n, have))
		return nil
	case n == 0 || len(p.Devices) > 0 || n == have || n == have+givenUp || n == int(p.Limits.Devices):
		return nil
	}
	return skep.Invalidf("open store", "device count", n,
		fmt.Sprintf("%d, as the store has: leave it out; devices are added and removed one at a time "+
			"(AddDevice, skep device add)", have))
}
