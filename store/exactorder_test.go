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

// Who follows events has a true picture of what is stored, whichever policy evicts.
func TestEvictionsAreToldOf(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"cost", "lru", "s3fifo"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			o := small(t.TempDir())
			o.Policy, o.EventBuffer = policy, 1<<16
			s := openTest(t, o)
			sc := openSpace(t, s, "n", skep.Cache, 1, true)
			events, err := s.Events(ctx, skep.Cursor{}, false)
			require.NoError(t, err)
			defer events.Close()
			var keys []skep.Key
			for i := range 1000 { // twice what there is room for
				k := chainKeys(i+10, 1)
				putRun(t, s, sc, k, blockSize)
				keys = append(keys, k...)
			}
			told, evicted := map[skep.Key]bool{}, 0
			last := chainKeys(1, 1)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, last, blockSize))
			into := make([]skep.Event, 256)
			for !told[last[0]] {
				n, err := events.Next(ctx, into)
				require.NoError(t, err)
				for _, e := range into[:n] {
					switch e.Kind {
					case skep.EventCommitted:
						told[e.Key] = true
					case skep.EventEvicted:
						evicted++
						delete(told, e.Key)
					}
				}
			}
			require.Positive(t, evicted)
			for _, k := range append(keys, last...) {
				if prefix(t, s, sc, []skep.Key{k}) > 0 { // what the cleaner evicts while we look is told of later
					require.True(t, told[k])
				}
			}
			require.LessOrEqual(t, len(told), 1001-evicted)
		})
	}
}
