//go:build !linux

package bench

import "errors"

// freshChecksum needs a clock of the thread and O_DIRECT.
func freshChecksum([]file, [][]byte, int64) (Sample, error) { return Sample{}, errors.ErrUnsupported }
