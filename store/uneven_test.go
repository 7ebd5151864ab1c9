package store

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// Of drives of several sizes each counts as much as the smallest: that is the room that Stats tell of, with every copy
// of a block counted, whatever the cap and the sizes. The rest of a large drive holds nothing.
func TestTheRoomOfUnevenDrives(t *testing.T) {
	t.Parallel()
	for _, copies := range []int{1, 2} {
		t.Run(fmt.Sprint(copies), func(t *testing.T) {
			t.Parallel()
			const least, block, most = 8 << 20, 16 << 10, 4096
			ctx := testContext(t)
			drives := t.TempDir()
			o := small(tempRoot(t, "store"))
			o.Devices, o.DeviceCount, o.CapacityBytes, o.BlockBytes = []string{filepath.Join(drives, "a")}, 0, least, block
			s := openTest(t, o)
			require.NoError(t, s.AddDevice(ctx, NewDevice{Path: filepath.Join(drives, "b"), Bytes: 4 * least}))
			sc := openSpace(t, s, "n", skep.Durable, copies, false)
			full := false
			for i := 0; i < most && !full; i++ {
				full = putRun(t, s, sc, chainKeys(i, 1), block)[0].Outcome == skep.Declined
			}
			require.True(t, full)
			st := statsOf(t, s)
			require.Greater(t, st.DeviceBytes, 2*st.RoomBytes, "the large drive has more")
			require.InDelta(t, 2*least, st.RoomBytes, least/4, "twice the small one, less what segments need")
			held := st.BlockBytes * int64(copies)
			require.LessOrEqual(t, held, st.RoomBytes)
			require.Greater(t, held, st.RoomBytes*3/4, "about as much fits")
			require.EqualValues(t, least, st.CapacityBytes, "what was set")
		})
	}
}
