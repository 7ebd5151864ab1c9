package serve

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
)

// slowJob is a job of its own kind, whose runs are counted, and take until end to see that they are to end.
func slowJob(js *jobs, runs *int, end <-chan struct{}) *job {
	j := &job{name: "move", restarts: true, state: "idle", run: func(ctx context.Context, _ *job) error {
		*runs++ // one after the other
		<-ctx.Done()
		<-end
		return ctx.Err()
	}}
	js.list = append(js.list, j)
	return j
}

// A job is paused, resumed and stopped before the run that was paused has ended. It has ended then: the resumption,
// which waits for that end, is called off by the stop.
func TestAJobThatIsStoppedDoesNotBeginAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New(memstore.Options{})
		defer func() { assert.NoError(t, st.Close()) }()
		js := newJobs(st, slog.New(slog.DiscardHandler))
		defer js.close()
		runs, end := 0, make(chan struct{})
		j := slowJob(js, &runs, end)
		for _, action := range []string{"start", "pause", "resume", "stop"} {
			require.NoError(t, js.Do(t.Context(), j.name, action))
			synctest.Wait()
		}
		close(end)
		synctest.Wait()
		list, err := js.List(t.Context())
		require.NoError(t, err)
		last := list[len(list)-1]
		assert.Equal(t, j.name, last.Name)
		assert.Equal(t, "idle", last.State)
		assert.Equal(t, "stopped", last.Detail)
		assert.Equal(t, 1, runs)

		require.NoError(t, js.Do(t.Context(), j.name, "start"))
		synctest.Wait()
		assert.Equal(t, 2, runs, "it can be started again")
	})
}

// One that is paused, resumed and paused once more before the run that was paused first has ended stays paused, and
// goes on when it is resumed.
func TestAJobThatIsPausedTwiceStaysPaused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New(memstore.Options{})
		defer func() { assert.NoError(t, st.Close()) }()
		js := newJobs(st, slog.New(slog.DiscardHandler))
		defer js.close()
		runs, end := 0, make(chan struct{})
		j := slowJob(js, &runs, end)
		for _, action := range []string{"start", "pause", "resume", "pause"} {
			require.NoError(t, js.Do(t.Context(), j.name, action))
			synctest.Wait()
		}
		close(end)
		synctest.Wait()
		list, err := js.List(t.Context())
		require.NoError(t, err)
		assert.Equal(t, "paused", list[len(list)-1].State)
		assert.Equal(t, 1, runs)
		require.NoError(t, js.Do(t.Context(), j.name, "resume"))
		synctest.Wait()
		assert.Equal(t, 2, runs)
	})
}

// When the jobs have ended, none begins.
func TestNoJobBeginsWhenAllHaveEnded(t *testing.T) {
	t.Parallel()
	st := memstore.New(memstore.Options{})
	defer func() { require.NoError(t, st.Close()) }()
	js := newJobs(st, slog.New(slog.DiscardHandler))
	js.close()
	require.ErrorIs(t, js.Do(t.Context(), "flush", "start"), skep.Closed)
	list, err := js.List(t.Context())
	require.NoError(t, err)
	require.Equal(t, "idle", list[0].State)
}
