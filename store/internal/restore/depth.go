package restore

import "time"

// depth is how much of what waits for a drive is given to it at once, in bytes, of reads into
// memory that is lent to who sends it on. More than keeps a drive busy makes those no faster and much later:
// what is given to it cannot be overtaken, and drives that work off all they have before they tell
// of any (virtual ones do) keep every sender waiting for the last. So a drive gets more while what
// it has comes back soon. Reads straight to where their caller wants them are the other way
// round, nobody does anything until many are there: those may be deep.
// The zero value is ready. It is a number and rules: no I/O, no clock, no lock.
type depth struct{ above int64 } // bytes over leastDepth

const (
	leastDepth = 2 << 20
	mostDepth  = 32 << 20
	// Reads that take no longer than soonBack leave room for more, and those that take longer
	// than lateBack were too many.
	soonBack = time.Millisecond
	lateBack = 2 * time.Millisecond
)

// bytes is how much the drive may have under way before lent reads wait.
func (d *depth) bytes() int64 { return leastDepth + d.above }

// fits says whether a read of n bytes, lent or not, may join ops reads of so many bytes under way.
// One always may.
func (d *depth) fits(ops int, under, n int64, lent bool) bool {
	switch {
	case ops == 0:
		return true
	case lent && under+n > d.bytes():
		return false
	}
	return ops < DriveReads && under < mostDepth
}

// saw learns from a read of n bytes that came back; waiting says that others were kept back.
func (d *depth) saw(took time.Duration, n int64, waiting bool) {
	switch {
	case took > lateBack:
		d.above = max(d.above-n, 0)
	case took <= soonBack && waiting:
		d.above = min(d.above+n/4, mostDepth-leastDepth)
	}
}
