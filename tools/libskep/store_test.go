package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A call that may take an hour, or for ever, may take an hour, and not the 30 s of one that does not say.
func TestALongTimeoutIsNotAShortOne(t *testing.T) {
	t.Parallel()
	for _, ms := range []int64{3_599_999, 3_600_000, 1 << 62} {
		ctx, cancel := timeout(ms)
		until, _ := ctx.Deadline()
		require.True(t, time.Now().Add(patience).Before(until), "%d ms", ms)
		cancel()
	}
}
