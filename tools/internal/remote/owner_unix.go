//go:build unix

package remote

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// giveTo has f belong to whom the file belongs that st is of, as far as this process may do that: root may.
func giveTo(f *os.File, st os.FileInfo) error {
	mine, err := f.Stat()
	if err != nil {
		return err
	}
	was, is := st.Sys().(*syscall.Stat_t), mine.Sys().(*syscall.Stat_t)
	if was.Uid == is.Uid && was.Gid == is.Gid {
		return nil
	}
	err = f.Chown(int(was.Uid), int(was.Gid))
	if errors.Is(err, fs.ErrPermission) {
		err = f.Chown(-1, int(was.Gid)) // a group that the user is in
	}
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EINVAL) { // one that this namespace does not know
		return nil
	}
	return err
}
