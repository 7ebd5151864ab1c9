package catalog

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/skepkv/skep"
)

// lockError tells a lock that is held from one that cannot be taken.
func lockError(fsys vfs.FS, dir string, err error) error {
	var path *fs.PathError
	if errors.As(err, &path) { // the LOCK file itself could not be opened
		return err
	}
	locked := func(by string) error {
		return &skep.Error{Op: "open catalog", Kind: skep.Locked, Field: "directory", Value: dir, Limit: "free; it is held by " + by, Err: err}
	}
	switch {
	case strings.Contains(err.Error(), "current process"):
		return locked("this process")
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EACCES):
		if vfs.Root(fsys) != vfs.Default {
			return locked("this process")
		}
		// The lock is another process's, so that closing the file gives up none of ours.
		if pid := lockHolder(fsys.PathJoin(dir, "LOCK")); pid > 0 {
			return locked(fmt.Sprintf("process %d", pid))
		}
		return locked("another process")
	}
	return err
}
