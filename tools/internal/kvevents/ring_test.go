package kvevents

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// The ring holds so many batches and so many bytes. A subscriber who is slower loses what fell out, and the sequence
// says so.
func TestASlowSubscriberSeesTheGap(t *testing.T) {
	t.Parallel()
	r := newRing(4, 1<<20, 100)
	d := r.follow()
	var into [8]batch
	n, more := d.take(into[:])
	require.Zero(t, n)
	for range 10 {
		r.add("t", []byte("x"))
	}
	require.True(t, isClosed(more))
	n, _ = d.take(into[:])
	require.Equal(t, 4, n)
	require.EqualValues(t, 106, into[0].seq)
	require.EqualValues(t, 109, into[3].seq)
	require.EqualValues(t, 6, r.lost)

	r.add("t", make([]byte, 1<<20)) // all the room, and more
	bytes, batches := r.held()
	require.EqualValues(t, 1, batches)
	require.EqualValues(t, 1<<20+1+perBatch, bytes)
	r.add("t", []byte("x"))
	bytes, batches = r.held()
	require.EqualValues(t, 1, batches, "the large one made room")
	require.EqualValues(t, 2+perBatch, bytes)
	d.leave()
	_, _, whole := r.replay(100)
	require.False(t, whole)
	require.EqualValues(t, 6, r.lost, "who has left loses nothing")
}

// A snapshot waits for a subscriber who would lose part of it.
func TestASnapshotIsCrowded(t *testing.T) {
	t.Parallel()
	r := newRing(10, 1<<20, 1)
	d := r.follow()
	for range 5 {
		r.add("t", []byte("x"))
	}
	is, _ := r.crowded()
	require.False(t, is)
	r.add("t", []byte("x"))
	is, read := r.crowded()
	require.True(t, is, "more than half of what is held is still to be taken")
	var into [8]batch
	d.take(into[:])
	require.True(t, isClosed(read))
	is, _ = r.crowded()
	require.False(t, is)
	r.add("t", make([]byte, 1<<19+1))
	is, read = r.crowded()
	require.True(t, is, "or half of its bytes")
	d.leave()
	require.True(t, isClosed(read))
	is, _ = r.crowded()
	require.False(t, is)
}

// A chain's blocks share an event, as vLLM has it: each hash is the parent of the next.
func TestAChainIsOneEvent(t *testing.T) {
	t.Parallel()
	at := time.Unix(1, 0)
	one := func(n uint64, parent ...uint64) *skep.Event {
		e := &skep.Event{Key: key(n), Time: at}
		for _, p := range parent {
			k := key(p)
			e.Parent = &k
		}
		return e
	}
	b := &builder{}
	for _, e := range []*skep.Event{one(1), one(2, 1), one(3, 2), one(5, 4), one(6)} {
		b.stored(e, 16)
	}
	b.removed(one(3, 2))
	b.removed(one(9))
	b.stored(one(9, 3), 16)
	require.Len(t, b.events, 5)
	require.Equal(t, []any{uint64(1), uint64(2), uint64(3)}, b.events[0].(*stored).Hashes)
	require.Nil(t, b.events[0].(*stored).Parent)
	require.Equal(t, uint64(4), b.events[1].(*stored).Parent)
	require.Equal(t, []any{uint64(6)}, b.events[2].(*stored).Hashes)
	require.Equal(t, []any{uint64(3), uint64(9)}, b.events[3].(*removed).Hashes)
	require.Equal(t, uint64(3), b.events[4].(*stored).Parent)
	require.Equal(t, 8, b.blocks)

	whole := &builder{asBytes: true}
	whole.stored(one(7, 6), 0)
	k, p := key(7), key(6)
	require.Equal(t, []any{k[:]}, whole.events[0].(*stored).Hashes)
	require.Equal(t, p[:], whole.events[0].(*stored).Parent)
	payload, err := encode(at, whole.events)
	require.NoError(t, err)
	require.Contains(t, string(payload), "\xc4\x20"+string(k[:]), "bytes, and not a string")
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	o := Options{Topic: "a@b", Node: string(make([]byte, 600)), Namespaces: []string{"nothing", "a/b", "*"}, Room: 1}
	wrong := o.Check()
	require.Len(t, wrong, 5)
	for i, field := range []string{"topic", "node", "namespaces", "buffer", "buffer_bytes"} {
		require.ErrorIs(t, wrong[i], skep.Invalid)
		require.ErrorContains(t, wrong[i], "events."+field)
	}
	o = Options{}
	require.ErrorContains(t, o.Check()[0], "events.namespaces is 0, must be 1 to 256")
	_, err := New(nil, o)
	require.ErrorIs(t, err, skep.Invalid)
}
