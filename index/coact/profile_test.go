package coact

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

func observed(t *testing.T, seed uint64, entries, steps int) (*Profile, [][]uint32) {
	t.Helper()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 5))
	p, err := NewProfile(entries, 1)
	require.NoError(t, err)
	var lists [][]uint32
	for s := range steps {
		var on []uint32
		for e := range entries {
			// Entry 0 is always on, higher ones ever more seldom.
			if rng.IntN(1+e*e/4) == 0 {
				on = append(on, uint32(e))
			}
		}
		ok, err := p.Observe(on, s%5 == 0)
		require.NoError(t, err)
		require.True(t, ok)
		lists = append(lists, on)
	}
	return p, lists
}

func requireSteps(t *testing.T, p *Profile, want [][]uint32) {
	t.Helper()
	b, err := p.Bits(nil)
	require.NoError(t, err)
	require.Equal(t, len(want), b.Steps())
	for s, list := range want {
		require.Equal(t, list, b.Activated(s), "step %d", s)
	}
}

func TestProfileKeepsEveryStep(t *testing.T) {
	t.Parallel()
	p, lists := observed(t, 1, 60, 5000)
	requireSteps(t, p, lists)
	few := 0
	for _, s := range p.sets {
		if s.few != nil {
			few++
		}
	}
	require.Positive(t, few, "entries seldom on are roaring bitmaps")
	require.Less(t, few, 60, "entries often on are words")
	require.Less(t, p.Bytes(), int64(60*5000/8*2))

	b, err := p.Bits(p.Explorative)
	require.NoError(t, err)
	require.Equal(t, 1000, b.Steps())
	require.Equal(t, lists[5], b.Activated(1))
}

// Counts are those of all steps, and a matrix with more entries, or fewer, has the same steps of those it has.
func TestProfileCountsAndResizes(t *testing.T) {
	t.Parallel()
	p, lists := observed(t, 1, 60, 5000)
	b, err := p.Bits(nil)
	require.NoError(t, err)
	counts := p.Counts()
	require.Len(t, counts, 60)
	for e, n := range counts {
		require.Equal(t, b.Count(e), n, "entry %d", e)
	}
	for _, n := range []int{1, 59, 60, 61, 200} {
		c, err := b.Resize(n)
		require.NoError(t, err)
		want, err := NewBits(n, len(lists))
		require.NoError(t, err)
		for s, on := range lists {
			want.Add(s, on)
		}
		require.Equal(t, want, c)
	}
	_, err = b.Resize(MaxEntries + 1)
	require.ErrorIs(t, err, skep.Invalid)
	requireSteps(t, p, lists)
}

func TestProfileSamples(t *testing.T) {
	t.Parallel()
	p, err := NewProfile(4, 3)
	require.NoError(t, err)
	var taken []int
	for s := range 10 {
		ok, err := p.Observe([]uint32{uint32(s % 4)}, s == 4)
		require.NoError(t, err)
		if ok {
			taken = append(taken, s)
		}
	}
	require.Equal(t, []int{0, 3, 4, 6, 9}, taken, "one in three, and the explorative one")
	require.False(t, p.Explorative(1))
	require.True(t, p.Explorative(2))
}

func TestProfileGrowsWithTheContext(t *testing.T) {
	t.Parallel()
	p, err := NewProfile(2, 1)
	require.NoError(t, err)
	_, err = p.Observe([]uint32{1, 7}, false)
	require.NoError(t, err)
	require.Equal(t, 8, p.Entries())
	_, err = p.Observe([]uint32{MaxEntries}, false)
	require.ErrorIs(t, err, skep.Invalid)
	require.Equal(t, 1, p.Steps(), "bad input changed nothing")
}

func TestProfilesMerge(t *testing.T) {
	t.Parallel()
	a, la := observed(t, 2, 40, 700)
	b, lb := observed(t, 3, 50, 900)
	require.NoError(t, a.Merge(b))
	requireSteps(t, a, append(la, lb...))
	require.True(t, a.Explorative(700), "the first step of b")
	requireSteps(t, b, lb)
}

func TestProfileForgetsTheOldest(t *testing.T) {
	t.Parallel()
	p, lists := observed(t, 4, 30, 2000)
	p.Forget(300)
	requireSteps(t, p, lists[1700:])
	require.True(t, p.Explorative(0))
	require.False(t, p.Explorative(1))
	p.Forget(5000)
	require.Equal(t, 300, p.Steps())
}

func TestProfileIsWrittenAndRead(t *testing.T) {
	t.Parallel()
	p, lists := observed(t, 6, 30, 2500)
	data, err := p.MarshalBinary()
	require.NoError(t, err)
	var q Profile
	require.NoError(t, q.UnmarshalBinary(data))
	requireSteps(t, &q, lists)
	require.Equal(t, p.explore, q.explore)
	ok, err := q.Observe([]uint32{1}, false)
	require.NoError(t, err)
	require.True(t, ok, "it goes on where it was")

	for n := 0; n < len(data); n += 97 {
		require.ErrorIs(t, (&Profile{}).UnmarshalBinary(data[:n]), skep.Damaged)
		bad := append([]byte(nil), data...)
		bad[n] ^= 0x10
		require.ErrorIs(t, (&Profile{}).UnmarshalBinary(bad), skep.Damaged)
	}
}

// FuzzProfileUnmarshal: hostile bytes with a right checksum give an error or a profile.
func FuzzProfileUnmarshal(f *testing.F) {
	p, _ := NewProfile(3, 1)
	_, _ = p.Observe([]uint32{0, 2}, true)
	data, _ := p.MarshalBinary()
	f.Add(data[:len(data)-8])
	f.Fuzz(func(t *testing.T, body []byte) {
		var q Profile
		if q.UnmarshalBinary(seal(body)) == nil {
			again, err := q.MarshalBinary()
			require.NoError(t, err)
			require.NoError(t, (&Profile{}).UnmarshalBinary(again))
		}
	})
}

func TestBadProfiles(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]int{{0, 1}, {MaxEntries + 1, 1}, {1, 0}} {
		_, err := NewProfile(c[0], c[1])
		require.ErrorIs(t, err, skep.Invalid)
	}
}
