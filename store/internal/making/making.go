// Package making keeps the list of the device files that are made while a store is made.
//
// It is no leave to remove them: where a making was cut off, only what is proved empty by reading it is removed
// (segio.IsUnused), and nothing where any file of the store holds something.
package making

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/segio"
)

// Name is the file that lists them, in the store's directory.
const Name = "CREATING"

// List is the list of one directory. nil is that of a store whose devices are no files of it: there is nothing to
// list.
type List struct {
	dir    string
	remove func(string) error
}

// New is the list in dir. remove is os.Remove; nil is the same.
func New(dir string, remove func(string) error) *List {
	if remove == nil {
		remove = os.Remove
	}
	return &List{dir, remove}
}

// Path is where the list is; empty: nowhere.
func (l *List) Path() string {
	if l == nil {
		return ""
	}
	return filepath.Join(l.dir, Name)
}

// Begin notes which of paths are about to be made: those that are not there.
func (l *List) Begin(paths []string) error {
	if l == nil {
		return nil
	}
	var fresh []string
	for _, p := range paths {
		if _, err := os.Stat(p); errors.Is(err, fs.ErrNotExist) {
			abs, err := filepath.Abs(p)
			if err != nil {
				return err
			}
			fresh = append(fresh, abs)
		}
	}
	b, err := json.Marshal(fresh)
	if err != nil {
		return err
	}
	f, err := os.Create(l.Path())
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close(), syncPath(l.dir))
}

// syncPath makes a directory's entries durable; not every system can.
func syncPath(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) || runtime.GOOS == "windows" {
		err = nil
	}
	return errors.Join(err, d.Close())
}

// End takes the list away for good: what is reported as made afterwards is never
// taken for what a making has left.
func (l *List) End() error {
	if l == nil {
		return nil
	}
	err := l.remove(l.Path())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil:
		err = syncPath(l.dir)
	}
	if err != nil {
		return &skep.Error{Op: "open store", Kind: skep.Other, Field: "list of what was being made", Value: l.Path(),
			Limit: "one that can be removed: the store is made, remove the file", Err: err}
	}
	return nil
}

// There says whether there is a list: a making is under way, or was cut off.
func (l *List) There() (bool, error) {
	if l == nil {
		return false, nil
	}
	_, err := os.Stat(l.Path())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Undo removes what a making that was cut off has made: the files that it listed, where none of paths, the store's
// device files, holds anything. False: one does, and nothing was removed.
func (l *List) Undo(ctx context.Context, paths []string, log *slog.Logger) (empty bool, err error) {
	b, err := os.ReadFile(l.Path())
	if err != nil {
		return false, err
	}
	var listed, unused []string
	if json.Unmarshal(b, &listed) != nil {
		listed = nil // cut off itself: nothing was made yet
	}
	for _, p := range paths {
		st, err := os.Lstat(p)
		if err != nil || !st.Mode().IsRegular() {
			continue
		}
		ok, err := segio.IsUnused(ctx, p)
		if err != nil {
			return false, err
		}
		if !ok {
			log.Warn("a making is said to have been cut off here, and a device file holds something: nothing is removed", "path", p)
			return false, nil
		}
		abs, err := filepath.Abs(p)
		if err != nil {
			return false, err
		}
		if slices.Contains(listed, abs) {
			unused = append(unused, p)
		}
	}
	for _, p := range unused {
		log.Warn("the making of a store was cut off here; its device file, which is empty, is removed and made anew", "path", p)
		if err := os.Remove(p); err != nil {
			return false, err
		}
	}
	return true, nil
}
