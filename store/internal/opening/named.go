package opening

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/paths"
)

// setAsideOld drops the paths given where they are those of the store before drives of it were taken out: each is that
// of a drive where the catalog has it, or of one that was taken out and where nothing is now. The drives are then those
// that are opened where none is named, and found by what is written on them. Paths of a directory that is a copy are
// never dropped: the catalog's may be the original's.
func (p *Opening) setAsideOld(ctx context.Context, rows []catalog.DeviceState) {
	if p.Own || p.Places.Copied() {
		return
	}
	var old []string
	for i, path := range p.Devices {
		same := func(removed bool) bool {
			return slices.ContainsFunc(rows, func(r catalog.DeviceState) bool {
				return (r.State == catalog.DeviceRemoved) == removed && paths.Real(r.Path) == paths.Real(path)
			})
		}
		if same(false) {
			continue
		}
		if !same(true) || !p.holdsNobody(ctx, i, path) {
			return
		}
		old = append(old, path)
	}
	if len(old) == 0 {
		return
	}
	p.oldNames, p.Devices = p.Devices, nil
	p.Log.Warn("devices names drives that were taken out of the store: it is opened as if none was named; "+
		"name those it has, or none", "taken out", old, "has", p.here(rows))
}

// holdsNobody says whether nothing is at path, or a blank device.
func (p *Opening) holdsNobody(ctx context.Context, i int, path string) bool {
	if _, err := os.Stat(path); err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	return p.isBlank(ctx, i, path)
}

// here are the paths where the catalog's drives are.
func (p *Opening) here(rows []catalog.DeviceState) (list []string) {
	for _, r := range rows {
		if r.State != catalog.DeviceRemoved {
			path, _ := p.locate(r)
			list = append(list, path)
		}
	}
	return list
}

// ToName are the paths of the drives, to be named from now on, where others were named at the open; else none.
func (p *Opening) ToName() []string {
	if list := p.toName.Load(); list != nil {
		return *list
	}
	return nil
}

// noteNamed compares the drives with those that were named at the open, by what the paths lead to, and says whether
// they are others.
func (p *Opening) noteNamed() (others bool) {
	named := append(slices.Clone(p.Devices), p.oldNames...)
	if len(named) == 0 {
		return false
	}
	var has []string
	same := true
	for _, d := range p.Members.All() {
		if !d.Removed.Load() {
			has = append(has, d.Path)
			same = same && slices.ContainsFunc(named, func(n string) bool { return p.isOne(n, d.Path) })
		}
	}
	if same && len(has) == len(named) {
		has = nil
	}
	p.toName.Store(&has)
	return has != nil
}

// isOne says whether two paths are of one device.
func (p *Opening) isOne(a, b string) bool {
	return a == b || !p.Own && paths.Device(a) == paths.Device(b)
}

// TellNamed logs, once a drive was added or taken out, where the drives are not those that were named at the open.
func (p *Opening) TellNamed() {
	if p.noteNamed() {
		p.Log.Warn("the store has other devices than it was told to open: name these from now on, or none",
			"has", p.ToName(), "told", append(slices.Clone(p.Devices), p.oldNames...))
	}
}

// fieldDevices is how an error says that the devices named are not the store's.
const fieldDevices = "devices"

// errNamed says that the devices named are not those that the store has, and which it has. Its kind is why's, which may
// be a kind alone.
func (p *Opening) errNamed(rows []catalog.DeviceState, value string, why error) error {
	e := &skep.Error{Op: "open store", Kind: skep.KindOf(why), Field: fieldDevices, Value: value,
		Limit: "those of the store, in any order, or none: it has " + strings.Join(p.here(rows), ", ")}
	if why != error(e.Kind) {
		e.Err = why
	}
	return e
}
