package watermark

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The time begins at the machine's, or where the store was before if that is later, which the log says; it goes on as
// the steady clock does.
func TestLastingBeginsAtTheLater(t *testing.T) {
	t.Parallel()
	wall := time.UnixMilli(1_700_000_000_000)
	for _, c := range []struct {
		known  time.Time
		begins time.Time
		warns  bool
	}{
		{time.UnixMilli(0), wall, false},
		{wall.Add(-time.Hour), wall, false},
		{wall.Add(time.Second), wall.Add(time.Second), false},
		{wall.Add(time.Hour), wall.Add(time.Hour), true},
	} {
		var log bytes.Buffer
		steady := time.Unix(50, 0)
		l := Lasting{Clock: func() time.Time { return steady }}
		require.True(t, steady.Equal(l.Now()))
		l.Begin(wall, uint64(c.known.UnixMilli()), slog.New(slog.NewTextHandler(&log, nil)))
		require.True(t, c.begins.Equal(l.Now()), "%v", l.Now())
		require.EqualValues(t, c.begins.UnixMilli(), l.Millis())
		require.Equal(t, c.warns, log.Len() > 0)
		steady = steady.Add(time.Minute)
		require.True(t, c.begins.Add(time.Minute).Equal(l.Now()))
	}
}

// The time is noted once in a while, and again at once where that failed.
func TestTheTimeIsNotedOnceInAWhile(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	l := Lasting{Clock: func() time.Time { return now }}
	saved, err := 0, errors.New("no")
	note := func() int {
		l.Note(func() error { saved++; return err })
		return saved
	}
	require.Equal(t, 1, note())
	require.Equal(t, 2, note())
	err = nil
	require.Equal(t, 3, note())
	require.Equal(t, 3, note())
	now = now.Add(NotedEvery - 1)
	require.Equal(t, 3, note())
	now = now.Add(1)
	require.Equal(t, 4, note())
}
