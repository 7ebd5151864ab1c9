package known

import (
	"context"
	"math"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

func keys(n int) (out []skep.Key) {
	for i := range n {
		out = append(out, skep.KeyOf([]byte{byte(i >> 16), byte(i >> 8), byte(i)}))
	}
	return out
}

// A block's group begins where its parent's does, or with an ancestor that is named; else the block is on its own, and
// what follows it goes with it.
func TestWhereABlockGoes(t *testing.T) {
	t.Parallel()
	k, sc := keys(20), skep.Scope{Namespace: 1}
	m := New()
	require.Equal(t, k[0], m.Where(4, sc, k[0], 0, nil, nil).Anchor)
	require.Equal(t, k[0], m.Where(4, sc, k[1], 1, &k[0], nil).Anchor)
	require.Equal(t, k[0], m.Where(4, sc, k[2], 2, &k[1], nil).Anchor, "as its parent, which is known")
	next := Place{Depth: 4, Parent: k[3], Anchor: k[4], Base: 4, HasParent: true}
	require.Equal(t, next, m.Where(4, sc, k[4], 4, &k[3], nil))
	require.Equal(t, k[8], m.Where(4, sc, k[10], 10, &k[9], k[7:9]).Anchor, "the nearest ancestor is last")
	loose := m.Where(4, sc, k[14], 14, &k[13], nil)
	require.Equal(t, k[14], loose.Anchor)
	require.Equal(t, k[14], m.Where(4, sc, k[15], 15, &k[14], k[12:14]).Anchor, "where its parent is")
	require.Equal(t, loose, m.Where(4, sc, k[14], 14, &k[13], k[12:13]), "it stays where it is")
	_, other := m.Get(skep.Scope{Namespace: 1, Salt: "s"}, k[14])
	require.False(t, other, "with a salt it is another")
}

// A block goes on with all that is before it in its group, from what was put and from what a caller names. Where a part
// of that is not known it is left out, but for the parent and the group's first.
func TestWhatABlockGoesOnWith(t *testing.T) {
	t.Parallel()
	k, sc := keys(16), skep.Scope{Namespace: 1}
	m := New()
	where := func(i int, before []skep.Key) Place { return m.Where(8, sc, k[i], i, &k[i-1], before) }
	m.Where(8, sc, k[0], 0, nil, nil)
	for i := 1; i < 4; i++ {
		where(i, nil)
	}
	require.Equal(t, []skep.Key{k[3], k[2], k[1], k[0]}, m.Behind(sc, where(4, nil), nil))
	require.Empty(t, m.Behind(sc, where(8, nil), nil))
	require.Equal(t, k[8:9], m.Behind(sc, where(9, nil), nil))
	require.Equal(t, k[:4], New().behind(k, 4, k[:3]), "a caller names them")
	require.Empty(t, New().behind(k, 4, k[1:3]), "it is loose")

	m = New()
	m.Put(sc, k[5], Place{Depth: 5, Parent: k[4], HasParent: true, Anchor: k[0]}) // as a lookup notes it
	require.Equal(t, []skep.Key{k[5], k[4], k[0]}, m.Behind(sc, where(6, nil), nil))
	m.Put(sc, k[4], Place{Depth: 4, Parent: k[3], HasParent: true, Anchor: k[4], Base: 4})
	require.Equal(t, []skep.Key{k[5], k[4], k[0]}, m.Behind(sc, where(6, nil), nil), "that is of another chain")
}

func (m *Memory) behind(k []skep.Key, i int, before []skep.Key) []skep.Key {
	sc := skep.Scope{Namespace: 1}
	return m.Behind(sc, m.Where(8, sc, k[i], i, &k[i-1], before), before)
}

// The last that was seen is known, however much was.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	sc, m := skep.Scope{Namespace: 1}, New()
	list := keys(3 * most)
	for i, k := range list {
		m.Put(sc, k, Place{Depth: i})
	}
	require.LessOrEqual(t, len(m.young)+len(m.old), 2*most)
	for i, k := range list[2*most:] {
		e, ok := m.Get(sc, k)
		require.True(t, ok)
		require.Equal(t, 2*most+i, e.Depth)
	}
	_, ok := m.Get(sc, list[0])
	require.False(t, ok)
}

// What is asked for stays known, whatever else is seen.
func TestWhatIsUsedStaysKnown(t *testing.T) {
	t.Parallel()
	m, sc := New(), skep.Scope{Namespace: 1}
	all := keys(4 * most)
	m.Put(sc, all[0], Place{Depth: 7})
	for i, k := range all[1:] {
		m.Put(sc, k, Place{})
		if i%(most/2) == 0 {
			_, ok := m.Get(sc, all[0])
			require.True(t, ok, i)
		}
	}
	_, ok := m.Get(sc, all[1])
	require.False(t, ok, "what nobody asks for does not")
}

// Who goes on with a block that is being put waits until it has been, and no longer than its context; two that go on
// with each other's blocks do not wait for each other.
func TestWhoGoesOnWithABlockUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, sc, k := New(), skep.Scope{Namespace: 1}, keys(3)
		blocks := func(keys ...skep.Key) (out []skep.Block) {
			for _, k := range keys {
				out = append(out, skep.Block{Key: k})
			}
			return out
		}
		awaits := func(ctx context.Context, k skep.Key, before uint64) chan struct{} {
			done := make(chan struct{})
			go func() {
				defer close(done)
				Wait(ctx, m.Under(sc, []skep.Key{{}, k}, before))
			}()
			synctest.Wait()
			return done
		}
		first, end := m.Begin(sc, blocks(k[0], k[1]))
		second, endSecond := m.Begin(sc, blocks(k[1], k[2]))
		<-awaits(t.Context(), k[2], first)
		<-awaits(t.Context(), k[0], first)
		ctx, cancel := context.WithCancel(t.Context())
		given := awaits(ctx, k[1], second)
		waits := awaits(t.Context(), k[1], second)
		last := awaits(t.Context(), k[2], math.MaxUint64)
		for _, w := range []chan struct{}{given, waits, last} {
			select {
			case <-w:
				t.Error("it does not wait")
			default:
			}
		}
		cancel()
		<-given
		end()
		<-waits
		endSecond()
		<-last
		require.Empty(t, m.puts)
	})
}
