package opening

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/places"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/internal/watermark"
	"github.com/skepkv/skep/store/segment"
)

// notACatalog refuses a directory that is the catalog of a store: another's devices would lie among its files.
func notACatalog(dir string) error {
	for _, name := range []string{"MANIFEST-*", "marker.manifest.*"} {
		if list, _ := filepath.Glob(filepath.Join(dir, name)); len(list) > 0 {
			return &skep.Error{Op: "open store", Kind: skep.Conflict, Field: "directory", Value: dir + ", a store's catalog",
				Limit: "a store's directory, such as the one that the catalog is in, or an empty one"}
		}
	}
	return nil
}

// create makes a new store on its devices. The root row comes last: until it is
// there, there is no store.
func (p *Opening) create(ctx context.Context) (catalog.StoreState, error) {
	var id segment.StoreID
	var secret segment.Secret
	rand.Read(id[:])
	rand.Read(secret[:])
	p.ID, p.Secret = id, secret
	paths := p.Devices
	if len(paths) == 0 {
		for i := range p.Count {
			paths = append(paths, filepath.Join(p.Dir, fmt.Sprintf("device-%d", i)))
		}
	}
	n := len(paths)
	p.Limits = catalog.Limits{Known: true, Capacity: uint64(p.Capacity), Devices: uint32(n)}
	each := p.Capacity / int64(n) &^ (layout.PageSize - 1)
	reckon := each
	if p.Capacity == 0 {
		reckon = p.Reckon(paths)
	}
	var err error
	if p.Space.SegmentBytes, err = p.segmentFor(reckon, n); err != nil {
		return catalog.StoreState{}, p.tooSmall(n, err)
	}
	initial := layout.Segments(each, p.Space.SegmentBytes)
	if p.Capacity == 0 {
		initial = max(1, int(min(firstBytes/int64(n), reckon)/p.Space.SegmentBytes))
	} else if initial < leastSegments {
		return catalog.StoreState{}, p.tooSmall(n, nil)
	}
	for _, path := range paths { // before anything is made
		if err := places.Free(path, p.Own); err != nil {
			return catalog.StoreState{}, err
		}
	}
	list := p.makingList()
	if list != nil {
		p.made = append(p.made, list.Path())
	}
	if err := list.Begin(paths); err != nil {
		return catalog.StoreState{}, &skep.Error{Op: "create store", Kind: skep.Other, Field: list.Path(), Err: err}
	}
	defer p.unbrand()
	b := p.Catalog.NewBatch()
	for i, path := range paths {
		d, err := p.CreateDrive(ctx, i, n, path, layout.SegmentOffset(initial, p.Space.SegmentBytes), each)
		if err != nil {
			return catalog.StoreState{}, err
		}
		p.Members.Opened = append(p.Members.Opened, d)
		st := d.Row()
		b.PutDevice(&st)
	}
	// Not from 1: the number of a namespace that a client kept is nobody's in another store at the same address.
	var first [4]byte
	rand.Read(first[:])
	root := p.Root.State(watermark.Numbers{Namespace: binary.LittleEndian.Uint32(first[:]) >> 2}, false)
	b.PutStore(root)
	if err = p.Catalog.Commit(ctx, b, true); err != nil {
		return root, err
	}
	p.making = false
	return root, list.End()
}

// firstBytes is what all devices of a store without a cap begin with.
const firstBytes = 64 << 20

// leastSegments is how many a device has at least where a cap says how large it may become: one is written,
// one is cleaned, and one is free.
const leastSegments = 3

// segmentFor is the size of the segments of a new store on n devices of each bytes.
func (p *Opening) segmentFor(each int64, n int) (int64, error) {
	if p.SegmentBytes > 0 {
		return p.SegmentBytes, nil
	}
	return layout.SegmentFor(each, p.BlockBytes, n)
}

// tooSmall is the error of a cap that has no room for a store, with the least that has.
func (p *Opening) tooSmall(n int, why error) error {
	fits := func(pages int) bool {
		each := int64(pages) * layout.PageSize
		seg, err := p.segmentFor(each, n)
		return err == nil && layout.Segments(each, seg) >= leastSegments
	}
	most := 1
	for !fits(most) && most < 1<<40 {
		most *= 2
	}
	least := int64(sort.Search(most, fits)) * layout.PageSize * int64(n)
	return &skep.Error{Op: "create store", Kind: skep.Invalid, Field: "capacity bytes", Value: p.Capacity,
		Err:   why,
		Limit: fmt.Sprintf("at least %d for blocks of %d bytes on %d devices, or 0 for no cap", least, p.BlockBytes, n)}
}

