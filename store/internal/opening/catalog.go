package opening

import (
	"errors"
	"io/fs"
	"slices"
	"syscall"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/catalogdir"
	"github.com/skepkv/skep/store/internal/aside"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/segment"
)

// openCatalog opens the catalog, or makes it.
func (p *Opening) openCatalog() (err error) {
	dir := p.CatalogDir
	switch st, err := p.Options.FS.Stat(dir); {
	case err == nil && !st.IsDir():
		return &skep.Error{Op: "open catalog", Kind: skep.Damaged, Field: "catalog", Value: dir + ", which is a file",
			Limit: "a directory"}
	case err != nil && !p.ReadOnly:
		p.made = append(p.made, dir)
	}
	opt := p.Options
	if p.ReadOnly {
		p.Catalog, err = catalog.Inspect(dir, opt)
	} else {
		if err := p.Room.Make(); err != nil {
			return err
		}
		p.Catalog, err = catalog.Open(dir, opt)
		if errors.Is(err, syscall.ENOSPC) && p.Room.Drop() { // less room than it said
			p.Catalog, err = catalog.Open(dir, opt)
		}
		err = p.Room.Explain(err)
	}
	p.Space.Catalog = p.Catalog
	if errors.Is(err, fs.ErrNotExist) && skep.KindOf(err) == skep.Other { // one of its files is gone
		err = &skep.Error{Op: "open catalog", Kind: skep.Damaged, Field: "catalog", Err: err}
	}
	return err
}

// place is where the catalog is, for who opens it or sets it aside.
func (p *Opening) place(op string) *aside.Place {
	devices := slices.Concat(p.Devices, p.Paths(), p.Known)
	id := p.ID
	if id == (segment.StoreID{}) { // the drives are not open yet
		at, _ := p.devicePaths()
		if id = storeOfMost(at); id == (segment.StoreID{}) {
			id = storeOfMost(p.Known)
		}
	}
	return &aside.Place{Op: op, FS: p.Options.FS, Dir: p.CatalogDir, Named: p.NamedCatalog != "", Home: p.Dir, Store: id,
		Devices: devices,
		Timeout: p.Timeout, Log: p.Log}
}

// remember has the store's directory lead to the catalog that was named.
func (p *Opening) remember() { catalogdir.Remember(p.Options.FS, p.Dir, p.NamedCatalog, p.Log) }

// setAside moves what is left of a catalog out of the way.
func (p *Opening) setAside(op string) error {
	// nothing is opened there any more
	_, err := p.place(op).SetAside(p.Wall(), func() { p.Room.Drop() })
	return err
}

// otherFormat is the error of a device in another format than this program reads: the catalog that belongs to it
// stays where it is.
func (p *Opening) otherFormat() error {
	paths, err := p.devicePaths()
	if err != nil {
		return err
	}
	for _, path := range append(slices.Clone(paths), p.Known...) {
		if _, err := segio.PeekSuperblock(path); skep.KindOf(err) == skep.Version {
			return &skep.Error{Op: "open device", Kind: skep.Version, Field: path, Err: err}
		}
	}
	return nil
}

// wasHere refuses to make a store where one was whose devices are not found.
func (p *Opening) wasHere() error {
	list := p.place("open store").Older()
	if len(list) == 0 {
		return nil
	}
	return &skep.Error{Op: "open store", Kind: skep.Missing,
		Field: "devices of the store whose catalog was set aside as " + list[0],
		Limit: "in " + p.Dir + ", or each named with --device: skep rebuild makes the catalog anew from them. " +
			"Where they are not wanted, remove " + list[0]}
}
