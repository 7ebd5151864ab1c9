// Package dirlock keeps a second process from opening a store's directory for writing.
//
// The file LOCK says who holds it, for people; the kernel's lock on the file is what counts, so a process that dies
// leaves none behind. Where there is no flock, the catalog's own lock keeps others out.
package dirlock

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/skepkv/skep"
)

// Lock is a directory that this process has to itself.
type Lock struct {
	Made   bool // its file was not there
	Remove bool // its file goes with Release

	f *os.File // nil: nothing can be written there, and nobody ever had it for writing
}

// Take takes the lock of a store's directory. Who only looks gets it where nothing can be written, too: on a
// file system that is mounted for reading, or in another user's directory.
//
// Errors: Locked, which says who has it; ReadOnly on a file system that is mounted for reading; Denied in another user's
// directory; Other.
func Take(dir string, looking bool) (*Lock, error) {
	for {
		l, err := lockFile(dir, looking)
		if err != nil || l.f == nil {
			return l, err
		}
		// Who could not make a store removes the file: it must still be the one that is locked.
		mine, err1 := l.f.Stat()
		there, err2 := os.Stat(l.f.Name())
		if err1 != nil || err2 == nil && os.SameFile(mine, there) {
			return l, nil
		}
		l.f.Close()
	}
}

func lockFile(dir string, looking bool) (*Lock, error) {
	path := filepath.Join(dir, "LOCK")
	_, err := os.Stat(path)
	made := errors.Is(err, fs.ErrNotExist)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if looking && (errors.Is(err, syscall.EROFS) || errors.Is(err, fs.ErrPermission)) {
		if f, err = os.Open(path); errors.Is(err, fs.ErrNotExist) {
			return &Lock{}, nil // who has a store open has made it
		}
		made = false
	}
	if err != nil {
		return nil, CannotWrite("lock store", path, err)
	}
	ok, err := tryLock(f)
	if err != nil {
		f.Close()
		return nil, &skep.Error{Op: "lock store", Kind: skep.Other, Field: path, Err: err}
	}
	if !ok {
		buf := make([]byte, 512)
		n, _ := f.ReadAt(buf, 0)
		f.Close()
		return nil, &skep.Error{Op: "open store", Kind: skep.Locked, Field: dir, Value: heldBy(string(buf[:n]), path),
			Limit: "free; end that process, or open read-only"}
	}
	host, _ := os.Hostname()
	who := fmt.Sprintf("process %d (%s) on %s since %s\n", os.Getpid(), filepath.Base(os.Args[0]), host, time.Now().Format(time.RFC3339))
	if err := f.Truncate(0); err == nil { // where it may be written
		if _, err = f.WriteAt([]byte(who), 0); err != nil {
			f.Close()
			return nil, &skep.Error{Op: "lock store", Kind: skep.Other, Field: path, Err: err}
		}
	}
	return &Lock{f: f, Made: made}, nil
}

// Release gives the lock back.
func (l *Lock) Release() error {
	if l.f == nil {
		return nil
	}
	if l.Remove {
		os.Remove(l.f.Name())
	}
	l.f.Truncate(0) // a stale name would mislead
	// Not left to the close: a process that was forked meanwhile has the file open, too, until it starts its program
	// or, if it never does, until it ends.
	return errors.Join(unlock(l.f), l.f.Close())
}

// CannotWrite is the error of a store's directory, or a file in it, that could not be made or opened for writing, with
// what to do.
func CannotWrite(op, path string, err error) error {
	e := &skep.Error{Op: op, Kind: skep.Other, Field: path, Err: err}
	switch {
	case errors.Is(err, syscall.EROFS):
		e.Kind, e.Limit = skep.ReadOnly, "on a file system that is mounted for writing; or open the store read-only"
	case errors.Is(err, fs.ErrPermission):
		e.Kind, e.Limit = skep.Denied, "one that this process may write: run as the user that owns it, or open the store read-only"
	}
	return e
}
