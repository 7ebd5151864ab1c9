package store

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const limitsMemory = true

// limitMemory lets the process have next to no more than it has: what others would leave it.
func limitMemory() {
	b, err := os.ReadFile("/proc/self/statm")
	var pages uint64
	if err == nil {
		_, err = fmt.Sscan(string(b), &pages)
	}
	if err == nil {
		size := pages*uint64(os.Getpagesize()) + 4<<20
		err = unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: size, Max: size})
	}
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
}
