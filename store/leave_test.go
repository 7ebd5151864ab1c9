package store

import (
	"context"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// askedForDone tells when its Done is first asked for.
type askedForDone struct {
	context.Context
	once  sync.Once
	asked chan struct{}
}

func (c *askedForDone) Done() <-chan struct{} {
	c.once.Do(func() { close(c.asked) })
	return c.Context.Done()
}

// Of two drains of the last two devices, begun at one time, one is refused: it would leave nowhere to put anything.
func TestTheLastTwoDevicesAreNotBothDrained(t *testing.T) {
	t.Parallel()
	h, mem := &slowLog{}, vfs.NewMem()
	s, _, _ := openRig(t, func(o *Options) { o.CatalogFS, o.DeviceCount = errorfs.Wrap(mem, h), 2 })
	sc := openSpace(t, s, "n", skep.Cache, 1, false)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1, 3), faultBlock))
	letGo := h.hold() // the first cannot say in the catalog that it retires its device
	over, cancel := context.WithCancel(testContext(t))
	errs := make(chan error, 2)
	for _, name := range []string{"0", "1"} {
		ctx := &askedForDone{Context: over, asked: make(chan struct{})}
		go func() {
			_, err := s.DrainDevice(ctx, name, MoveOptions{})
			errs <- err
		}()
		<-ctx.asked
	}
	letGo()
	first := <-errs
	cancel() // the other may be long in finding room
	second := <-errs
	if skep.KindOf(first) != skep.Invalid {
		first, second = second, first
	}
	requireKind(t, skep.Invalid, first)
	require.ErrorContains(t, first, "devices left in working order")
	require.NotEqual(t, skep.Invalid, skep.KindOf(second))
	require.False(t, s.drives[0].retired.Load() && s.drives[1].retired.Load())
	require.NoError(t, s.Close())
}
