//go:build !unix

package bench

// processCPU is not known on this system.
func processCPU() float64 { return 0 }

// hugeMemory is ordinary memory on this system.
func hugeMemory(n int64) ([]byte, func(), error) { return make([]byte, n), func() {}, nil }

func syncAll() {}
