package store

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// A block may be without part kv in a namespace that says how large that is. Deleted and put again, or put over,
// nothing of it is given any more, and as many bytes count as are stored: also when the store was opened in between.
func TestABlockWithoutPartKV(t *testing.T) {
	t.Parallel()
	const kv = 8 << 10
	for name, chained := range map[string]bool{"deleted and put again": true, "put over": false} {
		for _, size := range []int{kv, 5000} { // as many pages
			t.Run(fmt.Sprintf("%s, %d bytes", name, size), func(t *testing.T) {
				t.Parallel()
				ctx, o := testContext(t), small(t.TempDir())
				s := openTest(t, o)
				n, err := s.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "t", Name: "n", Class: skep.Durable, Copies: 1,
					Chained: chained, Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1, Bytes: kv}})
				require.NoError(t, err)
				sc, key := skep.Scope{Namespace: n.ID}, keyOf(1)
				for version := range 4 {
					if version == 2 {
						require.NoError(t, s.Close())
						s = openTest(t, o)
					}
					if chained && version > 0 {
						n, err := s.Delete(ctx, sc, []skep.Key{key})
						require.NoError(t, err)
						require.Equal(t, 1, n)
						require.Zero(t, s.names.Stored())
					}
					want := content(key, "x", version, size)
					res, err := s.Put(ctx, &skep.PutRequest{Scope: sc,
						Blocks: []skep.Block{{Key: key, Parts: []skep.Part{{Name: "x", Bytes: want}}}}})
					require.NoError(t, err)
					requireOutcome(t, skep.Committed, res)
					require.EqualValues(t, size, s.names.Stored())
					for range 2 { // from the drives, and from the DRAM tier
						list, err := fetch(ctx, s, skep.Chain{Scope: sc, Keys: []skep.Key{key}, Part: "x"})
						require.NoError(t, err)
						require.Len(t, list, 1)
						require.NoError(t, list[0].err)
						require.Equal(t, want, list[0].data)
					}
				}
			})
		}
	}
}
