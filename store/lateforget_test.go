package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
)

// A key is deleted and put at once, over and over. The delete, which forgets the copy of what it took out of the index,
// may come between any two steps of the put: what that put was told to be accepted is there with its own bytes, before
// it is on the drives and after, whoever else's come into memory that was freed.
func TestAnAcceptedPutRacesADelete(t *testing.T) {
	t.Parallel()
	for name, filtered := range map[string]bool{"every block": false, "admission": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			var s *Store
			if filtered {
				s, _, _ = admitting(t, nil)
			} else {
				s = openTest(t, small(t.TempDir()))
			}
			sc := openSpace(t, s, "n", skep.Cache, 1, true)
			other := openSpace(t, s, "other", skep.Cache, 1, true)
			key := []skep.Key{keyOf(1)}
			there := func(version int, when string) bool {
				list, err := fetch(ctx, s, skep.Chain{Scope: sc, Keys: key})
				require.NoError(t, err)
				if skep.KindOf(list[0].err) == skep.NotFound {
					return false
				}
				require.NoError(t, list[0].err, when)
				require.Equal(t, content(key[0], skep.PartKV, version, blockSize), list[0].data, when)
				return true
			}
			for version := range testNumber(t, "SKEP_LATE_ROUNDS", 40) {
				crew := storetest.NewCrew(t)
				crew.Go(func(t testing.TB) {
					for range 3 {
						if _, err := s.Delete(ctx, sc, key); err != nil {
							t.Error(err)
						}
					}
				})
				crew.Go(func(t testing.TB) {
					r := putRequest(sc, nil, 0, key, blockSize)
					r.Ack, r.Blocks[0].Parts[0].Bytes = skep.AckAccepted, content(key[0], skep.PartKV, version, blockSize)
					if _, err := heapPut(ctx, s, r); err != nil {
						t.Error(err)
					}
				})
				crew.Go(func(t testing.TB) {
					r := putRequest(other, nil, 0, []skep.Key{keyOf(2, uint32(version))}, blockSize)
					r.Ack = skep.AckAccepted
					if _, err := heapPut(ctx, s, r); err != nil {
						t.Error(err)
					}
				})
				crew.Wait()
				was := there(version, "accepted")
				require.NoError(t, s.Flush(ctx))
				if is := there(version, "flushed"); !filtered {
					require.Equal(t, was, is)
				}
				_, err := s.Delete(ctx, sc, key)
				require.NoError(t, err)
			}
		})
	}
}
