package opening

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"sort"
	"strconv"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/members"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// Drives opens the devices of a store that has no catalog, and takes from their
// superblocks what it must know.
func (p *Opening) Drives(ctx context.Context) error {
	const op = "rebuild"
	paths, err := p.allDevicePaths(ctx)
	if err != nil {
		return err
	}
	if p.Own {
		for i := len(paths); i < p.Count; i++ {
			paths = append(paths, filepath.Join(p.Dir, fmt.Sprintf("device-%d", i)))
		}
	}
	if len(paths) == 0 {
		return &skep.Error{Op: op, Kind: skep.Missing, Field: "devices", Value: p.Dir,
			Limit: "device files in it, or their paths"}
	}
	p.ID = storeOfMost(paths)
	said := map[*space.Drive]segment.Superblock{}
	for i, path := range paths {
		d := &space.Drive{Path: path}
		sb, err := p.meet(ctx, i, d)
		if errors.Is(err, fs.ErrPermission) { // it may be whole
			return err
		}
		if err != nil && goesOn(err) && (!p.Own || p.Whatever || errors.Is(err, skep.Missing)) {
			p.Log.Error("not one of the store's devices that can be read", "path", path, "error", err)
			p.left = append(p.left, lack{path, err})
			continue
		}
		if err != nil {
			return err
		}
		said[d] = sb
	}
	gone, err := p.leaveGivenUp(said)
	if err != nil {
		return err
	}
	if len(p.Members.Opened) == 0 {
		return &skep.Error{Op: op, Kind: skep.Missing, Field: "devices", Value: 0, Limit: "at least one that can be read",
			Err: p.leftWhy()}
	}
	var newest segment.Superblock // knows how many there are since some were added, removed or given up, and the cap
	for _, d := range p.Members.Opened {
		sb := said[d]
		for _, i := range gone {
			if !slices.Contains(sb.GivenUp, i) { // it was away when the others were told, and counts that one yet
				sb.DeviceCount--
			}
		}
		switch {
		case sb.Sequence > newest.Sequence:
			newest = sb
		case sb.Sequence == newest.Sequence:
			newest.DeviceCount = max(newest.DeviceCount, sb.DeviceCount)
		}
	}
	p.Limits = catalog.Limits{Known: newest.MadeCount > 0, Capacity: uint64(newest.Capacity),
		Devices: uint32(newest.MadeCount)}
	return p.order(ctx, newest.DeviceCount, gone)
}

// leaveGivenUp leaves alone the drives of which another says that an earlier rebuild went on without them, whatever
// their own sequence number is: what they know may have been deleted since, and forgotten that it was. Conflict: drives
// say so of each other, or fewer of more; which ones are the store is for a person to say.
func (p *Opening) leaveGivenUp(said map[*space.Drive]segment.Superblock) (gone []uint16, err error) {
	for _, sb := range said {
		gone = append(gone, sb.GivenUp...)
	}
	slices.Sort(gone)
	gone = slices.Compact(gone)
	left, mutual := 0, false
	for d, sb := range said {
		if slices.Contains(gone, d.Index) {
			left++
		}
		for other, by := range said {
			mutual = mutual || slices.Contains(sb.GivenUp, other.Index) && slices.Contains(by.GivenUp, d.Index)
		}
	}
	if found := len(said); mutual || left == found && found > 0 || 2*left > found && !p.Whatever {
		return nil, &skep.Error{Op: "rebuild", Kind: skep.Conflict, Value: left,
			Field: "devices that the others went on without",
			Limit: fmt.Sprintf("at most half of the %d found, and none that went on without each other: take away "+
				"those that are not to be the store's", found)}
	}
	p.Members.Opened = slices.DeleteFunc(p.Members.Opened, func(d *space.Drive) bool {
		if !slices.Contains(gone, d.Index) {
			return false
		}
		p.Log.Warn("an earlier rebuild went on without this device: it is left alone", "path", d.Path, "device",
			d.Index)
		p.leave(d, "which an earlier rebuild went on without")
		return true
	})
	return gone, nil
}

// leave notes and closes a drive that the store has no more.
func (p *Opening) leave(d *space.Drive, since string) {
	p.left = append(p.left, lack{d.Path, &skep.Error{Op: "rebuild", Kind: skep.Foreign, Field: d.Path,
		Value: "device " + strconv.Itoa(int(d.Index)) + ", " + since, Limit: "one that the store has",
		Err: d.Dev.Close()}})
}

