// Package atomicfile writes small files so that a crash leaves the old one or the new one.
package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
)

// Write has b be all that the file holds, durably. What is there is replaced; its mode becomes 0600.
func Write(path string, b []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir makes new names in a directory durable. Windows has no such thing.
func SyncDir(path string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
