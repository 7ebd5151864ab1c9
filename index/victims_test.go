package index

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// manyGroups is an index of n sealed groups with a block each, of 1 to 100 pages.
func manyGroups(tb testing.TB, n int) *Index {
	x := open(tb, Config{Policy: "lru", CapacityPages: int64(n) * 100})
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		e := singles(uint32(i+1), uint64(i+1), 1)[0]
		e.Pages = uint32(1 + rng.IntN(100))
		insert(tb, x, e)
		require.NoError(tb, x.SealGroup(uint32(i+1), 100, 0))
	}
	return x
}

// exact is the group that a walk over all would choose.
func exact(x *Index) uint32 {
	list := x.Groups()
	rank(x.policy, list)
	return list[0].Group
}

// Where there are many groups a choice looks at some thousands of them, wherever they are, and
// is soon the same as one that looks at all: the best that were seen are kept in mind.
func TestVictimsAmongMany(t *testing.T) {
	t.Parallel()
	const n = 5*victimStep + 100
	x := manyGroups(t, n)
	for range 2 * n / victimStep {
		_, ok := x.PickVictim(nil)
		require.True(t, ok)
		list, all := x.step()
		require.False(t, all)
		require.LessOrEqual(t, len(list), victimStep+victimPool)
		x.victims.looked = 0
	}
	for range 100 { // as the cleaner does: what is chosen goes
		g, ok := x.PickVictim(nil)
		require.True(t, ok)
		require.Equal(t, exact(x), g.Group)
		_, ok = x.Remove(fpOf(uint64(g.Group)), at(g.Group, 1))
		require.True(t, ok)
		hollow, ok := x.Hollow(false, nil)
		require.True(t, ok)
		require.Equal(t, g.Group, hollow)
		x.FreeGroup(g.Group)
	}
}

// Whoever admits one only gets that one, wherever it is.
func TestVictimsThatAreAdmitted(t *testing.T) {
	t.Parallel()
	x := manyGroups(t, 3*victimStep)
	for _, want := range []uint32{1, victimStep, 2*victimStep + 7, 3 * victimStep} {
		g, ok := x.PickVictim(func(id uint32) bool { return id == want })
		require.True(t, ok)
		require.Equal(t, want, g.Group)
	}
	_, ok := x.PickVictim(func(uint32) bool { return false })
	require.False(t, ok)
}

// A group is sealed while its last blocks are being written: it looks empty, and is admitted once they are there. It is
// not taken for what it was.
func TestVictimsThatFillMeanwhile(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		pick func(x *Index, admit func(uint32) bool) (uint32, bool)
	}{
		{"hollow", func(x *Index, admit func(uint32) bool) (uint32, bool) { return x.Hollow(true, admit) }},
		{"victim", func(x *Index, admit func(uint32) bool) (uint32, bool) {
			g, ok := x.PickVictim(admit)
			return g.Group, ok
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x := open(t, Config{CapacityPages: 1000})
			require.NoError(t, x.SealGroup(1, 100, 0)) // sealed, and nothing in it yet
			if tt.name == "victim" {
				insert(t, x, singles(2, 2, 1)...)
				require.NoError(t, x.SealGroup(2, 100, 0))
			}
			got, ok := tt.pick(x, func(id uint32) bool {
				if id == 1 && x.lives(1) == 0 {
					insert(t, x, singles(1, 1, 1)...)
				}
				return true
			})
			require.Equal(t, tt.name == "victim", ok)
			require.NotEqual(t, uint32(1), got, "it holds a block by now")
			require.Equal(t, 1, x.lives(1))
		})
	}
}

// Groups without blocks that could not be cleaned, as their drives fail, do not stand in front of others.
func TestHollowGroupsThatFailedComeLast(t *testing.T) {
	t.Parallel()
	x := open(t, Config{CapacityPages: 1000})
	for id := uint32(1); id <= 3; id++ {
		require.NoError(t, x.SealGroup(id, 100, 0))
	}
	insert(t, x, singles(4, 4, 1)...)
	require.NoError(t, x.SealGroup(4, 100, 0))
	x.Futile(1, NoGain)
	x.Futile(3, NoGain)
	for _, all := range []bool{false, true} {
		got, ok := x.Hollow(all, nil)
		require.True(t, ok)
		require.Equal(t, uint32(2), got)
	}
	x.Futile(2, NoGain)
	_, ok := x.Hollow(false, nil)
	require.False(t, ok, "a group with blocks goes first")
	g, ok := x.PickVictim(nil)
	require.True(t, ok)
	require.Equal(t, uint32(4), g.Group)
	got, ok := x.Hollow(true, nil)
	require.True(t, ok, "where nothing else is asked for")
	require.Equal(t, uint32(1), got)
}

func BenchmarkPickVictim(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000, 280_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			x := manyGroups(b, n)
			for b.Loop() {
				x.PickVictim(nil)
			}
		})
	}
}
