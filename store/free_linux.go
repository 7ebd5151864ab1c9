package store

import (
	"path/filepath"

	"golang.org/x/sys/unix"
)

// freeBytes is what the file system of path has left for us.
func freeBytes(path string) (int64, bool) {
	var st unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(path), &st); err != nil {
		return 0, false
	}
	return int64(st.Bavail) * int64(st.Bsize), true
}
