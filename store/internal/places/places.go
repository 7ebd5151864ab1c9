// Package places says where the devices of a store are, and whose.
//
// A directory may be a copy of another, catalog and all: what lies in it is its own, what lies outside may be the
// original's.
//
//   - A device is looked for in the store's directory. Outside it only where the catalog says that it lies outside, and
//     the directory is the one that says so: the system tells a copy from it (paths.Identity). Who names a device says
//     that it is this directory's.
//   - A device outside says which directory owns it (segment.Owner). A directory that is a copy, or was moved to
//     another file system, gets a name of its own when it is opened (Own), and writes it on the devices it was given
//     (Stamp): the other one is refused them from then on.
package places

import (
	"bytes"
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
	"github.com/skepkv/skep/store/internal/paths"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/segment"
)

// Places finds the devices of the store in a directory, and knows whose they are. It is for one goroutine at a time.
// Make it with Of.
type Places struct {
	dir, real string
	id        [16]byte
	owner     catalog.Owner
	known     bool   // the catalog says whose the devices are
	system    string // what the system tells the directory by; empty: it cannot
	clone     bool   // it is not the directory that the catalog speaks of
}

// Of is for the store id in dir, whose catalog says owner, if known.
func Of(dir string, id [16]byte, owner catalog.Owner, known bool) *Places {
	p := &Places{dir: dir, real: paths.Real(dir), id: id, owner: owner, known: known, system: paths.Identity(dir)}
	p.clone = known && owner.Dir != "" && p.system != "" && owner.Dir != p.system
	return p
}

// Copied says that the directory is not the one that the catalog speaks of, but a copy, or was moved to another file
// system.
func (p *Places) Copied() bool { return p.clone }

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
	return p.Taken(path, r.ID)
}

// strange says why a place that nobody named is not this directory's.
func (p *Places) strange(path string, r catalog.DeviceState) error {
	why := func(value, limit string) error {
		return &skep.Error{Op: "open device", Kind: skep.Missing, Field: path, Value: value, Limit: limit}
	}
	id := hex.EncodeToString(r.ID[:])
	if !p.outside(path) {
		if (p.clone || slices.Contains(p.owner.Without, id)) && paths.HardLinked(path) {
			return why("a hard link, in a copy of the store's directory: the original has the same file",
				"a file of its own: copy it")
		}
		return nil
	}
	if p.clone {
		return why("outside "+p.dir+
			", which is a copy of the store's directory or was moved to another file system: it may be the original's",
			"in the directory, or named (--device, devices in a configuration) if it is this directory's")
	}
	if _, listed := p.owner.Outside[id]; p.known && !listed {
		return why("outside "+p.dir+", whose catalog does not say that the device is there: it may be another directory's",
			"in the directory, or named (--device, devices in a configuration) if it is this directory's")
	}
	if dir := filepath.Dir(paths.Real(path)); dir != p.real {
		for _, name := range []string{"catalog", "LOCK"} {
			if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
				return why("in "+dir+", the directory of another store",
					"in "+p.dir+", or named (--device, devices in a configuration)")
			}
		}
	}
	return nil
}

// Taken says that another directory owns the device at path.
//
// Errors: Conflict, which names the directory.
func (p *Places) Taken(path string, id [16]byte) error {
	o, ok := segio.PeekOwner(path)
	if !ok || o.Store != p.id || o.Device != id || p.known && o.ID == p.owner.ID {
		return nil
	}
	if slices.Contains(p.owner.Outside[hex.EncodeToString(id[:])].Owners, o.ID) {
		return nil
	}
	return &skep.Error{Op: "open device", Kind: skep.Conflict, Field: path,
		Value: "taken by a copy of this directory: " + o.Path,
		Limit: "this directory's; use the store there, or take its devices back with skep rebuild --dir " + p.dir +
			" and a --device for each"}
}

// Device is a device of the store, for Own.
type Device struct {
	ID      [16]byte
	Path    string
	Removed bool // it was taken out of the store
	Absent  bool // it is not there
}

// Claimed is what Own found out.
type Claimed struct {
	Row  *catalog.Owner // to be committed; nil: the catalog says so already
	Was  string         // where the directory was when last opened; empty: it was not, or is there yet
	Copy bool           // with that: it is a copy, the other may be there
}

// Own says whose the devices are, all of the store's: what lies in the directory, and what was named. The devices
// themselves are told once that is committed (Stamp).
func (p *Places) Own(devices []Device) (out Claimed, err error) {
	was := p.owner
	now := catalog.Owner{ID: was.ID, Dir: p.system, Path: p.real, Outside: map[string]catalog.Outside{}}
	if !p.known || p.clone {
		rand.Read(now.ID[:])
	}
	for _, d := range devices {
		id := hex.EncodeToString(d.ID[:])
		x, listed := was.Outside[id]
		switch {
		case d.Removed:
			continue
		case d.Absent && (p.clone || slices.Contains(was.Without, id)):
			now.Without = append(now.Without, id)
			continue
		case d.Absent && !listed, !d.Absent && !p.outside(d.Path):
			continue
		case !d.Absent:
			x.Path = paths.Real(d.Path)
			if o, ok := segio.PeekOwner(d.Path); ok && !slices.Contains(x.Owners, o.ID) {
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
		return out, err
	}
	if was.Path != "" && was.Path != now.Path {
		out.Was, out.Copy = was.Path, was.ID != now.ID
	}
	out.Row = &now
	return out, nil
}

// Add is Own for one device that comes to a store in use. nil: it lies in the directory, and nothing is to be
// committed. Forget is for who could not.
func (p *Places) Add(id [16]byte, path string) *catalog.Owner {
	if !p.known || !p.outside(path) {
		return nil
	}
	out := catalog.Outside{Path: paths.Real(path), Owners: [][16]byte{{}, p.owner.ID}}
	p.owner.Outside[hex.EncodeToString(id[:])] = out
	return p.Row()
}

// Forget takes back what Add said.
func (p *Places) Forget(id [16]byte) { delete(p.owner.Outside, hex.EncodeToString(id[:])) }

// Outside are the devices that lie outside the directory.
func (p *Places) Outside() int { return len(p.owner.Outside) }

// Row is what the catalog is to say.
func (p *Places) Row() *catalog.Owner {
	row := p.owner
	return &row
}

// Stamp is what is to be written on a device, once the catalog says that it lies outside; false: nothing, or it is
// there.
func (p *Places) Stamp(id [16]byte) (o segment.Owner, ok bool) {
	x, listed := p.owner.Outside[hex.EncodeToString(id[:])]
	if !listed || len(x.Owners) == 1 {
		return o, false
	}
	return segment.Owner{Store: p.id, Device: id, ID: p.owner.ID, Path: p.owner.Path}, true
}

// Stamped notes that what Stamp gave is on the device: Row says so.
func (p *Places) Stamped(id [16]byte) {
	key := hex.EncodeToString(id[:])
	x := p.owner.Outside[key]
	x.Owners = [][16]byte{p.owner.ID}
	p.owner.Outside[key] = x
}