// CreateDrive makes or takes over one device and writes its superblocks.
func (p *Opening) CreateDrive(ctx context.Context, i, n int, path string, size, limit int64) (*space.Drive, error) {
	if err := places.Free(path, p.Own); err != nil {
		return nil, err
	}
	_, err := os.Stat(path)
	exists := err == nil
	dev, err := p.OpenDevice(i, path, !exists, size)
	if err != nil {
		return nil, &skep.Error{Op: "create device", Kind: KindOfOpen(err), Field: path, Err: err}
	}
	if !exists {
		p.made = append(p.made, path)
	}
	d := &space.Drive{Index: uint16(i), Path: path, Serial: dev.Info().Serial, SegBytes: p.Space.SegmentBytes}
	d.Use(dev)
	rand.Read(d.ID[:])
	if exists {
		if err := segio.CheckBlank(ctx, dev, path); err != nil {
			return d, errors.Join(err, dev.Close())
		}
	}
	have := layout.Segments(dev.Size(), p.Space.SegmentBytes)
	if limit > 0 {
		have = min(have, layout.Segments(limit, p.Space.SegmentBytes))
	}
	d.Segments, d.Limit = have, have
	if limit == 0 && !dev.Info().Raw {
		d.Limit = space.Unlimited
	}
	if have < 1 {
		return d, errors.Join(skep.Invalidf("create device", "size of "+path, dev.Size(),
			fmt.Sprintf("at least %d", layout.SegmentOffset(1, p.Space.SegmentBytes))), dev.Close())
	}
	if err := p.WriteSuperblocks(ctx, d, n, 1); err != nil {
		if exists {
			err = errors.Join(err, p.takeBackName(d))
		}
		return d, errors.Join(err, dev.Close())
	}
	return d, nil
}

// WriteSuperblocks writes both superblocks of a drive, which say that the store has n drives. Error: DeviceFailed.
func (p *Opening) WriteSuperblocks(ctx context.Context, d *space.Drive, n int, sequence uint64) error {
	d.Sequence = sequence
	if d.Created.IsZero() {
		d.Created = p.Wall()
	}
	segments := int(p.Space.RowOf(d).Segments)
	sb := segment.Superblock{
		Sequence: sequence, Store: p.ID, Device: d.ID, Serial: d.Serial, DeviceIndex: int(d.Index), DeviceCount: n,
		DeviceBytes: layout.SegmentOffset(segments, p.Space.SegmentBytes), SegmentBytes: p.Space.SegmentBytes,
		FirstSegment: layout.SegmentOffset(0, p.Space.SegmentBytes), HashSecret: p.Secret, Created: d.Created,
		Capacity: int64(p.Limits.Capacity), MadeCount: int(p.Limits.Devices), GivenUp: p.Members.GivenUp(),
	}
	if err := segio.WriteSuperblocks(ctx, p.Space.Durably(d), &sb); err != nil {
		return &skep.Error{Op: "write superblock", Kind: skep.DeviceFailed, Field: d.Path, Err: err}
	}
	return nil
}

// KindOfOpen is the kind of an error of opening a device.
func KindOfOpen(err error) skep.Kind {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return skep.Missing
	case errors.Is(err, device.ErrLocked):
		return skep.Locked
	case skep.KindOf(err) != skep.Other:
		return skep.KindOf(err)
	}
	return skep.DeviceFailed
}

// unbrand makes devices that were there before the making of a store nobody's again where that has failed: the next try
// would take them for a store that has lost its catalog.
func (p *Opening) unbrand() {
	if !p.making {
		return
	}
	for _, d := range p.Members.Opened {
		if slices.Contains(p.made, d.Path) {
			continue // a file, which is removed
		}
		if err := p.takeBackName(d); err != nil {
			p.Log.Warn("left behind by a failed create: wipe it before the next try", "path", d.Path, "error", err)
		}
	}
}
