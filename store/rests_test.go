package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// The cleaner of a store that is full of blocks that must be kept rests, whatever room they
// leave at the ends of groups, however many copies they have, and where they live in records.
func TestFullStoreRests(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name         string
		size, copies int
	}{{"a group holds few", 700 << 10, 1}, {"two copies", 100 << 10, 2}, {"small ones, two copies", faultBlock, 2}, {"in their records", 400, 1}} {
		t.Run(tt.name, func(t *testing.T) {
			s, _, _ := openRig(t, func(o *Options) {
				o.SegmentBytes, o.CapacityBytes = 2<<20, 2*(10*2<<20+64<<10)
				if tt.size < 20<<10 {
					o.SegmentBytes, o.CapacityBytes = 64<<10, 2*(10*64<<10+64<<10)
				}
			})
			defer func() { require.NoError(t, s.Close()) }()
			sc := openSpace(t, s, "n", skep.Durable, tt.copies, false)
			n := 0
			for putRun(t, s, sc, []skep.Key{keyOf(uint32(n), 5)}, tt.size)[0].Outcome == skep.Committed {
				n++
			}
			require.Positive(t, n)
			written := func() int64 { return s.members.Written() }
			eventually(t, "nothing is written any more", func() bool {
				was, rounds := written(), s.space.Inside().Fruitless.Load()
				eventually(t, "it tries twice", func() bool {
					s.space.Kick()
					return s.space.Inside().Fruitless.Load() >= rounds+2
				})
				return written() == was
			})
		})
	}
}
