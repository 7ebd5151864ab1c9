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
	if err := f.Chown(int(was.Uid), int(was.Gid)); !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return nil
}
