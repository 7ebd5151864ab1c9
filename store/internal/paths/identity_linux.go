package paths

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Identity is what tells a directory from a copy of it, which has another inode and was born
// later. The device number is not part of it: it may be another after a restart.
func Identity(dir string) string {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil || st.Mask&unix.STATX_INO == 0 {
		return ""
	}
	born := "unknown"
	if st.Mask&unix.STATX_BTIME != 0 {
		born = fmt.Sprintf("%d.%09d", st.Btime.Sec, st.Btime.Nsec)
	}
	return fmt.Sprintf("inode %d born %s", st.Ino, born)
}

// HardLinked says whether a file has another name.
func HardLinked(path string) bool {
	st, err := os.Stat(path)
	if err != nil {
		return false
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && st.Mode().IsRegular() && sys.Nlink > 1
}
