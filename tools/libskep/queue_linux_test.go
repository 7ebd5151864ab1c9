package main

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/skepkv/skep"
)

// queueOn is a queue of a store that has nothing.
func queueOn(t *testing.T, depth int) *queue {
	t.Helper()
	o := &opened{}
	o.life, o.end = context.WithCancel(context.Background())
	t.Cleanup(o.end)
	_, q, err := o.newQueue(depth)
	require.NoError(t, err)
	return q
}

// lit says whether there is something to drain, as an engine's poll sees it.
func lit(t *testing.T, q *queue) bool {
	t.Helper()
	p := []unix.PollFd{{Fd: int32(q.signal.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	require.NoError(t, err)
	return n == 1
}

// held is an operation that is over when it is let go, or when its context ends.
func held(tag uint64, letGo chan struct{}) operation {
	return operation{tag: tag, timeout: time.Hour, do: func(ctx context.Context, _ *completion) error {
		select {
		case <-letGo:
			return nil
		case <-ctx.Done():
			return &skep.Error{Op: op, Kind: skep.Deadline, Err: ctx.Err()}
		}
	}}
}

func begun(t *testing.T, q *queue, x operation) bool {
	t.Helper()
	room, err := q.begin(x)
	require.NoError(t, err)
	return room
}

// A queue has room for its depth: what is over and not drained counts. The descriptor says when there is something, and
// results are told of in drain, not before.
func TestAQueueIsFullUntilItIsDrained(t *testing.T) {
	t.Parallel()
	q, letGo := queueOn(t, 2), make(chan struct{})
	var told atomic.Int32
	for tag := range uint64(2) {
		x := held(tag, letGo)
		x.tell = func() { told.Add(1) }
		require.True(t, begun(t, q, x))
	}
	require.False(t, begun(t, q, held(3, letGo)))
	require.False(t, lit(t, q))
	close(letGo)
	require.Eventually(t, func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		return len(q.over) == 2
	}, time.Minute, time.Millisecond)
	require.True(t, lit(t, q))
	require.False(t, begun(t, q, held(3, letGo)), "nothing is drained")
	list, err := q.drain(1)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, int32(1), told.Load())
	require.True(t, lit(t, q), "there is one more")
	require.True(t, begun(t, q, held(3, letGo)))
	tags := map[uint64]bool{list[0].tag: true}
	require.Eventually(t, func() bool {
		list, err := q.drain(9)
		for _, c := range list {
			tags[c.tag] = true
		}
		return err == nil && len(tags) == 3
	}, time.Minute, time.Millisecond, "each once")
	require.False(t, lit(t, q))
	require.NoError(t, q.close(t.Context()))
}

// What is under way when a queue is closed ends. Until it has, the queue says so, and takes nothing.
func TestAQueueThatIsClosedWaitsForWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	q, letGo := queueOn(t, 2), make(chan struct{})
	require.True(t, begun(t, q, operation{timeout: time.Hour, do: func(context.Context, *completion) error {
		<-letGo // a drive that does not stop
		return nil
	}}))
	late, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, q.close(late), skep.NotReleased)
	_, err := q.begin(held(1, letGo))
	require.ErrorIs(t, err, skep.Closed)
	_, err = q.drain(1)
	require.ErrorIs(t, err, skep.Closed)
	close(letGo)
	require.NoError(t, q.close(t.Context()))

	q = queueOn(t, 1)
	require.True(t, begun(t, q, held(1, make(chan struct{}))))
	require.NoError(t, q.close(t.Context()), "what can be stopped is")
}

// While a drain writes results to the caller's memory, that is not given back with the queue.
func TestAQueueIsNotClosedWhileResultsAreTold(t *testing.T) {
	t.Parallel()
	q := queueOn(t, 1)
	late, cancel := context.WithCancel(t.Context())
	cancel()
	var closed error
	x := operation{timeout: time.Hour, do: func(context.Context, *completion) error { return nil }}
	x.tell = func() { closed = q.close(late) } // another thread's, meanwhile
	require.True(t, begun(t, q, x))
	require.Eventually(t, func() bool {
		list, err := q.drain(1)
		return err == nil && len(list) == 1
	}, time.Minute, time.Millisecond)
	require.ErrorIs(t, closed, skep.NotReleased)
	require.NoError(t, q.close(t.Context()))
}

// Memory that a drive may write to is not given back with its queue: closing the store says when it is.
func TestAQueueWithMemoryThatIsNotReleasedSaysSo(t *testing.T) {
	t.Parallel()
	o := &opened{}
	o.life, o.end = context.WithCancel(t.Context())
	id, q, err := o.newQueue(1)
	require.NoError(t, err)
	require.True(t, begun(t, q, operation{timeout: time.Hour, do: func(context.Context, *completion) error {
		return &skep.Error{Op: op, Kind: skep.NotReleased}
	}}))
	require.NoError(t, q.close(t.Context()))
	require.ErrorIs(t, q.held(), skep.NotReleased)
	require.NoError(t, o.endQueues(t.Context()), "the store's own close says it")
	_, err = queueOf(id)
	require.ErrorIs(t, err, skep.Invalid)
}

// A panic of ours ends an operation with an error.
func TestAPanicIsAnErrorOfItsOperation(t *testing.T) {
	t.Parallel()
	q := queueOn(t, 1)
	require.True(t, begun(t, q, operation{tag: 7, timeout: time.Hour, do: func(context.Context, *completion) error {
		panic("wrong")
	}}))
	require.Eventually(t, func() bool {
		list, err := q.drain(1)
		return err == nil && len(list) == 1 && list[0].tag == 7 && list[0].err != nil
	}, time.Minute, time.Millisecond)
	require.NoError(t, q.close(t.Context()))
}
