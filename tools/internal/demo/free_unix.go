//go:build unix

package demo

import "golang.org/x/sys/unix"

// freeBytes is what the file system of dir has left for us.
func freeBytes(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return int64(s.Bavail) * int64(s.Bsize), nil
}
