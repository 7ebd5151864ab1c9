//go:build cgo

package main

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// Of two who close a store one does.
func TestAStoreIsClosedOnce(t *testing.T) {
	t.Parallel()
	id := last.Add(1)
	stores.Store(id, &opened{})
	_, err := take(id)
	require.NoError(t, err)
	_, err = take(id)
	require.ErrorIs(t, err, skep.Invalid)
}

// A store that is closed says so where something may still write to a destination.
func TestClosingSaysWhatIsNotReleased(t *testing.T) {
	t.Parallel()
	o, over := &opened{}, make(chan struct{})
	close(over)
	_, cancel := context.WithCancel(t.Context())
	id := last.Add(1)
	restorings.Store(id, &restoring{of: o, over: over, cancel: cancel, ses: &clingingSession{c: &clinging{}}})
	require.ErrorIs(t, o.endRestorings(t.Context()), skep.NotReleased)
	_, there := restorings.Load(id)
	require.False(t, there)
	require.NoError(t, o.endRestorings(t.Context()), "nothing is under way")
}
