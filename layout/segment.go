package layout

import (
	"fmt"

	"github.com/skepkv/skep"
)

const (
	// SuperblockPages is what is kept for superblocks at the start of a device (64 KiB).
	SuperblockPages = 16
	// MaxAutoSegment is the largest segment SegmentFor chooses, in bytes, unless 8 rows
	// need more.
	MaxAutoSegment = 64 << 20

	minSegmentRows = 8
	wantedGroups   = 150
	fewestGroups   = 4 // cleaning needs somewhere to write to
	// logShare is how many blocks' records a log page is reckoned to hold: a record
	// is up to about 1 KiB (a table of 72 checksums and names), and batches seldom
	// fill their last page.
	logShare = 4
	// Small blocks have few checksums, and many of them are put at a time.
	smallPages    = 8
	smallLogShare = 8
)

// SegmentFor chooses the segment size, in bytes, for devices of deviceBytes each, of
// which groups of n are made, and blocks that mostly take blockBytes: a header page,
// a whole number of rows of such blocks, and the log pages they need, so that full
// groups have next to nothing left over. It aims at 150 segments and more a device
// and at 8 rows and more a segment, at most MaxAutoSegment. On small devices, or for
// large blocks, it makes do with fewer segments, down to 4, then with fewer rows, then
// with what there is. Log need is reckoned at one page for every
// four blocks, or every eight of up to 32 KiB, spread over the devices, and one more; where that is not what comes,
// nothing breaks: rows and logs grow towards each other.
//
// Invalid: a device that does not hold the superblocks and one row.
func SegmentFor(deviceBytes, blockBytes int64, n int) (int64, error) {
	const op = "segment"
	if err := checkGroup(op, n, 2); err != nil {
		return 0, err
	}
	if blockBytes < 1 || blockBytes > MaxStoredBytes {
		return 0, skep.Invalidf(op, "typical block size in bytes", blockBytes, fmt.Sprintf("1 to %d", int64(MaxStoredBytes)))
	}
	units, u := UnitFor(int(ceil(blockBytes, PageSize)), n)
	height := ceil(units, n) * u // of one block, or of a row of several
	blocks := max(n/units, 1)    // in that height
	share := logShare
	if ceil(blockBytes, PageSize) <= smallPages {
		share = smallLogShare
	}
	pages := func(rows int) int {
		return 1 + rows*height + 1 + ceil(rows*blocks, share*n)
	}
	have := deviceBytes/PageSize - SuperblockPages
	if have < int64(pages(1)) {
		return 0, skep.Invalidf(op, "device size in bytes", deviceBytes, fmt.Sprintf("at least %d for blocks of %d bytes", (SuperblockPages+int64(pages(1)))*PageSize, blockBytes))
	}

	rowsIn := func(limit int64) (rows int) {
		limit = min(limit, MaxSegmentPages)
		for rows = int(limit) / height; rows > 0 && int64(pages(rows)) > limit; rows-- {
		}
		return rows
	}
	most := rowsIn(min(have/wantedGroups, MaxAutoSegment/PageSize))
	if most < minSegmentRows {
		most = max(most, min(minSegmentRows, rowsIn(have/fewestGroups)), 1)
	}
	// Of nearly equal sizes the one that leaves the least of the device unused.
	best, used := most, int64(0)
	for rows := most; rows >= max(most*3/4, min(most, minSegmentRows)); rows-- {
		if n := have / int64(pages(rows)) * int64(rows); n > used {
			best, used = rows, n
		}
	}
	return int64(pages(best)) * PageSize, nil
}

// Segments is how many segments of segBytes a device of deviceBytes has.
func Segments(deviceBytes, segBytes int64) int {
	if segBytes < PageSize || deviceBytes < SuperblockPages*PageSize {
		return 0
	}
	return int((deviceBytes - SuperblockPages*PageSize) / segBytes)
}

// SegmentOffset is where segment i begins on a device, in bytes.
func SegmentOffset(i int, segBytes int64) int64 {
	return SuperblockPages*PageSize + int64(i)*segBytes
}
