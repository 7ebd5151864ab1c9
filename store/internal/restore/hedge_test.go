package restore

import (
	"container/heap"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/health"
)

// queueOnly is a drive that has all it takes.
type queueOnly struct {
	Drive
	q Queue
}

func (d *queueOnly) Queue() *Queue { return &d.q }

// Reads that wait for a slow drive and can go nowhere else keep their places, however often it is asked.
func TestWhatCannotLeaveASlowDriveKeepsItsPlace(t *testing.T) {
	t.Parallel()
	d := &queueOnly{q: Queue{ops: DriveReads}}
	for i := range 20 {
		ch := &chunk{at: &Located{}, chain: &chain{Asked: Asked{ChainPlan: &layout.ChainPlan{}}}}
		queue(d, &read{ch: ch, drive: d, priority: i % 2, bytes: int64(i)})
	}
	for range 3 {
		Hedge(d, time.Second, health.Slow)
	}
	var got []int64
	for len(d.q.waits) > 0 {
		got = append(got, heap.Pop(&d.q.waits).(*read).bytes)
	}
	require.Equal(t, []int64{1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18}, got)
}

// What nobody wants any more does not begin to wait for a drive: who took back what waits may have looked there before.
func TestWhatWasGivenUpDoesNotBeginToWait(t *testing.T) {
	t.Parallel()
	d := &queueOnly{q: Queue{ops: DriveReads}}
	gone, wanted := &chunk{chain: &chain{Asked: Asked{ChainPlan: &layout.ChainPlan{}}}}, &chunk{}
	wanted.chain = gone.chain
	gone.cancelled.Store(true)
	gone.left.Store(2)
	wanted.left.Store(2)
	queue(d, &read{ch: gone, drive: d}, &read{ch: wanted, drive: d})
	require.Equal(t, 1, d.q.Waiting())
	require.EqualValues(t, 1, gone.left.Load(), "its read has ended")
	require.ErrorIs(t, *gone.failed.Load(), skep.Stopped)
	require.EqualValues(t, 2, wanted.left.Load())
}
