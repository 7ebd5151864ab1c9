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

// Device is what the device at path is known by, under whichever of its names: two paths that give the same lead to the
// same block device or file.
func Device(path string) string {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err == nil {
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFBLK:
			return fmt.Sprintf("block device %d", st.Rdev)
		case unix.S_IFREG:
			return fmt.Sprintf("file %d of %d", st.Ino, st.Dev)
		}
	}
	return Real(path)
}
