package runs_test

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/runs"
)

// Runs are of one group, follow one another and are bounded.
func TestRunsOfARepair(t *testing.T) {
	t.Parallel()
	var keys []skep.Key
	for i := range 300 {
		var parent *skep.Key
		if i > 0 {
			parent = &keys[i-1]
		}
		keys = append(keys, skep.ChainKey(parent, []uint32{uint32(i)}))
	}
	block := func(i, group int, size int64) skep.StoredBlock {
		b := skep.StoredBlock{Key: keys[i], First: keys[i-i%group], Depth: i % group}
		b.Manifest = skep.Manifest{{Name: skep.PartKV, Size: size}}
		if b.Depth > 0 {
			b.Parent = &keys[i-1]
		}
		return b
	}
	var blocks []skep.StoredBlock
	for _, i := range rand.Perm(200) {
		if i != 7 && i != 150 {
			blocks = append(blocks, block(i, 100, 1))
		}
	}
	cut := runs.Cut(blocks)
	var lens []int
	for _, run := range cut {
		for i := range run[1:] {
			require.Equal(t, run[i].Key, *run[i+1].Parent)
			require.Equal(t, run[0].First, run[i+1].First)
		}
		lens = append(lens, len(run))
	}
	slices.Sort(lens)
	require.Equal(t, []int{7, 28, 49, 50, 64}, lens)
	require.Empty(t, runs.Cut(nil))
	large := []skep.StoredBlock{block(0, 100, 5<<20), block(1, 100, 3<<20), block(2, 100, 1), block(3, 100, 50<<20)}
	require.Len(t, runs.Cut(large), 3)
	require.True(t, bytes.Equal(large[0].Key[:], keys[0][:]))
}
