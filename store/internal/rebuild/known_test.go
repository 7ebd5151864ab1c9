package rebuild

import (
	"math/bits"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/index"
)

// shardOf is a shard of records of some keys, each of which was put so often, as two copies of a log say, the one
// after the other.
func shardOf(keys, puts int) *shard {
	sh := &shard{stones: map[index.Fingerprint][]stone{}, exact: map[exactID]bool{}}
	for range 2 {
		for i := range puts {
			for k := range keys {
				sh.add(&candidate{fp: index.Fingerprint{byte(k + 1)}, seq: uint64(i / 2), ordinal: uint32(i % 2), loc: uint64(i)})
			}
		}
	}
	sh.link()
	return sh
}

// Records of one key, however often it was put, are found once each, the latest first, for what sorting them takes: no
// record is compared with all others.
func TestRecordsOfOneKey(t *testing.T) {
	t.Parallel()
	for _, puts := range []int{1, 2, 3, 10, 5000} {
		const keys = 3
		sh := shardOf(keys, puts)
		require.LessOrEqual(t, sh.looks, uint64(4*keys*2*puts*(1+bits.Len(uint(2*puts)))), "%d puts", puts)
		blocks := 0
		require.NoError(t, sh.each(func(list []*candidate) error {
			blocks++
			require.Len(t, list, puts)
			for i, c := range list {
				require.Equal(t, list[0].fp, c.fp)
				require.EqualValues(t, puts-1-i, c.loc)
				require.False(t, c.again)
			}
			return nil
		}))
		require.Equal(t, keys, blocks)
	}
}

// The same of deletions of one key: what a second copy of a log says takes no more room, and little time.
func TestTombstonesOfOneKey(t *testing.T) {
	t.Parallel()
	const deletes = 5000
	fp := index.Fingerprint{1}
	sh := shardOf(0, 0)
	for range 3 {
		for i := range deletes {
			sh.addStone(fp, stone{uint64(i), uint64(i)})
		}
	}
	require.LessOrEqual(t, sh.looks, uint64(16*3*deletes*bits.Len(deletes)))
	require.LessOrEqual(t, len(sh.stones[fp]), 4*deletes)
	covered := map[uint64]bool{}
	for _, s := range sh.stones[fp] {
		require.Equal(t, s.seq, s.covers)
		covered[s.seq] = true
	}
	require.Len(t, covered, deletes)

	few := index.Fingerprint{2}
	for range 3 {
		for i := range 3 {
			sh.addStone(few, stone{uint64(i), 1})
		}
	}
	require.Equal(t, []stone{{0, 1}, {1, 1}, {2, 1}}, sh.stones[few])
}
