// Package drawn gives randomised tests their seed: all by one rule, so that a run can be had again.
package drawn

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// Seed is what SKEP_SEED says, or drawn anew; it is printed with the test's output. A SKEP_SEED that
// is no number ends the test.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if v := os.Getenv("SKEP_SEED"); v != "" {
		var err error
		if seed, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatalf("SKEP_SEED=%q: %v", v, err)
		}
	}
	t.Logf("SKEP_SEED=%d", seed)
	return seed
}
