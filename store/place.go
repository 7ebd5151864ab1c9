package store

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/paths"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/segment"
)

// Where a store's devices are, and whose. A directory may be a copy of another, catalog and all:
// what lies in it is its own, what lies outside may be the original's.
//
//   - A device is looked for in the store's directory. Outside it only where the catalog says that
//     it lies outside, and the directory is the one that says so: the system tells a copy from it
//     (paths.Identity). Who names a device says that it is this directory's.
//   - A device outside says which directory owns it (segment.Owner). A directory that is a copy, or
//     was moved to another file system, gets a name of its own when it is opened, and writes it on
//     the devices it was given: the other one is refused them from then on.

// Places finds the devices of the store in a directory.
type Places struct {
	dir, real string
	id        [16]byte
	owner     catalog.Owner
	known     bool   // the catalog says whose the devices are
	system    string // what the system tells the directory by; empty: it cannot
	clone     bool   // it is not the directory that the catalog speaks of
}

// PlacesOf is for the store id in dir, whose catalog says owner, if known.
func PlacesOf(dir string, id [16]byte, owner catalog.Owner, known bool) *Places {
	p := &Places{dir: dir, real: paths.Real(dir), id: id, owner: owner, known: known, system: paths.Identity(dir)}
	p.clone = known && owner.Dir != "" && p.system != "" && owner.Dir != p.system
	return p
}

func (p *Places) outside(path string) bool {
	_, in := paths.Within(p.real, paths.Real(path))
	return !in
}

// Find says where the device of a row is. An error says why what is there is not opened; the path
// is where it is expected.
func (p *Places) Find(r catalog.DeviceState) (string, error) {
	inside := []string{filepath.Join(p.dir, filepath.Base(r.Path))}
	if rel, in := paths.Within(p.owner.Path, r.Path); p.known && in {
		inside = append(inside, filepath.Join(p.dir, rel))
	}
	more, _ := filepath.Glob(filepath.Join(p.dir, "device-*"))
	inside = append(inside, more...)
	out, listed := p.owner.Outside[hex.EncodeToString(r.ID[:])]
	var outside []string
	if listed {
		outside = append(outside, out.Path)
	}
	outside = append(outside, r.Path)
	for _, path := range slices.Clone(outside) {
		outside = append(outside, alike(path)...)
	}
	var why error
	for _, path := range append(inside, outside...) {
		sb, err := segio.PeekSuperblock(path)
		if err != nil || sb.Store != p.id || sb.Device != r.ID {
			continue
		}
		err = p.refuse(path, r)
		if err == nil {
			return path, nil
		}
		if why == nil {
			why = err
		}
	}
	// It is not there, or cannot be known any more.
	for _, path := range inside[:1] {
		if _, err := os.Lstat(path); err == nil {
			return path, why
		}
	}
	for _, path := range outside {
		if _, err := os.Stat(path); err == nil && why == nil && p.strange(path, r) == nil {
			return path, nil
		}
	}
	if listed && !p.clone {
		return out.Path, why
	}
	return inside[0], why
}

// alike are block devices of the kind last seen at path, whose name may have changed.
func alike(path string) []string {
	dir := filepath.Dir(path)
	if !strings.HasPrefix(dir, "/dev") {
		return nil
	}
	kind := strings.TrimRightFunc(filepath.Base(path), func(r rune) bool { return r >= '0' && r <= '9' })
	if i := strings.IndexAny(kind, "0123456789"); i > 0 {
		kind = kind[:i] // nvme0n1: nvme
	} else if len(kind) > 2 {
		kind = kind[:2] // sda: sd
	}
	out, _ := filepath.Glob(filepath.Join(dir, kind+"*"))
	return out
}

// refuse says why a device that nobody named is not opened.
func (p *Places) refuse(path string, r catalog.DeviceState) error {
	if err := p.strange(path, r); err != nil {
		return err
	}
	return p.taken(path, r.ID)
}

// strange says why a place that nobody named is not this directory's.
func (p *Places) strange(path string, r catalog.DeviceState) error {
	why := func(value, limit string) error {
		return &skep.Error{Op: "open device", Kind: skep.Missing, Field: path, Value: value, Limit: limit}
	}
	id := hex.EncodeToString(r.ID[:])
	if !p.outside(path) {
		if (p.clone || slices.Contains(p.owner.Without, id)) && paths.HardLinked(path) {
			return why("a hard link, in a copy of the store's directory: the original has the same file", "a file of its own: copy it")
		}
		return nil
	}
	if p.clone {
		return why("outside "+p.dir+", which is a copy of the store's directory or was moved to another file system: it may be the original's",
			"in the directory, or named (--device, devices in a configuration) if it is this directory's")
	}
	if _, listed := p.owner.Outside[id]; p.known && !listed {
		return why("outside "+p.dir+", whose catalog does not say that the device is there: it may be another directory's",
			"in the directory, or named (--device, devices in a configuration) if it is this directory's")
	}
	if dir := filepath.Dir(paths.Real(path)); dir != p.real {
		for _, name := range []string{"catalog", "LOCK"} {
			if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
				return why("in "+dir+", the directory of another store", "in "+p.dir+", or named (--device, devices in a configuration)")
			}
		}
	}
	return nil
}

