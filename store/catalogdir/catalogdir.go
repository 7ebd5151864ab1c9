// Package catalogdir finds a store's catalog: in its directory, or where a person has put it. The directory remembers
// that place in a file, so that whoever is given the directory alone finds the catalog, too.
package catalogdir

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/atomicfile"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/paths"
)

// file is the name of the file in a store's directory.
const file = "catalog-dir.json"

// note is what it holds.
type note struct {
	Catalog string `json:"catalog"` // its directory
	Of      string `json:"of"`      // the store's directory: a copy of it does not lead to the original's catalog
}

// Of is the directory of the catalog of the store in dir, and whether a person said so.
//
// Errors by kind: Damaged (the file says nothing), Foreign (it was written for another directory, of which this one is
// a copy), Missing (there is no catalog where it says).
func Of(dir string) (at string, named bool, err error) {
	bad := func(kind skep.Kind, value, limit string, err error) (string, bool, error) {
		return "", false, &skep.Error{Op: "find catalog", Kind: kind, Field: filepath.Join(dir, file), Value: value,
			Limit: limit, Err: err}
	}
	b, err := os.ReadFile(filepath.Join(dir, file))
	if errors.Is(err, fs.ErrNotExist) {
		return filepath.Join(dir, "catalog"), false, nil
	}
	const another = "name the catalog's directory (--catalog-dir, store.catalog_dir)"
	if err != nil {
		return bad(skep.Other, "", "a file that can be read; else "+another, err)
	}
	var n note
	if err := json.Unmarshal(b, &n); err != nil || !filepath.IsAbs(n.Catalog) {
		return bad(skep.Damaged, string(b[:min(len(b), 100)]), "what skep wrote there; else "+another, err)
	}
	if n.Of != of(dir) {
		const limit = "for this directory, which is a copy of another, or was copied here: " + another
		return bad(skep.Foreign, n.Catalog, limit, nil)
	}
	if what, _, err := catalog.Look(vfs.Default, n.Catalog); err != nil || what != catalog.CatalogThere {
		// It is not mounted, say.
		const limit = "a directory with a catalog; " + another +
			": where none is there, one is made anew from the devices"
		return bad(skep.Missing, n.Catalog, limit, err)
	}
	return n.Catalog, true, nil
}

// of tells a directory from its copies.
func of(dir string) string {
	if id := paths.Identity(dir); id != "" {
		return id
	}
	return paths.Real(dir)
}

// Find sets the directory of the catalog of the store in dir to what Of says, where it is empty and a person said so. A
// catalog that tests have in memory is in no directory.
func Find(fsys vfs.FS, dir string, at *string) error {
	if *at != "" || fsys != vfs.Default {
		return nil
	}
	has, named, err := Of(dir)
	if named {
		*at = has
	}
	return err
}

// Remember notes that the catalog of the store in dir is at a place, an absolute path; an empty one is noted nowhere.
// Where that fails it has to be named again, and log says so. It removes what crashes left of noting it before. The
// caller has the directory locked.
func Remember(fsys vfs.FS, dir, at string, log *slog.Logger) {
	if fsys != vfs.Default {
		return
	}
	if err := tidy(dir, log); err != nil {
		log.Warn("what a crash left of a file is not removed", "file", filepath.Join(dir, file), "error", err)
	}
	if at == "" {
		return
	}
	if err := remember(dir, at); err != nil {
		log.Warn("the store's directory does not lead to its catalog: name that at the next start",
			"catalog", at, "error", err)
	}
}

// tidy removes the temporary files of atomicfile.Write: the file's name, a dot and digits.
func tidy(dir string, log *slog.Logger) error {
	list, err := os.ReadDir(dir)
	for _, f := range list {
		digits, ours := strings.CutPrefix(f.Name(), file+".")
		if ours && digits != "" && strings.Trim(digits, "0123456789") == "" {
			log.Info("what a crash left of a file is removed", "file", f.Name(), "dir", dir)
			err = errors.Join(err, os.Remove(filepath.Join(dir, f.Name())))
		}
	}
	return err
}

func remember(dir, at string) error {
	path := filepath.Join(dir, file)
	if at == filepath.Join(dir, "catalog") {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	b, err := json.Marshal(note{Catalog: at, Of: of(dir)})
	if err != nil {
		return err
	}
	if have, err := os.ReadFile(path); err == nil && string(have) == string(b) {
		return nil
	}
	return atomicfile.Write(path, b)
}
