//go:build !linux

package gputest

import "testing"

// mapping is memory that is not Go's.
func mapping(t testing.TB, _ int) ([]byte, func()) {
	t.Skip("pinned memory is tested on Linux")
	return nil, nil
}