// taken says that another directory owns the device at path.
func (p *Places) taken(path string, id [16]byte) error {
	o, ok := segio.PeekOwner(path)
	if !ok || o.Store != p.id || o.Device != id || p.known && o.ID == p.owner.ID {
		return nil
	}
	if slices.Contains(p.owner.Outside[hex.EncodeToString(id[:])].Owners, o.ID) {
		return nil
	}
	return &skep.Error{Op: "open device", Kind: skep.Conflict, Field: path, Value: "taken by a copy of this directory: " + o.Path,
		Limit: "this directory's; use the store there, or take its devices back with skep rebuild --dir " + p.dir + " and a --device for each"}
}

// locateDrive says where a drive is now.
func (s *Store) locateDrive(r catalog.DeviceState) (string, error) {
	if s.options.customDevices {
		return r.Path, nil
	}
	return s.places.Find(r)
}

// claim adds to b whose the devices are, where the catalog does not say so yet. The devices
// themselves are told afterwards, by stampOwner. REQUIRES: s.drives are all.
func (s *Store) claim(b *catalog.Batch) error {
	if s.options.customDevices {
		return nil
	}
	p := s.places
	if p == nil { // there was no catalog
		p = PlacesOf(s.options.Dir, s.id, catalog.Owner{}, false)
		s.places = p
	}
	was := p.owner
	now := catalog.Owner{ID: was.ID, Dir: p.system, Path: p.real, Outside: map[string]catalog.Outside{}}
	if !p.known || p.clone {
		rand.Read(now.ID[:])
	}
	for _, d := range s.drives {
		id := hex.EncodeToString(d.id[:])
		x, listed := was.Outside[id]
		switch {
		case d.removed.Load():
			continue
		case d.absent != nil && (p.clone || slices.Contains(was.Without, id)):
			now.Without = append(now.Without, id)
			continue
		case d.absent != nil && !listed, d.absent == nil && !p.outside(d.path):
			continue
		case d.absent == nil:
			x.Path = paths.Real(d.path)
			if o, ok := segio.PeekOwner(d.path); ok && !slices.Contains(x.Owners, o.ID) {
				x.Owners = append(slices.Clone(x.Owners), o.ID)
			}
		}
		if n := len(x.Owners); n == 0 || x.Owners[n-1] != now.ID {
			x.Owners = append(slices.Clone(x.Owners), now.ID)
			if n == 0 {
				x.Owners = [][16]byte{{}, now.ID} // it says nothing yet
			}
		}
		now.Outside[id] = x
	}
	p.owner, p.known, p.clone = now, true, false
	before, err1 := json.Marshal(was)
	after, err2 := json.Marshal(now)
	if err := errors.Join(err1, err2); err != nil || bytes.Equal(before, after) {
		return err
	}
	if was.Path != "" && was.Path != now.Path {
		s.log.Warn("the store's directory is not where it was when last opened", "was", was.Path, "now", now.Path, "copy", was.ID != now.ID)
	}
	b.PutOwner(&now)
	return nil
}

// stampOwner writes on devices outside the directory whose they are, once the catalog says so. What
// cannot be written is written at a later open: until then both names count.
func (s *Store) stampOwner(ctx context.Context, drives ...*drive) {
	if s.options.noStamp {
		return
	}
	if s.options.customDevices {
		return
	}
	changed := false
	for _, d := range drives {
		id := hex.EncodeToString(d.id[:])
		x, listed := s.places.owner.Outside[id]
		if !listed || len(x.Owners) == 1 || d.absent != nil || d.condition() >= health.Fenced {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, s.options.OpTimeout)
		err := s.writeOwner(ctx, d)
		cancel()
		if err != nil {
			s.log.Warn("device does not say whose it is yet; it is written again", "device", d.path, "error", err)
			continue
		}
		x.Owners = [][16]byte{s.places.owner.ID}
		s.places.owner.Outside[id], changed = x, true
	}
	if changed {
		b := s.catalog.NewBatch()
		b.PutOwner(&s.places.owner)
		if err := s.catalog.Commit(ctx, b, false); err != nil {
			s.log.Warn("whose the devices are is noted again at the next open", "error", err)
		}
	}
}

func (s *Store) writeOwner(ctx context.Context, d *drive) error {
	o := segment.Owner{Store: s.id, Device: d.id, ID: s.places.owner.ID, Path: s.places.owner.Path}
	return segio.WriteOwner(ctx, s.durably(d), &o)
}

// claimAdded is claim for a drive that is added to a store in use; disclaim is for who could not commit b. REQUIRES:
// tasks.members.
func (s *Store) claimAdded(b *catalog.Batch, d *drive) (disclaim func()) {
	if s.options.customDevices || s.places == nil || !s.places.known || !s.places.outside(d.path) {
		return func() {}
	}
	o, id := &s.places.owner, hex.EncodeToString(d.id[:])
	o.Outside[id] = catalog.Outside{Path: paths.Real(d.path), Owners: [][16]byte{{}, o.ID}}
	b.PutOwner(o)
	return func() { delete(o.Outside, id) }
}
