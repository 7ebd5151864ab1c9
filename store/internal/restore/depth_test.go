package restore

import (
	"container/heap"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
)

// A drive of a given bandwidth and latency, with more waiting than it can have: how deep it gets.
func settled(bandwidth float64, latency time.Duration, read int64) int64 {
	var d depth
	for range 10_000 {
		took := latency + time.Duration(float64(d.bytes())/bandwidth*float64(time.Second))
		d.saw(took, read, true)
	}
	return d.bytes()
}

func TestDrivesGetAsMuchAsKeepsThemBusy(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		bandwidth float64
		latency   time.Duration
	}{
		"PCIe 3":             {3.5e9, 90 * time.Microsecond},
		"PCIe 4":             {7e9, 90 * time.Microsecond},
		"PCIe 5":             {14e9, 80 * time.Microsecond},
		"a volume elsewhere": {4e9, 400 * time.Microsecond},
		"a disk":             {250e6, 8 * time.Millisecond},
	} {
		for _, read := range []int64{64 << 10, 1 << 20} {
			needs := min(int64(c.bandwidth*c.latency.Seconds()), leastDepth)
			got := settled(c.bandwidth, c.latency, read)
			require.GreaterOrEqual(t, got, needs, name)
			require.LessOrEqual(t, got, int64(mostDepth), name)
			if keeps := time.Duration(float64(got) / c.bandwidth * float64(time.Second)); got > leastDepth {
				require.LessOrEqual(t, keeps, lateBack, "%s: what waits behind", name)
			}
		}
	}
	require.Equal(t, int64(leastDepth), settled(250e6, 8*time.Millisecond, 1<<20), "a slow one keeps nobody waiting for more than it must")
	require.Greater(t, settled(14e9, 80*time.Microsecond, 1<<20), int64(8<<20), "a quick one is not held back")
}

// Reads that a drive keeps back keep no others back, here two of 1 MiB.
func TestStuckReadsHoldNobodyUp(t *testing.T) {
	t.Parallel()
	lent := &chunk{chain: &chain{Asked: Asked{ChainPlan: &layout.ChainPlan{}}}}
	for _, age := range []time.Duration{0, 2 * stuckAfter} {
		q := &Queue{}
		for range 2 {
			q.takeLocked(&read{ch: lent, bytes: 1 << 20, op: device.Op{Start: device.Now() - int64(age)}})
		}
		for i := range uint64(5) {
			heap.Push(&q.waits, &read{ch: lent, bytes: 1 << 20, order: i})
		}
		q.startLocked()
		if age == 0 {
			require.Len(t, q.waits, 5)
		} else {
			require.Empty(t, q.waits)
		}
	}
}

// Nothing is learned while nothing waits, and a read larger than the drive may have is read alone.
func TestDepthMovesOnlyWhenItMatters(t *testing.T) {
	t.Parallel()
	var d depth
	d.saw(time.Microsecond, 1<<20, false)
	require.Equal(t, int64(leastDepth), d.bytes())
	require.True(t, d.fits(0, 0, mostDepth, true))
	require.False(t, d.fits(1, leastDepth-(1<<20), 1<<20+1, true))
	require.True(t, d.fits(1, leastDepth-(1<<20), 1<<20, true))
	require.False(t, d.fits(DriveReads, 0, 4096, true))
	require.True(t, d.fits(1, mostDepth-1, 1<<20, false), "not lent")
	require.False(t, d.fits(1, mostDepth, 1<<20, false))
	for range 100 {
		d.saw(time.Microsecond, 1<<20, true)
	}
	require.Equal(t, int64(leastDepth+100<<18), d.bytes())
	for range 100 {
		d.saw(time.Second, 1<<20, true)
	}
	require.Equal(t, int64(leastDepth), d.bytes())
}
