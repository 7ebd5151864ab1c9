package puts

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/segment"
)

// The first put of a key flies, others see it, and who waits for it goes on when it has ended.
func TestFlights(t *testing.T) {
	t.Parallel()
	f, key := NewFlights(), index.Fingerprint{1}
	mine, other := f.Join(key)
	require.NotNil(t, mine)
	require.Nil(t, other)
	second, first := f.Join(key)
	require.Nil(t, second)
	require.Equal(t, mine, first)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.Equal(t, skep.Deadline, skep.KindOf(f.Wait(ended, key)))
	require.Equal(t, 1, f.Len())
	f.Leave(key, mine)
	<-first.Done()
	require.NoError(t, f.Wait(ended, key), "nobody is under way")
	require.Zero(t, f.Len())
}

// Two puts of a key at once are rivals until both have ended, and what they put comes after what was there when the
// first began.
func TestRivals(t *testing.T) {
	t.Parallel()
	var r Rivals
	key, other := index.Fingerprint{1}, index.Fingerprint{2}
	r.Begin([]index.Fingerprint{key, other}, 10)
	require.False(t, r.Contended(key))
	r.Begin([]index.Fingerprint{key}, 20)
	require.True(t, r.Contended(key))
	require.False(t, r.Contended(other))
	require.EqualValues(t, 10, r.Before(key, 30))
	require.EqualValues(t, 5, r.Before(key, 5))
	r.End([]index.Fingerprint{key, other})
	require.True(t, r.Contended(key), "it had a rival since it began")
	r.End([]index.Fingerprint{key})
	require.False(t, r.Contended(key))
	require.EqualValues(t, 30, r.Before(key, 30))
}

// A record is its put's until another put of the key takes its place.
func TestRecords(t *testing.T) {
	t.Parallel()
	p, key := NewRecords(), index.Fingerprint{1}
	first, second := &segment.Record{Seq: 1}, &segment.Record{Seq: 2}
	p.Add(key, first)
	called := 0
	require.True(t, p.While(key, first, func() { called++ }))
	p.Add(key, second)
	require.False(t, p.While(key, first, func() { called++ }))
	require.Equal(t, 1, called)
	p.Remove(key, first)
	require.Equal(t, second, p.Get(key))
	left := map[index.Fingerprint]bool{key: true, {2}: true}
	p.Among(left, func(r *segment.Record) { require.Equal(t, second, r) })
	require.Len(t, left, 1)
	p.Remove(key, second)
	require.Zero(t, p.Len())
}

// A Flush waits for what was accepted before it.
func TestAccepted(t *testing.T) {
	t.Parallel()
	var a Accepted
	require.NoError(t, a.Wait(t.Context()))
	end := a.Begin()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.Equal(t, skep.Deadline, skep.KindOf(a.Wait(ended)))
	end()
	require.NoError(t, a.Wait(ended))
}
