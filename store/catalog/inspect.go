package catalog

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/skepkv/skep"
)

// Inspect opens the catalog in dir for reading while another process, or this one,
// has it open and writes to it. What it shows is the catalog at one moment during
// the call, without the unsynced commits of the last moments, and does not change.
// It takes no lock, writes nothing, not even a directory entry, and holds back no
// disk space once its process has ended.
//
// Pebble has no such thing, so it opens a frozen view: tables never change, and an
// open one stays readable when it is deleted; the log, the manifest and the rest are
// copied to memory. The view is whole when the manifest is the same after as before:
// then no log the manifest needs was flushed, deleted or recycled meanwhile. When it
// is not, Inspect takes another, until o.OpenTimeout.
func Inspect(dir string, o Options) (*Catalog, error) {
	o.ensureDefaults()
	o.ReadOnly, o.MustNotExist = true, false
	return openWithin(dir, &o, func(c *Catalog) error {
		deadline := time.Now().Add(o.OpenTimeout)
		wait := time.Millisecond
		var was string
		var since time.Time
		for try := 1; ; try++ {
			err := c.inspect(&o)
			// A recycled log read while it is written may look damaged, once.
			again := errors.Is(err, errMoved) || errors.Is(err, fs.ErrNotExist) || pebble.IsCorruptionError(err) && try < 4
			if err == nil || !again || c.isFailed() {
				return err
			}
			_ = c.releaseAll()
			if is := still(o.FS, dir); is != was {
				was, since = is, time.Now()
			} else if time.Since(since) > stillness {
				return &skep.Error{Op: "inspect catalog", Kind: skep.Damaged, Field: "directory", Value: dir, Limit: "whole: nobody is changing it", Err: err}
			}
			if time.Now().Add(wait).After(deadline) {
				return &skep.Error{Op: "inspect catalog", Kind: skep.Deadline, Field: "directory", Value: dir,
					Limit: "quiet for a moment within " + o.OpenTimeout.String(), Err: err}
			}
			time.Sleep(wait)
			wait = min(2*wait, 100*time.Millisecond)
		}
	})
}

// stillness is after how long without a change of its files a catalog that cannot be read is not one that is being written,
// but one that stays as it is: files of another store among its own, or some that are gone.
const stillness = 500 * time.Millisecond

// still is the directory as it is listed.
func still(from vfs.FS, dir string) string {
	names, err := from.List(dir)
	slices.Sort(names)
	var b strings.Builder
	fmt.Fprintln(&b, err)
	for _, name := range names {
		if st, err := from.Stat(from.PathJoin(dir, name)); err == nil {
			fmt.Fprintln(&b, name, st.Size(), st.ModTime().UnixNano())
		}
	}
	return b.String()
}

// errMoved says that the catalog changed while the view was taken.
var errMoved = errors.New("catalog moved on")

func (c *Catalog) inspect(o *Options) error {
	if st, err := o.FS.Stat(c.dir); err == nil && !st.IsDir() {
		return &skep.Error{Op: "inspect catalog", Kind: skep.Damaged, Field: "catalog", Value: c.dir + ", which is a file", Limit: "a directory"}
	}
	exists, err := examine(o.FS, c.dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !exists {
		return &skep.Error{Op: "inspect catalog", Kind: skep.NotFound, Field: "directory", Value: c.dir, Limit: "an existing catalog"}
	}
	if err != nil {
		return err
	}
	view, err := freeze(o.FS, c.dir)
	if err != nil {
		return err
	}
	if !c.hold(view) {
		return c.failure("inspect catalog")
	}
	return c.openPebble(view, o)
}

// frozen is a filesystem that holds the files of one directory as they were at one
// moment: tables as open files, everything else in memory.
type frozen struct {
	vfs.FS // the memory
	tables map[string]vfs.File
}

func freeze(from vfs.FS, dir string) (_ *frozen, err error) {
	f := &frozen{FS: vfs.NewMem(), tables: map[string]vfs.File{}}
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	if err := f.FS.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	names, err := from.List(dir)
	if err != nil {
		return nil, err
	}
	manifest, before, err := readManifest(from, dir, names)
	if err != nil {
		return nil, err
	}
	if err := f.write(dir, manifest, before); err != nil {
		return nil, err
	}
	// Listed after the manifest was read: every table it names is there or has moved.
	if names, err = from.List(dir); err != nil {
		return nil, err
	}
	// Logs by number: one that ends early was the last when it was read.
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
	for _, name := range names {
		path := from.PathJoin(dir, name)
		switch {
		case name == "LOCK", name == manifest, strings.HasSuffix(name, ".dbtmp"), strings.HasPrefix(name, "MANIFEST-"):
			continue
		case isTable(name):
			table, err := from.Open(path, vfs.RandomReadsOption)
			if errors.Is(err, fs.ErrNotExist) {
				continue // obsolete, or the manifest will show that it changed
			}
			if err != nil {
				return nil, err
			}
			f.tables[path] = table
			continue
		}
		content, err := readAll(from, path)
		if err == nil {
			err = f.write(dir, name, content)
		}
		if err != nil {
			return nil, err
		}
	}
	if names, err = from.List(dir); err != nil {
		return nil, err
	}
	now, after, err := readManifest(from, dir, names)
	if err != nil {
		return nil, err
	}
	if now != manifest || !bytes.Equal(before, after) {
		return nil, errMoved
	}
	return f, nil
}

// readManifest reads the manifest the marker names. During a change there may be two
// markers; then the moment is a bad one.
func readManifest(from vfs.FS, dir string, names []string) (string, []byte, error) {
	var found []string
	for _, name := range names {
		if strings.HasPrefix(name, "marker.manifest.") {
			found = append(found, name[strings.LastIndexByte(name, '.')+1:])
		}
	}
	if len(found) != 1 {
		return "", nil, fmt.Errorf("%w: %d manifest markers", errMoved, len(found))
	}
	content, err := readAll(from, from.PathJoin(dir, found[0]))
	return found[0], content, err
}

func readAll(from vfs.FS, path string) ([]byte, error) {
	file, err := from.Open(path, vfs.SequentialReadsOption)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(file)
}

func (f *frozen) write(dir, name string, content []byte) error {
	file, err := f.FS.Create(f.FS.PathJoin(dir, name), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = file.Write(slices.Clone(content)) // Write may change what it is given
	return errors.Join(err, file.Close())
}

func (f *frozen) Open(name string, o ...vfs.OpenOption) (vfs.File, error) {
	if table, ok := f.tables[name]; ok {
		return sharedFile{table}, nil
	}
	return f.FS.Open(name, o...)
}

func (f *frozen) Stat(name string) (vfs.FileInfo, error) {
	if table, ok := f.tables[name]; ok {
		return table.Stat()
	}
	return f.FS.Stat(name)
}

func (f *frozen) List(dir string) ([]string, error) {
	names, err := f.FS.List(dir)
	for path := range f.tables {
		if f.FS.PathDir(path) == strings.TrimSuffix(dir, "/") {
			names = append(names, f.FS.PathBase(path))
		}
	}
	return names, err
}

func (f *frozen) Unwrap() vfs.FS { return f.FS }

// Close closes the tables.
func (f *frozen) Close() error {
	var errs []error
	for _, table := range f.tables {
		errs = append(errs, table.Close())
	}
	return errors.Join(errs...)
}

// sharedFile is a table that stays open until the view is closed. Pebble reads
// tables at offsets only.
type sharedFile struct{ vfs.File }

func (sharedFile) Close() error { return nil }
