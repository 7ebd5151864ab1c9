package opening

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"

	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/paths"
	"github.com/skepkv/skep/store/internal/places"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/segment"
)

// devicePaths are where the store's devices may be when no catalog says so.
func (p *Opening) devicePaths() ([]string, error) {
	if len(p.Devices) > 0 {
		return p.Devices, nil
	}
	paths, err := filepath.Glob(filepath.Join(p.Dir, "device-*"))
	sort.Strings(paths)
	return paths, err
}

// allDevicePaths are devicePaths and, where no devices are named, whatever else in the directory is a
// device of that store, such as one that was added under a name of its own, and those that the catalog
// named before it was set aside.
func (p *Opening) allDevicePaths(ctx context.Context) ([]string, error) {
	paths, err := p.devicePaths()
	if err != nil || len(p.Devices) > 0 || p.Own {
		return paths, err
	}
	paths = slices.DeleteFunc(paths, p.anothers)
	id := storeOfMost(paths)
	list, err := os.ReadDir(p.Dir)
	if err != nil {
		return nil, err
	}
	others := append(slices.Clone(p.Known), p.pathsSetAside(ctx)...)
	for _, e := range list {
		if path := filepath.Join(p.Dir, e.Name()); !p.anothers(path) {
			others = append(others, path)
		}
	}
	var met []fs.FileInfo // a device may have several names
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil {
			met = append(met, info)
		}
	}
	for _, path := range others {
		info, err := os.Stat(path)
		if err != nil || !info.Mode().IsRegular() && info.Mode()&os.ModeDevice == 0 ||
			slices.ContainsFunc(met, func(o fs.FileInfo) bool { return os.SameFile(o, info) }) {
			continue
		}
		met = append(met, info)
		if sb, err := segio.PeekSuperblock(path); err == nil && (sb.Store == id || id == segment.StoreID{}) {
			id = sb.Store
			paths = append(paths, path)
		}
	}
	return paths, nil
}

// anothers says whether a name in the directory leads out of it, to a device that says that another directory owns it:
// a copy of a directory has its links.
func (p *Opening) anothers(path string) bool {
	dir := paths.Real(p.Dir)
	if _, in := paths.Within(dir, paths.Real(path)); in {
		return false
	}
	o, ok := segio.PeekOwner(path)
	if !ok || o.Path == dir {
		return false
	}
	p.Log.Warn("a link leads to a device of another directory: it is not this store's unless it is named (--device)",
		"path", path, "directory", o.Path)
	return true
}

// pathsSetAside is where devices were by the newest catalog that was set aside and can be read: a rebuild that was cut
// off has no other to ask.
func (p *Opening) pathsSetAside(ctx context.Context) (paths []string) {
	for _, dir := range p.place("rebuild").Older() {
		c, err := catalog.Inspect(dir, catalog.Options{FS: p.Options.FS, Logger: p.Log, OpenTimeout: p.Timeout})
		if err != nil {
			p.Log.Warn("a catalog that was set aside does not say where devices are", "path", dir, "error", err)
			continue
		}
		root, err := c.Store(ctx)
		owner, known, err1 := c.Owner(ctx)
		rows, err2 := c.Devices(ctx)
		if errors.Join(err, err1, err2, c.Close()) != nil {
			continue
		}
		places := places.Of(p.Dir, root.StoreID, owner, known)
		for _, r := range rows {
			if path, err := places.Find(r); err == nil && r.State != catalog.DeviceRemoved {
				paths = append(paths, path)
			}
		}
		return paths
	}
	return nil
}

// Paths is where the drives are that could be opened.
func (p *Opening) Paths() (paths []string) {
	for _, d := range p.Members.All() {
		if d.Absent == nil && d.Dev != nil {
			paths = append(paths, d.Path)
		}
	}
	return paths
}
