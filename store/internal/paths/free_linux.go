package paths

import "golang.org/x/sys/unix"

// FileSystem says which file system dir is on, and what that has left for us.
func FileSystem(dir string) (id uint64, free int64, ok bool) {
	var st unix.Statfs_t
	var at unix.Stat_t
	if unix.Statfs(dir, &st) != nil || unix.Stat(dir, &at) != nil {
		return 0, 0, false
	}
	return at.Dev, int64(st.Bavail) * int64(st.Bsize), true
}
