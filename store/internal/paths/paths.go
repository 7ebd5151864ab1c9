// Package paths says what a path of the file system leads to.
package paths

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Real is path without symbolic links, absolute; of what is not there, as far as that goes.
func Real(path string) string {
	if r, err := filepath.EvalSymlinks(path); err == nil {
		path = r
	} else if r, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		path = filepath.Join(r, filepath.Base(path))
	}
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	return path
}

// Within is path relative to dir; false where it leads out of it.
func Within(dir, path string) (string, bool) {
	rel, err := filepath.Rel(dir, path)
	return rel, err == nil && filepath.IsLocal(rel)
}

// DeviceDir is where the system shows its devices.
const DeviceDir = "/dev"

// mostLinks is how many symbolic links are followed, as many as the system does.
const mostLinks = 40

// AmongDevices says whether path is in the file system of DeviceDir: others, such as /dev/shm, may be mounted below
// it.
func AmongDevices(path string) bool {
	for range mostLinks { // Real does not follow a link to what is not there
		to, err := os.Readlink(path)
		if err != nil {
			break
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = to
	}
	path = Real(path)
	if !strings.HasPrefix(path, DeviceDir+string(filepath.Separator)) {
		return false
	}
	top, _, known := FileSystem(DeviceDir)
	for ; known && path != DeviceDir; path = filepath.Dir(path) {
		if id, _, ok := FileSystem(path); ok {
			return id == top
		}
	}
	return true
}

// IsBlockDevice says whether a file is a block device.
func IsBlockDevice(st fs.FileInfo) bool {
	return st.Mode()&fs.ModeDevice != 0 && st.Mode()&fs.ModeCharDevice == 0
}

// FileType names what a file is, for people.
func FileType(st fs.FileInfo) string {
	switch {
	case st.IsDir():
		return "directory"
	case st.Mode().IsRegular():
		return "file"
	case st.Mode()&fs.ModeCharDevice != 0:
		return "character device"
	}
	return "special file"
}

// IsNew says whether a file may be made as path: nothing is there, and its directory is.
func IsNew(path string) (bool, error) {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	_, err := os.Stat(filepath.Dir(path))
	return err == nil, err
}
