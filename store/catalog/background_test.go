package catalog

import (
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A full disk may go on for long, and an error of another kind that comes then has its own time before the catalog fails
// for it.
func TestEachKindOfBackgroundErrorHasItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(&Options{Logger: quiet(), Timeout: time.Minute})
		failed := func() bool {
			select {
			case <-g.failed:
				return true
			default:
				return false
			}
		}
		g.backgroundError(syscall.ENOSPC)
		time.Sleep(time.Hour)
		g.backgroundError(syscall.ENOSPC)
		g.backgroundError(syscall.EIO)
		require.False(t, failed())
		time.Sleep(30 * time.Second)
		g.backgroundOK()
		g.backgroundError(syscall.EIO)
		time.Sleep(50 * time.Second)
		g.backgroundError(syscall.EIO)
		require.False(t, failed(), "it succeeded between them")
		time.Sleep(20 * time.Second)
		g.backgroundError(syscall.ENOSPC)
		require.False(t, failed())
		g.backgroundError(syscall.EIO)
		require.True(t, failed(), "that the disk is full, too, changes nothing")

		g = newGuard(&Options{Logger: quiet(), Timeout: time.Minute})
		g.backgroundError(syscall.EIO)
		for range 60 {
			time.Sleep(time.Minute)
			g.backgroundError(syscall.ENOSPC)
		}
		g.backgroundError(syscall.EIO)
		require.False(t, failed(), "a full disk took its place for an hour")
		time.Sleep(50 * time.Second)
		g.backgroundError(syscall.ENOSPC)
		time.Sleep(20 * time.Second)
		g.backgroundError(syscall.EIO)
		require.True(t, failed(), "one that comes in between does not")
	})
}
