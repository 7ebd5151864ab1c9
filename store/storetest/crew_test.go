package storetest

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// home is a test that fails, as a Crew sees it.
type home struct {
	testing.TB
	failed, ended bool
}

func (h *home) Helper()               {}
func (h *home) Error(...any)          {}
func (h *home) Errorf(string, ...any) {}
func (h *home) Fail()                 { h.failed = true }
func (h *home) FailNow()              { h.ended = true; runtime.Goexit() }

// What fails on a goroutine of a crew ends it there, and the test where it waits.
func TestACrewBringsFailuresHome(t *testing.T) {
	t.Parallel()
	h := &home{TB: t}
	done := make(chan struct{})
	after, waited := false, false
	go func() {
		defer close(done)
		crew := NewCrew(h)
		crew.Go(func(t testing.TB) {
			require.True(t, false)
			after = true
		})
		crew.Go(func(t testing.TB) { require.True(t, true) })
		crew.Wait()
		waited = true
	}()
	<-done
	require.False(t, after, "the goroutine ended")
	require.True(t, h.failed)
	require.True(t, h.ended)
	require.False(t, waited, "and so did the test")
}
