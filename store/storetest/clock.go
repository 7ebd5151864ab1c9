package storetest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"time"
)

// SteppingClock is a machine's clock that is set all the time, by hours and in both
// directions, as a hostile or confused time server sets it. Nothing that is promised for a
// while may notice. Tests' processes run by it altogether (see TestMain of those packages);
// SKEP_CLOCK=still leaves the clock alone, and SKEP_CLOCK=N makes N the seed.
type SteppingClock struct {
	mu    sync.Mutex
	of    func() time.Time
	rng   *rand.Rand
	by    time.Duration
	steps int
}

// MachineClock is what a package's tests take for the machine's clock.
func MachineClock() func() time.Time {
	v := os.Getenv("SKEP_CLOCK")
	if v == "still" {
		return time.Now
	}
	seed := rand.Uint64()
	if n, err := strconv.ParseUint(v, 10, 64); err == nil {
		seed = n
	}
	fmt.Fprintf(os.Stderr, "the machine's clock steps: SKEP_CLOCK=%d\n", seed)
	return NewSteppingClock(seed, time.Now).Read
}

// NewSteppingClock steps around of.
func NewSteppingClock(seed uint64, of func() time.Time) *SteppingClock {
	return &SteppingClock{of: of, rng: rand.New(rand.NewPCG(seed, seed))}
}

// Read is the time it shows, without a monotonic reading. Every third reading or so it has
// been set in between, up to half a day away from what is right.
func (c *SteppingClock) Read() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rng.IntN(3) == 0 {
		c.by = time.Duration(c.rng.Int64N(int64(24*time.Hour))) - 12*time.Hour
		c.steps++
	}
	return c.of().Round(0).Add(c.by)
}

// Steps is how often it was set.
func (c *SteppingClock) Steps() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.steps
}