// leftWhy is why devices are left alone.
func (p *Opening) leftWhy() (err error) {
	for _, l := range p.left {
		err = errors.Join(err, l.why)
	}
	return err
}

// storeOfMost is the store of most of the devices: what else lies among them is not its.
func storeOfMost(paths []string) (id segment.StoreID) {
	most, of := 0, map[segment.StoreID]int{}
	for _, p := range paths {
		sb, err := segio.PeekSuperblock(p)
		if err != nil {
			continue
		}
		if of[sb.Store]++; of[sb.Store] > most {
			id, most = sb.Store, of[sb.Store]
		}
	}
	return id
}

// meet opens the device at d.path and adds it to the store's, if it is one of them.
func (p *Opening) meet(ctx context.Context, i int, d *space.Drive) (sb segment.Superblock, err error) {
	const op = "rebuild"
	dev, err := p.OpenDevice(i, d.Path, false, 0)
	if err != nil {
		return sb, &skep.Error{Op: op, Kind: KindOfOpen(err), Field: d.Path, Err: err}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, dev.Close())
		}
	}()
	if sb, err = segio.ReadSuperblock(ctx, dev, d.Path); err != nil {
		return sb, err
	}
	if p.ID != (segment.StoreID{}) && sb.Store != p.ID {
		return sb, &skep.Error{Op: op, Kind: skep.Foreign, Field: d.Path, Value: "store " + sb.Store.String(),
			Limit: "store " + p.ID.String() + ", as the others"}
	}
	if len(p.Members.Opened) > 0 && sb.SegmentBytes != p.Space.SegmentBytes {
		return sb, &skep.Error{Op: op, Kind: skep.Damaged, Field: "segment bytes of " + d.Path, Value: sb.SegmentBytes,
			Limit: p.Space.SegmentBytes}
	}
	if dev.Size() < sb.DeviceBytes {
		return sb, &skep.Error{Op: op, Kind: skep.Damaged, Field: "size of " + d.Path, Value: dev.Size(),
			Limit: fmt.Sprintf("at least %d: it was cut short", sb.DeviceBytes)}
	}
	p.ID, p.Secret = sb.Store, sb.HashSecret
	p.Space.SegmentBytes = sb.SegmentBytes
	d.Use(dev)
	d.Index, d.ID, d.Serial, d.SegBytes = uint16(sb.DeviceIndex), sb.Device, sb.Serial, sb.SegmentBytes
	d.Segments = layout.Segments(dev.Size(), d.SegBytes)
	d.Limit = d.Segments
	d.Sequence, d.Created = sb.Sequence, sb.Created
	p.Members.Opened = append(p.Members.Opened, d)
	return sb, nil
}

// order puts the drives found where their numbers say. The store has so many beside those that were given up before.
func (p *Opening) order(ctx context.Context, count int, gone []uint16) error {
	const op = "rebuild"
	last := count + len(gone)
	byIndex := map[int]*space.Drive{}
	for _, d := range p.Members.Opened {
		other := byIndex[int(d.Index)]
		if other == nil {
			byIndex[int(d.Index)] = d
			continue
		}
		left, err := p.leftByAdding(ctx, other, d)
		if err != nil {
			return err
		}
		if left == other {
			byIndex[int(d.Index)] = d
		}
		p.left = append(p.left, lack{left.Path, &skep.Error{Op: op, Kind: skep.Conflict,
			Field: "device " + strconv.Itoa(int(d.Index)), Value: left.Path,
			Limit: "one, which is " + byIndex[int(d.Index)].Path, Err: left.Dev.Close()}})
	}
	p.Members.Opened = slices.Collect(maps.Values(byIndex))
	for i := range byIndex {
		last = max(last, i+1)
	}
	for _, i := range gone {
		last = max(last, int(i)+1)
	}
	for _, d := range p.outlasted(count) {
		p.Log.Warn("this device was removed from the store: the rebuild leaves it alone", "path", d.Path, "device", d.Index)
		p.leave(d, "which was removed")
		delete(byIndex, int(d.Index))
	}
	p.Members.Opened = slices.Collect(maps.Values(byIndex))
	found := p.Members.Opened
	p.missing, p.before = max(0, count-len(found)), len(gone)
	for i := range last {
		switch {
		case byIndex[i] != nil:
		case slices.Contains(gone, uint16(i)):
			p.Members.Opened = append(p.Members.Opened, p.givenUp(i))
		case len(found) >= count: // all that are left are here: this one was removed
			p.Members.Opened = append(p.Members.Opened, members.Removed(i, p.Space.SegmentBytes))
		case p.Whatever:
			p.Members.Opened = append(p.Members.Opened, p.givenUp(i))
		default:
			kind := skep.Missing
			if len(p.left) > 0 && (p.Own || len(p.Devices) > 0 && skep.KindOf(p.left[0].why) == skep.Foreign) {
				kind = skep.KindOf(p.left[0].why)
			}
			return &skep.Error{Op: op, Kind: kind, Field: "device " + strconv.Itoa(i),
				Value: "not among " + strconv.Itoa(len(found)) + " found", Err: p.leftWhy(),
				Limit: "present; name every device of the store, in any order, or have the rebuild go on without it " +
					"(skep rebuild --without-missing)"}
		}
	}
	sort.Slice(p.Members.Opened, func(i, j int) bool { return p.Members.Opened[i].Index < p.Members.Opened[j].Index })
	return nil
}

