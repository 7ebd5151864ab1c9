package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// A device is taken out of a store that is full. Cache blocks make room: some are dropped.
// Durable ones do not: the removal says so, whatever deadline its caller has, loses nothing,
// and works once something is deleted. Nor does the cleaner of such a store spin.
func TestRemoveFromAFullStore(t *testing.T) {
	t.Parallel()
	for _, class := range []skep.Class{skep.Cache, skep.Durable} {
		t.Run(class.String(), func(t *testing.T) {
			ctx := testContext(t)
			s, _, _ := openRig(t, func(o *Options) {
				quick(o)
				o.CapacityBytes, o.taskEvery = 3<<20, hangs
			})
			defer func() { require.NoError(t, s.Close()) }()
			sc := openSpace(t, s, "n", class, 1, false)
			var keys []skep.Key
			for i := range 300 {
				k := keyOf(uint32(i), 5)
				if putRun(t, s, sc, []skep.Key{k}, faultBlock)[0].Outcome != skep.Committed {
					break
				}
				keys = append(keys, k)
			}
			if class == skep.Cache {
				_, err := s.RemoveDevice(ctx, "0", MoveOptions{})
				require.NoError(t, err)
				n, _ := requireRight(t, s, sc, keys, faultBlock)
				require.Greater(t, n, 30)
				require.Empty(t, s.space.GroupsOf(s.members.Opened[0]))
				return
			}
			require.Less(t, len(keys), 300, "it is full")
			_, err := s.RemoveDevice(ctx, "0", MoveOptions{})
			requireKind(t, skep.Full, err)
			require.ErrorContains(t, err, "groups left is")
			require.ErrorContains(t, err, "delete something")
			requireChain(t, s, sc, keys, faultBlock)
			eventually(t, "the cleaner rests", func() bool {
				was := s.space.Inside().Fruitless.Load()
				time.Sleep(50 * time.Millisecond)
				return s.space.Inside().Fruitless.Load() == was
			})
			left := keys[:len(keys)/4]
			_, err = s.Delete(ctx, sc, keys[len(left):])
			require.NoError(t, err)
			_, err = s.RemoveDevice(ctx, "0", MoveOptions{})
			require.NoError(t, err)
			requireChain(t, s, sc, left, faultBlock)
		})
	}
}
