package store

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// picture is what a reader of events takes to be stored: what an event says is in a tier, and not what one says is
// nowhere.
type picture map[skep.Key]bool

// follow reads on until a block is told of.
func (p picture) follow(t testing.TB, st skep.EventStream, last skep.Key) {
	t.Helper()
	for into := make([]skep.Event, 64); !p[last]; {
		n, err := st.Next(testContext(t), into)
		require.NoError(t, err)
		for _, e := range into[:n] {
			require.NotEqual(t, skep.EventGap, e.Kind)
			if e.Tier == skep.TierNone {
				delete(p, e.Key)
			} else {
				p[e.Key] = true
			}
		}
	}
}

// A block that is put while a stream with a snapshot begins is told of: by the snapshot, by the events that follow, or
// by both.
func TestABlockPutWhileASnapshotBeginsIsToldOf(t *testing.T) {
	t.Parallel()
	var s *Store
	var began atomic.Pointer[func()]
	o := small(t.TempDir())
	o.Wall = func() time.Time {
		if f := began.Swap(nil); f != nil {
			(*f)()
		}
		return time.Now()
	}
	s, err := Open(testContext(t), o)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	ctx := testContext(t)
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	before, meanwhile, after := chainKeys(1, 3), chainKeys(2, 3), chainKeys(3, 1)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, before, 9000))
	put := func() { requireOutcome(t, skep.Committed, putRun(t, s, sc, meanwhile, 9000)) }
	began.Store(&put) // the snapshot's time is asked for as the stream begins
	events, err := s.Events(ctx, skep.Cursor{}, true)
	require.NoError(t, err)
	defer events.Close()
	require.Nil(t, began.Load())
	requireOutcome(t, skep.Committed, putRun(t, s, sc, after, 9000))
	seen := picture{}
	seen.follow(t, events, after[0])
	for _, k := range append(before, meanwhile...) {
		require.True(t, seen[k], k.Short())
	}
}

// A block that is lost is told of as gone once it is: a snapshot that is read before has it, and so has the event
// behind it.
func TestALostBlockIsToldOfOnceItIsGone(t *testing.T) {
	t.Parallel()
	s, sc, keys := openCopies(t, 1)
	defer func() { require.NoError(t, s.Close()) }()
	ctx := testContext(t)
	lost := keys[len(keys)-1]
	for _, rec := range recordsOf(t, s) {
		if rec.Key == lost {
			damageCopy(t, s, &rec, 0)
		}
	}
	s.rows.Changes().Lock()
	n, reasons := requireRight(t, s, sc, keys, 9000)
	require.Equal(t, len(keys)-1, n)
	require.Equal(t, map[skep.Kind]int{skep.Damaged: 1}, reasons)
	events, err := s.Events(ctx, skep.Cursor{}, true)
	require.NoError(t, err)
	defer events.Close()
	seen := picture{}
	seen.follow(t, events, lost)
	require.Len(t, seen, len(keys))
	s.rows.Changes().Unlock()
	eventually(t, "the block is forgotten", func() bool {
		s.rows.Changes().Lock() // so that it has been told of as well
		defer s.rows.Changes().Unlock()
		found, err := s.Lookup(ctx, &skep.LookupRequest{Scope: sc, Keys: keys})
		require.NoError(t, err)
		return found.Blocks == len(keys)-1
	})
	after := chainKeys(9, 1)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, after, 9000))
	seen.follow(t, events, after[0])
	require.False(t, seen[lost], "the picture has a block that is gone")
}
