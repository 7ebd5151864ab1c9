package reuse

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var one, other = [16]byte{1}, [16]byte{2}

// told says that it was called.
func told(t *testing.T, c chan struct{}) {
	t.Helper()
	require.Eventually(t, func() bool { return len(c) == 1 }, time.Minute, time.Millisecond)
}

// What is given back is lent again, in one piece with its neighbours; what a server may use yet is not, until the server
// has taken the memory anew.
func TestWhatIsTaintedIsNotLent(t *testing.T) {
	t.Parallel()
	b := New(Span{100, 30})
	var all [3]Span
	for i := range all {
		var ok bool
		all[i], ok = b.Take(10)
		require.True(t, ok)
	}
	_, ok := b.Take(1)
	require.False(t, ok)
	b.Taint(b.Attached(one), nil, Span{115, 1})
	for _, i := range []int{2, 0, 1} {
		b.Give(all[i])
	}
	require.Zero(t, b.Out())
	for range 2 {
		_, ok = b.Take(10)
		require.True(t, ok)
	}
	_, ok = b.Take(1)
	require.False(t, ok, "the middle is tainted")
	require.EqualValues(t, 10, b.Withheld())
	b.Attached(one)
	require.Zero(t, b.Withheld())
	s, ok := b.Take(10)
	require.True(t, ok)
	require.Equal(t, Span{110, 10}, s)
	for _, s := range all {
		b.Give(s)
	}
	s, _ = b.Take(30)
	require.Equal(t, Span{100, 30}, s)
}

// Who finds out only after the next attach that a connection broke taints nothing: its server has let go of everything.
func TestAnAttachThatIsOverTaintsNothing(t *testing.T) {
	t.Parallel()
	b := New(Span{0, 10})
	before := b.Attached(one)
	now := b.Attached(one)
	b.Taint(before, nil, Span{0, 10})
	require.False(t, b.AnyTainted())
	c := make(chan struct{}, 1)
	b.Tell([]Span{{0, 10}}, func() { c <- struct{}{} })
	told(t, c)
	b.Taint(now, nil, Span{0, 10})
	require.True(t, b.Tainted(Span{9, 1}))
	require.False(t, b.Tainted(Span{10, 1}))
	b.Untaint(before, nil)
	require.True(t, b.AnyTainted(), "it is of another attach")
	b.Untaint(now, nil)
	require.False(t, b.AnyTainted())
}

// Two uses of one place end by themselves.
func TestTaintsAreOfAUse(t *testing.T) {
	t.Parallel()
	b := New(Span{0, 10})
	by, x, y := b.Attached(one), new(int), new(int)
	for _, use := range []any{x, y, y} {
		b.Taint(by, use, Span{0, 10})
	}
	b.Untaint(by, x)
	require.True(t, b.AnyTainted())
	b.Untaint(by, y)
	require.False(t, b.AnyTainted(), "it was noted twice and is one")
}

// An attach to another server, once or again, says nothing of the drives of the one before.
func TestTaintsAreOfAServer(t *testing.T) {
	t.Parallel()
	b := New(Span{0, 10})
	b.Taint(b.Attached(one), nil, Span{0, 10})
	c := make(chan struct{}, 1)
	b.Tell([]Span{{5, 1}}, func() { c <- struct{}{} })
	for range mostAttaches / 2 {
		b.Attached(other)
		require.True(t, b.AnyTainted())
	}
	b.Attached(one)
	told(t, c)
	require.False(t, b.AnyTainted())
}

// A server whose process has ended never takes the memory anew. What it had is lent again when it is said to be gone,
// and what is noted of it later is over, too.
func TestAServerThatIsGoneTaintsNothing(t *testing.T) {
	t.Parallel()
	b := New(Span{0, 10})
	by, next := b.Attached(one), b.Attached(other)
	b.Taint(by, nil, Span{0, 1})
	b.Taint(next, nil, Span{5, 1})
	c := make(chan struct{}, 1)
	b.Tell([]Span{{0, 5}}, func() { c <- struct{}{} })
	b.Gone(one)
	told(t, c)
	require.False(t, b.Tainted(Span{0, 5}))
	require.True(t, b.Tainted(Span{5, 1}), "it is another server's")
	b.Taint(by, nil, Span{0, 1})
	require.False(t, b.Tainted(Span{0, 5}))
}

// However many servers there were, few attaches are remembered. What one tainted that was forgotten stays so: nobody will
// say that it is not used.
func TestWhatIsForgottenStaysTainted(t *testing.T) {
	t.Parallel()
	b := New(Span{0, 10})
	first := b.Attached(one)
	b.Taint(first, nil, Span{0, 1})
	for i := range mostAttaches {
		b.Attached([16]byte{3, byte(i)})
	}
	require.Len(t, b.attaches, mostAttaches)
	b.Attached(one)
	b.Taint(nil, nil, Span{5, 1})
	b.Attached(one)
	require.True(t, b.Tainted(Span{0, 1}))
	require.True(t, b.Tainted(Span{5, 1}))
}
