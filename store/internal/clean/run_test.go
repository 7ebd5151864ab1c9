package clean

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/space"
)

// A store that closes cleans no group more, though free groups are few.
func TestAStoreThatClosesBeginsNoCleaning(t *testing.T) {
	t.Parallel()
	closing := make(chan struct{})
	log := slog.New(slog.DiscardHandler)
	c := New(Config{Context: t.Context(), Closing: closing, Rows: commit.New(log), Log: log,
		Tight: func() bool { return false },
		Space: space.New(space.Config{Log: log, Drives: func() []*space.Drive { return nil }})})
	c.Space.KeptFree = 1 // of none
	require.True(t, c.goesOn())
	close(closing)
	require.True(t, c.needed())
	require.False(t, c.goesOn())
}

// What a compaction has on loan is about to come back: meanwhile only groups that hold nothing are cleaned.
func TestGroupsOnLoanAreNotMadeUpFor(t *testing.T) {
	t.Parallel()
	tight := false
	c := New(Config{Tight: func() bool { return tight },
		Space: space.New(space.Config{Drives: func() []*space.Drive { return nil }})})
	require.True(t, c.needed())
	require.False(t, c.empty)
	c.Loan.Store(1)
	require.True(t, c.needed())
	require.True(t, c.empty)
	tight = true // the index has no loan
	require.True(t, c.needed())
	require.False(t, c.empty)
}
