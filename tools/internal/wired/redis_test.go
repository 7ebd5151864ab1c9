package wired

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/tools/internal/redistest"
)

// What Redis clients read stays, and what they never read makes room, whether it has a time to live or none: the value and
// its head are both used when it is read, and an end of life says nothing of what a value is worth until then.
func TestRedisValuesThatAreReadStay(t *testing.T) {
	t.Parallel()
	const hot, cold, fresh, every = 8, 150, 900, 4
	value := bytes.Repeat([]byte("v"), 64<<10)
	for _, policy := range []string{"cost", "lru"} {
		for _, ttl := range [][]any{nil, {"EX", 100_000}} {
			t.Run(fmt.Sprint(policy, ttl), func(t *testing.T) {
				st, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), DeviceCount: 1, CapacityBytes: 48 << 20, SegmentBytes: 2 << 20,
					BlockBytes: 1 << 20, CacheBytes: -1, Policy: policy})
				require.NoError(t, err)
				c, end := serveRedis(t, st)
				set := func(kind string, i int, more ...any) {
					_, err := c.Do(t.Context(), append([]any{"SET", fmt.Sprint(kind, i), value}, more...)...)
					require.NoError(t, err)
				}
				get := func(kind string, i int) bool {
					_, err := c.Get(t.Context(), fmt.Sprint(kind, i))
					if !errors.Is(err, redistest.ErrNil) {
						require.NoError(t, err)
					}
					return err == nil
				}
				there := func(kind string, n int) (found int) {
					for i := range n {
						if get(kind, i) {
							found++
						}
					}
					return found
				}
				for i := range cold {
					set("cold", i, ttl...)
					if i < hot {
						set("hot", i)
					}
				}
				for i := range fresh {
					set("new", i)
					if i%every == 0 {
						get("hot", i/every%hot)
					}
				}
				assert.Equal(t, hot, there("hot", hot))
				assert.Zero(t, there("cold", cold))
				end()
				require.NoError(t, st.Close())
			})
		}
	}
}
