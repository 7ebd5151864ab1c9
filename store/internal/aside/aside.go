// Package aside knows where a store's catalog is, and puts what is left of one out of the way. It touches nothing that
// is not the store's: a directory that a person named may be the catalog of another store, or no catalog at all.
package aside

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/catalogdir"
	"github.com/skepkv/skep/store/internal/paths"
	"github.com/skepkv/skep/store/segment"
)

// Place is where the catalog of a store is, or is to be.
type Place struct {
	Op    string // whose errors they are
	FS    vfs.FS
	Dir   string // of the catalog
	Named bool   // a person said where: Options.CatalogDir
	Home  string // the store's directory

	Store   segment.StoreID // the store; zero: not known
	Devices []string        // their paths
	Timeout time.Duration   // for looking into a catalog
	Log     *slog.Logger
}

// usual is where the catalog is when nobody says otherwise.
func (p *Place) usual() string {
	at, _, err := catalogdir.Of(p.Home)
	if err != nil {
		return filepath.Join(p.Home, "catalog")
	}
	return at
}

func (p *Place) refuse(kind skep.Kind, value, limit string) error {
	return &skep.Error{Op: p.Op, Kind: kind, Field: "catalog directory", Value: value, Limit: limit}
}

// Open refuses a directory in which no catalog of this store can be opened or made: a file, one with somebody's files,
// and one where nothing is though the store has its catalog at the usual place.
func (p *Place) Open() error {
	what, err := p.look()
	if err != nil || what != catalog.NothingThere || len(p.Older()) > 0 || paths.Real(p.Dir) == paths.Real(p.usual()) {
		return err
	}
	if there, _, err := catalog.Look(p.FS, p.usual()); err == nil && there == catalog.CatalogThere {
		return p.refuse(skep.Conflict, p.Dir+", where none is", "left out: the store's catalog is "+p.usual()+
			"; move it there, or have another made there from the devices (skep rebuild), and remove that one")
	}
	return nil
}

// look says what is in the directory, and refuses what cannot be a catalog's.
func (p *Place) look() (int, error) {
	what, other, err := catalog.Look(p.FS, p.Dir)
	switch {
	case err != nil:
		return what, &skep.Error{Op: p.Op, Kind: skep.Other, Field: "catalog", Value: p.Dir, Err: err}
	case !p.Named: // it is the store's, whatever is in it
	case what == catalog.FileThere:
		return what, p.refuse(skep.Invalid, p.Dir+", which is a file", "a directory, or left out: "+p.usual())
	case what == catalog.OthersThere:
		return what, p.refuse(skep.Invalid, p.Dir+", with "+other+" in it",
			"a catalog, an empty directory or one that is not there yet, or left out: "+p.usual())
	}
	return what, nil
}

// Check refuses a directory that SetAside would refuse to move, but for one that somebody has open.
func (p *Place) Check() error {
	what, err := p.look()
	if err != nil || what == catalog.NothingThere {
		return err
	}
	if err := p.holdsStore(); err != nil || what != catalog.CatalogThere {
		return err
	}
	return p.anothers()
}

// OtherFormat refuses, as Version, a catalog that a program of another format has written: it may say what the devices
// do not, and that program would not find it. What is damaged otherwise is not of another format.
func (p *Place) OtherFormat() error {
	if what, _, err := catalog.Look(p.FS, p.Dir); err != nil || what != catalog.CatalogThere {
		return nil
	}
	c, err := catalog.Inspect(p.Dir, catalog.Options{FS: p.FS, Logger: p.Log, OpenTimeout: p.Timeout})
	if err == nil {
		return c.Close()
	}
	if skep.KindOf(err) != skep.Version {
		return nil
	}
	return &skep.Error{Op: p.Op, Kind: skep.Version, Field: "catalog", Value: p.Dir, Err: err,
		Limit: "of this program's format: use the skep that wrote it. Where what only it says is not wanted, move it away"}
}

// SetAside moves what is left of a catalog to a directory beside it, whose name says when, and says which; empty:
// nothing was there. It calls before right before.
func (p *Place) SetAside(now time.Time, before func()) (to string, err error) {
	what, err := p.look()
	if err == nil {
		err = p.Check()
	}
	if err != nil || what == catalog.NothingThere {
		return "", err
	}
	if what != catalog.FileThere {
		lock, why := catalog.Lock(p.FS, p.Dir)
		switch {
		case skep.KindOf(why) == skep.Locked:
			return "", why
		case why == nil && runtime.GOOS == "windows": // what is open cannot be moved there
			why = lock.Close()
		case why == nil:
			defer func() { err = errors.Join(err, lock.Close()) }()
		}
		if why != nil { // it is damaged
			p.Log.Warn("the lock of what is left of the catalog cannot be taken", "path", p.Dir, "error", why)
		}
	}
	before()
	to = p.Dir + ".old-" + now.UTC().Format("20060102T150405.000")
	if err := p.FS.Rename(p.Dir, to); err != nil {
		return "", &skep.Error{Op: p.Op, Kind: skep.Other, Field: "catalog", Value: p.Dir,
			Limit: "one that can be moved aside", Err: err}
	}
	p.Log.Warn("what was left of the catalog is set aside; remove it once you are content", "path", to)
	parent, err := p.FS.OpenDir(p.FS.PathDir(p.Dir))
	if err != nil {
		return to, err
	}
	return to, errors.Join(parent.Sync(), parent.Close())
}

// holdsStore refuses a directory with the store or a device in it, which would be moved, too.
func (p *Place) holdsStore() error {
	dir := paths.Real(p.Dir)
	for _, path := range append([]string{p.Home}, p.Devices...) {
		if _, in := paths.Within(dir, paths.Real(path)); in {
			return p.refuse(skep.Invalid, p.Dir+", with "+path+" in it",
				"a directory of its own, or left out: "+p.usual())
		}
	}
	return nil
}

// anothers refuses the catalog of another store. One that cannot be read says nothing of whose it is.
func (p *Place) anothers() error {
	if !p.Named || p.Store == (segment.StoreID{}) {
		return nil
	}
	c, err := catalog.Inspect(p.Dir, catalog.Options{FS: p.FS, Logger: p.Log, OpenTimeout: p.Timeout})
	if err != nil {
		return nil
	}
	root, err := c.Store(context.Background())
	_ = c.Close()
	if err == nil && root.StoreID != p.Store {
		return p.refuse(skep.Foreign, p.Dir+", the catalog of store "+segment.StoreID(root.StoreID).String(),
			"that of store "+p.Store.String()+", or left out: "+p.usual())
	}
	return nil
}

// Older are the directories of catalogs that were set aside, the newest first.
func (p *Place) Older() (list []string) {
	names, err := p.FS.List(p.FS.PathDir(p.Dir))
	if err != nil {
		return nil // there is no such directory yet
	}
	for _, name := range names {
		if strings.HasPrefix(name, p.FS.PathBase(p.Dir)+".old-") {
			list = append(list, p.FS.PathJoin(p.FS.PathDir(p.Dir), name))
		}
	}
	slices.Sort(list)
	slices.Reverse(list)
	return list
}
