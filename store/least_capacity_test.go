package store

import (
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// A cap without room for a store is refused, and the error names the least that has: with that it opens,
// and with a page a device less it does not. A cap of next to nothing is no missing cap.
func TestTheLeastCapacityIsNamed(t *testing.T) {
	t.Parallel()
	for _, devices := range []int{1, 4} {
		for _, block := range []int64{4 << 10, 64 << 10, 2 << 20} {
			open := func(capacity int64) error {
				o := small(tempRoot(t, "store"))
				o.Devices, o.DeviceCount, o.BlockBytes, o.SegmentBytes, o.CapacityBytes = nil, devices, block, 0, capacity
				s, err := Open(t.Context(), o)
				if err == nil {
					st, err := s.Stats(t.Context())
					require.NoError(t, err)
					assert.LessOrEqual(t, st.DeviceBytes, capacity)
					require.NoError(t, s.Close())
				}
				return err
			}
			var least int64
			for _, capacity := range []int64{1, 4095, 4096 * int64(devices), 16 << 10} {
				err := open(capacity)
				require.ErrorIs(t, err, skep.Invalid, "%d bytes on %d devices", capacity, devices)
				said := regexp.MustCompile(`at least (\d+) for blocks`).FindStringSubmatch(err.Error())
				require.NotNil(t, said, "%v", err)
				n, err := strconv.ParseInt(said[1], 10, 64)
				require.NoError(t, err)
				least = n
			}
			assert.NoError(t, open(least), "blocks of %d on %d devices", block, devices)
			assert.ErrorIs(t, open(least-4096*int64(devices)), skep.Invalid)
		}
	}
}
