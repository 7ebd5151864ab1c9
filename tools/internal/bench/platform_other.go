//go:build !linux

package bench

const directFlag = 0 // through the page cache

func wantHuge([]byte) {}
