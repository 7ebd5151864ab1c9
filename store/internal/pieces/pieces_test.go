package pieces

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/drawn"
)

// Pieces of random sizes in random order, some of them twice: a set says of each what a map of bytes does.
func TestPiecesInAnyOrder(t *testing.T) {
	t.Parallel()
	seed := drawn.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		const n = 64
		s, have := New(n), [n]bool{}
		for {
			want, ok := skep.Range{From: 0, To: n}, false
			for i, is := range have {
				if !is && !ok {
					want.From, ok = i, true
				} else if is && ok {
					want.To = i
					break
				}
			}
			gap, is := s.Gap()
			require.Equal(t, ok, is)
			if !ok {
				break
			}
			require.Equal(t, want, gap)
			from := rng.IntN(n)
			r := skep.Range{From: from, To: min(n, from+1+rng.IntN(5))}
			free := true
			for i := r.From; i < r.To; i++ {
				free = free && !have[i]
			}
			if more := s.Growth(r); more > 0 {
				s.Grow(more)
			}
			require.Equal(t, free, s.Add(r), "%v", r)
			for i := r.From; i < r.To && free; i++ {
				have[i] = true
			}
		}
		require.Len(t, s.written, 1, "all pieces are joined")
	}
}

// A set takes as much memory as it says that it grows by, and a writer that goes on where it was grows once.
func TestAGrowingSetSaysSo(t *testing.T) {
	t.Parallel()
	s := New(1 << 20)
	said := int64(0)
	add := func(r skep.Range) {
		if more := s.Growth(r); more > 0 {
			said += more
			s.Grow(more)
		}
		require.True(t, s.Add(r))
	}
	const n = 1 << 12
	for i := range n {
		add(skep.Range{From: 2 * i, To: 2*i + 1})
	}
	require.Equal(t, said, rangeBytes*int64(cap(s.written)))
	require.Less(t, said, int64(2*rangeBytes*n+1))
	for i := range n {
		require.Zero(t, s.Growth(skep.Range{From: 2*i + 1, To: 2*i + 2}), "what closes a hole needs none")
	}

	s, said = New(1<<20), 0
	for i := range 1 << 12 {
		add(skep.Range{From: i << 8, To: (i + 1) << 8})
	}
	require.EqualValues(t, least*rangeBytes, said)
	_, gap := s.Gap()
	require.False(t, gap)
}
