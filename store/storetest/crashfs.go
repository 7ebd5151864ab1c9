package storetest

import "github.com/cockroachdb/pebble/v2/vfs"

// CrashFS is mem for a store whose crashes are cloned from it at any moment. MemFS.ReuseForWrite takes a lock for
// reading that it has; with a clone waiting for it in between it waits for itself.
func CrashFS(mem *vfs.MemFS) vfs.FS { return crashFS{mem} }

type crashFS struct{ *vfs.MemFS }

func (c crashFS) ReuseForWrite(oldname, newname string, o vfs.DiskWriteCategory) (vfs.File, error) {
	if err := c.Rename(oldname, newname); err != nil {
		return nil, err
	}
	return c.OpenReadWrite(newname, o)
}
