//go:build iouring && linux

package device

import (
	"errors"
	"fmt"

	"github.com/pawelgaczynski/giouring"
	"golang.org/x/sys/unix"
)

// tryRing hands the kernel one operation that does nothing, and takes its completion. A ring that was set up may
// still be of no use: a seccomp profile can permit io_uring_setup and refuse io_uring_enter.
func tryRing(ring *giouring.Ring) error {
	ring.GetSQE().PrepareNop()
	_, err := ring.SubmitAndWait(1)
	for errors.Is(err, unix.EINTR) {
		_, err = ring.SubmitAndWait(1)
	}
	if err != nil {
		return unavailable(fmt.Errorf("io_uring_enter: %w", err))
	}
	done := uint32(0)
	ring.ForEachCQE(func(c *giouring.CompletionQueueEvent) {
		done++
		if c.Res < 0 {
			err = unix.Errno(-c.Res)
		}
	})
	ring.CQAdvance(done)
	if err == nil && done != 1 {
		err = fmt.Errorf("%d completions of one operation", done)
	}
	if err != nil {
		return unavailable(err)
	}
	return nil
}
