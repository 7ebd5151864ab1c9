package segio

import (
	"errors"
	"os"
	"syscall"
)

// seekData is SEEK_DATA of lseek(2).
const seekData = 3

// nextData is where a file holds something next, at or after off; false: nowhere. What the
// system cannot tell is taken for data, and read.
func nextData(f *os.File, off int64) (int64, bool) {
	at, err := f.Seek(off, seekData)
	if errors.Is(err, syscall.ENXIO) {
		return 0, false
	}
	if err != nil {
		return off, true
	}
	return at, true
}
