package layout

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// A group filled with the blocks it was sized for, one log page for every four of
// them, has next to nothing left over; nor has the device.
func TestSegmentsFitTightly(t *testing.T) {
	t.Parallel()
	const mib, gib = int64(1) << 20, int64(1) << 30
	for _, c := range []struct {
		name          string
		device, block int64
		n             int
		groups, rows  int     // at least
		filled        float64 // share of the device's bytes that are payload, at least
	}{
		{"4.5 MiB blocks on 8 drives of 1 TB", 1 << 40, 9 * mib / 2, 8, 10000, 8, 0.99},
		{"the same on 8 of 16 GiB", 16 * gib, 9 * mib / 2, 8, 256, 8, 0.98},
		{"the same on one of 1 GiB", gib, 9 * mib / 2, 1, 25, 8, 0.95},
		{"the same on four of 256 MiB", 256 * mib, 9 * mib / 2, 4, 24, 8, 0.93},
		{"1 MiB blocks on 4 drives of 1 GiB", gib, mib, 4, 64, 8, 0.97},
		{"256 KiB blocks on 4 of 256 MiB", 256 * mib, 256 << 10, 4, 64, 8, 0.95},
		{"64 KiB blocks on 8 drives of 64 GiB", 64 * gib, 64 << 10, 8, 1000, 8, 0.98},
		{"4 KiB blocks on 2", gib, 4096, 2, 64, 8, 0.75}, // a log page for four blocks of one page each
		{"20 MiB blocks on 1 drive of 64 GiB", 64 * gib, 20 * mib, 1, 256, 8, 0.98},
		{"512 MiB blocks on 1 drive", 1 << 40, 512 * mib, 1, 200, 7, 0.99},
	} {
		t.Run(c.name, func(t *testing.T) {
			seg, err := SegmentFor(c.device, c.block, c.n)
			require.NoError(t, err)
			require.Zero(t, seg%PageSize)
			groups := Segments(c.device, seg)
			require.LessOrEqual(t, SegmentOffset(groups, seg), c.device)
			require.Greater(t, SegmentOffset(groups+1, seg), c.device)

			f := filler(t, c.n, int(seg/PageSize))
			pages := int(ceil(c.block, PageSize))
			blocks := 0
			for ; ; blocks++ {
				m := f.Mark()
				_, ok := f.Place(pages, blocks)
				if ok && blocks%logShare == 0 {
					_, ok = f.Log(blocks/logShare%c.n, 1)
				}
				if !ok {
					f.Rollback(m)
					break
				}
			}
			units, _ := UnitFor(pages, c.n)
			rows := blocks / max(c.n/units, 1)
			filled := float64(int64(groups)*int64(blocks)*c.block) / float64(c.device*int64(c.n))
			t.Logf("%d segments of %d KiB, %d rows (%d blocks) in each; %.2f %% of the devices is payload", groups, seg>>10, rows, blocks, 100*filled)
			assert.GreaterOrEqual(t, groups, c.groups)
			assert.GreaterOrEqual(t, rows, c.rows)
			assert.GreaterOrEqual(t, filled, c.filled)
		})
	}
}

func TestSegmentForSmallDevices(t *testing.T) {
	t.Parallel()
	_, err := SegmentFor(SuperblockPages*PageSize+10*PageSize, 11*PageSize, 1)
	require.ErrorIs(t, err, skep.Invalid)
	seg, err := SegmentFor(SuperblockPages*PageSize+14*PageSize, 11*PageSize, 1)
	require.NoError(t, err)
	assert.EqualValues(t, 14*PageSize, seg, "header, one row, two log pages")
	for pages := int64(14); pages < 5000; pages += 7 {
		for n := 1; n < 9; n++ {
			seg, err := SegmentFor(1<<20+pages*PageSize, 11*PageSize, n)
			require.NoError(t, err)
			require.Positive(t, Segments(1<<20+pages*PageSize, seg))
			if pages >= 4*14*8 {
				require.GreaterOrEqual(t, Segments(1<<20+pages*PageSize, seg), fewestGroups)
			}
		}
	}
}

func TestSegmentForRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		device, block int64
		n             int
	}{
		{1 << 30, 0, 1}, {1 << 30, -1, 1}, {1 << 30, MaxStoredBytes + 1, 1}, {1 << 30, 4096, 0}, {1 << 30, 4096, 65},
		{0, 4096, 1}, {-1 << 63, 4096, 1}, {SuperblockPages * PageSize, 4096, 1},
	} {
		_, err := SegmentFor(c.device, c.block, c.n)
		require.ErrorIs(t, err, skep.Invalid, "%+v", c)
	}
	assert.Zero(t, Segments(1<<30, 0))
	assert.Zero(t, Segments(-5, 4096))
	assert.EqualValues(t, SuperblockPages*PageSize+3*8192, SegmentOffset(3, 8192))
}
