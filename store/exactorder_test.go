package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// A block that was read lies in DRAM too. Where the policy lru or s3fifo drops it, it goes
// from there as well: whoever puts its key again, with other bytes, gets those and not the
// old ones. The index gave out evicted blocks with 96 of the 128 bits of the fingerprint by
// which DRAM knew them, so that nothing was forgotten there.
func TestEvictedBlocksAreForgottenInMemory(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"lru", "s3fifo", "cost"} {
		for name, chained := range map[string]bool{"chained": true, "unchained": false} {
			t.Run(policy+"/"+name, func(t *testing.T) {
				ctx := testContext(t)
				o := small(tempRoot(t, "store"))
				o.CacheBytes, o.Policy = 8<<20, policy
				if policy != "cost" {
					o.LogicalBlocks = 20
				}
				s, err := Open(ctx, o)
				require.NoError(t, err)
				sc := openSpace(t, s, "n", skep.Cache, 1, chained)
				keys := make([]skep.Key, 400)
				for i := range keys {
					keys[i] = keyOf(uint32(i))
					requireOutcome(t, skep.Committed, putRun(t, s, sc, keys[i:i+1], 5000))
					requireRight(t, s, sc, keys[i:i+1], 5000) // into DRAM
				}
				evicted := 0
				for _, k := range keys {
					found, err := s.Lookup(ctx, &skep.LookupRequest{Scope: sc, Keys: []skep.Key{k}, Lease: skep.NoLease})
					require.NoError(t, err)
					if found.Blocks > 0 {
						continue
					}
					evicted++
					r := &skep.PutRequest{Scope: sc, Blocks: []skep.Block{{Key: k, Parts: []skep.Part{{Bytes: content(k, skep.PartKV, 2, 5000)}}}}}
					res, err := s.Put(ctx, r)
					require.NoError(t, err)
					requireOutcome(t, skep.Committed, res)
					list, err := fetch(ctx, s, skep.Chain{Scope: sc, Keys: []skep.Key{k}})
					require.NoError(t, err)
					if list[0].err == nil {
						require.True(t, string(content(k, skep.PartKV, 2, 5000)) == string(list[0].data), "the bytes of the last writer")
					}
				}
				require.Positive(t, evicted)
				require.NoError(t, s.Close())
			})
		}
	}
}