// leftByAdding is which of two drives with one number is not the store's. An add that was cut short has left a drive
// that holds nothing; the next one that was added got its number. Where both hold something, or neither, the one under
// its own name counts; where both hold something and none is, or each was named, it is for a person to say.
func (p *Opening) leftByAdding(ctx context.Context, a, b *space.Drive) (*space.Drive, error) {
	emptyA, emptyB := p.holdsNothing(ctx, a), p.holdsNothing(ctx, b)
	name := "device-" + strconv.Itoa(int(a.Index))
	ownA, ownB := filepath.Base(a.Path) == name, filepath.Base(b.Path) == name
	if !emptyA && !emptyB && (!ownA && !ownB || len(p.Devices) > 0 || p.Own) {
		return nil, &skep.Error{Op: "rebuild", Kind: skep.Conflict, Field: "device " + strconv.Itoa(int(a.Index)),
			Value: b.Path, Limit: "one, and " + a.Path + " is it too"}
	}
	left := b
	if emptyA && !emptyB || emptyA == emptyB && (ownB && !ownA || !ownA && b.Sequence > a.Sequence) {
		left = a
	}
	if emptyA || emptyB {
		p.leftByAdd(left.Path)
	}
	return left, nil
}

func (p *Opening) leftByAdd(path string) {
	p.Log.Warn("an add that was cut short has left this device, which holds nothing: it is not the store's; "+
		"it may be removed, or added again", "path", path)
}

// holdsNothing says whether none of a drive's segments was ever opened. One that cannot be read may have been.
func (p *Opening) holdsNothing(ctx context.Context, d *space.Drive) bool {
	all := make([]uint32, d.Segments)
	for i := range all {
		all[i] = uint32(i)
	}
	used := make(chan error, d.Segments)
	p.Space.ReadHeaders(ctx, d, all, func(_ uint32, _ *segment.Header, err error) {
		if skep.KindOf(err) != skep.Foreign || err == nil {
			used <- err
		}
	})
	return len(used) == 0
}

// outlasted are drives that were removed and still lie among the others: when one is removed all that stay are stamped
// anew. Where fewer than count are, some could not be, and nobody knows which were removed: all count.
func (p *Opening) outlasted(count int) (list []*space.Drive) {
	newest := uint64(0)
	for _, d := range p.Members.Opened {
		newest = max(newest, d.Sequence)
	}
	for _, d := range p.Members.Opened {
		if d.Sequence < newest {
			list = append(list, d)
		}
	}
	if len(p.Members.Opened)-len(list) != count {
		return nil
	}
	return list
}

// givenUp keeps the place of a drive that a rebuild went on without. Nothing is known of it
// but its number, so that whatever comes back is not taken for it: what its logs say may
// have been overtaken.
func (p *Opening) givenUp(i int) *space.Drive {
	why := &skep.Error{Op: "drive", Kind: skep.Missing, Field: "state", Value: "given up by a rebuild"}
	path := filepath.Join(p.Dir, "given-up-"+strconv.Itoa(i))
	d := &space.Drive{Index: uint16(i), Path: path, SegBytes: p.Space.SegmentBytes, Segments: 1, Limit: 1, Absent: why,
		ID: p.givenUpID(i), GivenUp: true}
	p.Space.Doubt()
	d.Gone(device.NewGone(path, "", layout.SegmentOffset(1, p.Space.SegmentBytes), why), why)
	return d
}

// givenUpID is the identity of such a place. A later open knows it by that, wherever the store's directory is then.
func (p *Opening) givenUpID(i int) segment.DeviceID {
	key := skep.KeyOf([]byte("given-up-" + strconv.Itoa(i) + p.ID.String()))
	return segment.DeviceID(key[:16])
}
