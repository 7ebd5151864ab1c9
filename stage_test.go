package skep

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A split names its stages' layers, and boundary parts that say of which split they are.
func TestSplit(t *testing.T) {
	t.Parallel()
	s := Split{9, 18, 27}
	require.NoError(t, s.Validate(36))
	require.Equal(t, 4, s.Stages())
	require.Equal(t, Range{0, 9}, s.Layers(0, 36))
	require.Equal(t, Range{18, 27}, s.Layers(2, 36))
	require.Equal(t, Range{27, 36}, s.Layers(3, 36))
	require.Empty(t, s.BoundaryPart(0), "tokens enter the first stage")
	require.Equal(t, "boundary.2@9-18-27", s.BoundaryPart(2))
	require.Equal(t, Range{0, 36}, Split(nil).Layers(0, 36))

	back, stage, ok := BoundaryOf("boundary.2@9-18-27")
	require.True(t, ok)
	require.Equal(t, s, back)
	require.Equal(t, 2, stage)
	for _, name := range []string{"kv", "boundary", "boundary.", "boundary.1", "boundary.0@9", "boundary.2@9", "boundary.01@9", "boundary.1@9-9", "boundary.1@x", "boundary.1@"} {
		_, _, ok := BoundaryOf(name)
		require.False(t, ok, name)
	}
}

func TestSplitsThatCannotBe(t *testing.T) {
	t.Parallel()
	for _, s := range []Split{{0}, {36}, {-1}, {9, 9}, {18, 9}, make(Split, MaxParts)} {
		require.ErrorIs(t, s.Validate(36), Invalid, "%v", s)
	}
	long := Split{}
	for i := range MaxParts - 1 {
		long = append(long, 1000+i)
	}
	require.ErrorIs(t, long.Validate(MaxLayers), Invalid, "its parts' names are too long")
}

// A block's boundary parts are of one split of its shape.
func TestManifestsOfStages(t *testing.T) {
	t.Parallel()
	n := &NamespaceSpec{Shape: Shape{Kind: Attention, Layers: 36, KVHeads: 8, HeadDim: 128, Element: BF16, BlockTokens: 16}, Chained: true}
	check := func(names ...string) error {
		m := Manifest{{Name: PartKV}}
		for _, name := range names {
			m = append(m, PartSpec{Name: name, Size: 4096})
		}
		return ValidateBlock("put", n, 0, 0, Key{}, nil, nil, m)
	}
	a, b := Split{9, 18, 27}, Split{18}
	require.NoError(t, check(a.BoundaryPart(1), a.BoundaryPart(2), a.BoundaryPart(3)))
	require.NoError(t, check(a.BoundaryPart(3), "boundary", "state"), "other names say nothing")
	require.ErrorIs(t, check(a.BoundaryPart(1), b.BoundaryPart(1)), Invalid, "two splits")
	require.ErrorIs(t, check(Split{40}.BoundaryPart(1)), Invalid, "more layers than there are")
	require.ErrorIs(t, check("boundary.one"), Invalid)
}

// Asked for the boundary of another split, a block says which it has.
func TestNoPart(t *testing.T) {
	t.Parallel()
	a, b := Split{9, 18, 27}, Split{18}
	err := NoPart("restore", b.BoundaryPart(1), []string{"kv", a.BoundaryPart(1)})
	require.ErrorIs(t, err, Conflict)
	require.Equal(t, b, err.Value)
	require.Equal(t, a, err.Limit)
	require.ErrorIs(t, NoPart("restore", b.BoundaryPart(1), []string{"kv"}), NotFound)
	require.ErrorIs(t, NoPart("restore", a.BoundaryPart(2), []string{"kv", a.BoundaryPart(1)}), NotFound, "that stage was not stored")
	require.ErrorIs(t, NoPart("restore", "state", []string{a.BoundaryPart(1)}), NotFound)
}
