package catalog

import (
	"errors"
	"io"
	"io/fs"
	"regexp"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// What the directory of a catalog has in it.
const (
	NothingThere = iota // it is not there, or empty
	FileThere           // it is a file
	CatalogThere        // a catalog, whole or not, or what is left of the making of one
	OthersThere         // somebody else's files
)

// marks are names that Pebble gives to files, and a file system to a directory of its own.
var (
	marks = regexp.MustCompile(`^(marker\..*|MANIFEST-\d+|OPTIONS-\d+)$`)
	known = regexp.MustCompile(`^(LOCK|ballast|lost\+found|CURRENT|temporary\..*|REMOTE-OBJ-CATALOG-.*|\d+\.(log|sst|blob|dbtmp))$`)
)

// Look says what is in a directory, by names alone; name is one of somebody else's.
func Look(fsys vfs.FS, dir string) (what int, name string, err error) {
	if st, err := fsys.Stat(dir); err == nil && !st.IsDir() {
		return FileThere, "", nil
	}
	names, err := fsys.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return NothingThere, "", nil
	}
	if err != nil || len(names) == 0 {
		return NothingThere, "", err
	}
	what = CatalogThere
	for _, n := range names {
		if marks.MatchString(n) {
			return CatalogThere, "", nil
		}
		if !known.MatchString(n) {
			what, name = OthersThere, n
		}
	}
	return what, name, nil
}

// Lock takes the lock of a catalog that is there, which Open takes too, and reads nothing of it. The error is of kind
// Locked where somebody has the catalog open for writing.
func Lock(fsys vfs.FS, dir string) (io.Closer, error) {
	lock, err := fsys.Lock(fsys.PathJoin(dir, "LOCK"))
	if err != nil {
		return nil, lockError(fsys, dir, err)
	}
	return lock, nil
}
