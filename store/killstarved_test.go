package store

import (
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/skepkv/skep/store/device"
)

const (
	endThreads = "threads"
	endMemory  = "memory"
)

// No program in Go goes on without a thread or memory that it needs: its process ends, at any moment. What was
// acknowledged is there when the store is opened again, as after a kill.
func TestStarvedToDeath(t *testing.T) {
	t.Parallel() // it waits
	rng := newRand(testSeed(t))
	dir := tempRoot(t, "store")
	lastAck := map[int]int{}
	ends := []string{endThreads}
	if limitsMemory {
		ends = append(ends, endMemory)
	}
	for round := range testNumber(t, "SKEP_KILLS", 2*len(ends)) {
		l := killOne(t, rng, dir, device.Auto, ends[round%len(ends)], round)
		for i, v := range l.acked {
			lastAck[i] = v
		}
		checkKilled(t, dir, device.Auto, round, l, lastAck)
	}
}

// endChild ends the process a moment later, for want of something.
func endChild(of string) {
	time.Sleep(time.Duration(20+rand.IntN(250)) * time.Millisecond)
	switch of {
	case endThreads:
		debug.SetMaxThreads(1)
		for range 1000 {
			go func() {
				runtime.LockOSThread() // a thread of its own, until the process ends
				select {}
			}()
		}
	case endMemory:
		limitMemory()
		for kept := [][]byte{}; ; fmt.Fprintln(io.Discard, len(kept)) {
			kept = append(kept, make([]byte, 1<<20))
		}
	}
}
