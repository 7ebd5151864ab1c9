package layout

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/skepkv/skep"
)

func filler(t require.TestingT, n, segPages int) *Filler {
	f, err := NewFiller(n, segPages)
	require.NoError(t, err)
	return f
}

func TestFillerRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]int{{0, 10}, {-1, 10}, {65, 10}, {4, 1}, {4, -1}, {4, MaxSegmentPages + 1}} {
		_, err := NewFiller(c[0], c[1])
		require.ErrorIs(t, err, skep.Invalid)
	}
	f := filler(t, 4, 100)
	before := f.Stats()
	for _, pages := range []int{0, -1, 400, 1 << 40} {
		_, ok := f.Place(pages, 0)
		assert.False(t, ok)
		assert.False(t, f.Room(pages))
	}
	for _, size := range []int{-1, 0, MaxPacked + 1} {
		_, ok := f.PlacePacked(size, 0)
		assert.False(t, ok)
	}
	for _, c := range [][2]int{{-1, 1}, {4, 1}, {0, 0}, {0, -1}, {0, 100}} {
		_, ok := f.Log(c[0], c[1])
		assert.False(t, ok)
	}
	f.Rollback(Mark{})
	assert.Equal(t, before, f.Stats())
	for _, start := range []int{-1 << 63, -1, 4, 1<<63 - 1} {
		_, ok := f.Place(1, start)
		assert.True(t, ok, "a start is taken modulo the devices")
	}
	_, ok := f.PlaceCopy(Location{Page: 1, Device: 200}, 1, 1<<63-1)
	assert.True(t, ok)
}

// The drawing of doc.go.
func TestFillerDrawing(t *testing.T) {
	t.Parallel()
	f := filler(t, 4, 2000)
	place := func(pages, start int) [2]int {
		l, ok := f.Place(pages, start)
		require.True(t, ok)
		return [2]int{int(l.Page), int(l.Device)}
	}
	assert.Equal(t, [2]int{1, 0}, place(400, 0))
	assert.Equal(t, [2]int{1, 2}, place(400, 2))
	assert.Equal(t, [2]int{201, 3}, place(400, 3))
	assert.Equal(t, [2]int{201, 1}, place(400, 1))
	assert.Equal(t, [2]int{401, 1}, place(1600, 1))
	p, ok := f.Log(0, 1)
	assert.True(t, ok)
	assert.EqualValues(t, 1999, p)
	p, _ = f.Log(0, 2)
	assert.EqualValues(t, 1997, p, "downwards")
	p, _ = f.Log(3, 1)
	assert.EqualValues(t, 1999, p, "each device for itself")
	assert.Equal(t, FillerStats{Pages: 8000, Header: 4, Payload: 3200, Log: 4, Free: 4792, Rows: 4}, f.Stats())
}

// cells is who owns each page of a group, kept by the tests.
type cells struct {
	t     require.TestingT
	n     int
	owner map[[2]int]int
	next  int
}

func (c *cells) claim(device, page int) {
	at := [2]int{device, page}
	if other, given := c.owner[at]; given || page < 1 { // asserts are too slow for every page
		require.Fail(c.t, "a page given twice, or the header", "device %d page %d to %d and %d", device, page, other, c.next)
	}
	c.owner[at] = c.next
}

func (c *cells) block(loc Location, pages int) {
	c.next++
	for _, e := range Extents(nil, loc, int64(pages)*PageSize, c.n) {
		for i := range e.Pages() {
			c.claim(e.Device, int(e.Page)+i)
		}
	}
}

// Whatever is asked for in whatever order: no page is given twice or lies outside the
// segment, every page is accounted for, Rollback leaves no trace, copies are apart,
// and Room tells the truth.
func TestFillerNeverGivesAPageTwice(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 20).Draw(t, "devices")
		segPages := rapid.IntRange(2, 3000).Draw(t, "segment pages")
		f := filler(t, n, segPages)
		c := &cells{t: t, n: n, owner: map[[2]int]int{}}
		sizes := rapid.SliceOfN(rapid.IntRange(1, 1500), 1, 80).Draw(t, "sizes") // more heights than rows are remembered
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		payload, log := 0, 0
		slots := map[[2]int]int{} // of packed pages: bits of their slots
		for range 300 {
			switch pages := sizes[rng.IntN(len(sizes))]; rng.IntN(8) {
			case 0:
				d, k := rng.IntN(n), 1+rng.IntN(3)
				if p, ok := f.Log(d, k); ok {
					c.next++
					for i := range k {
						require.Less(t, int(p)+i, segPages)
						c.claim(d, int(p)+i)
					}
					log += k
				}
			case 1: // a batch that does not happen
				m, before := f.Mark(), f.Stats()
				for range rng.IntN(20) {
					f.Place(sizes[rng.IntN(len(sizes))], rng.IntN(n))
					f.PlacePacked(1000, rng.IntN(n))
					f.Log(rng.IntN(n), 1)
				}
				f.Rollback(m)
				require.Equal(t, before, f.Stats())
			case 2:
				size := 1 + rng.IntN(MaxPacked)
				loc, ok := f.PlacePacked(size, rng.IntN(n))
				if !ok {
					require.False(t, f.Room(1))
					continue
				}
				bits := (1<<ceil(size, SlotSize) - 1) << loc.Sub
				at := [2]int{int(loc.Device), int(loc.Page)}
				if slots[at] == 0 {
					c.block(loc, 1)
					payload++
				}
				require.NoError(t, loc.Check(int64(size), n, segPages))
				require.Zero(t, slots[at]&bits, "slots given twice")
				slots[at] |= bits
			case 3:
				loc, ok := f.Place(pages, rng.IntN(n))
				if !ok {
					continue
				}
				c.block(loc, pages)
				payload += pages
				copies := []Location{}
				for k := 1; k < 4; k++ {
					cp, ok := f.PlaceCopy(loc, pages, Rotation(rng.Uint32(), k, n), copies...)
					require.False(t, ok && n <= k, "more copies than devices")
					if !ok {
						break
					}
					c.block(cp, pages)
					payload += pages
					apart(t, n, pages, append(copies, loc, cp))
					copies = append(copies, cp)
				}
			default:
				room := f.Room(pages)
				loc, ok := f.Place(pages, rng.IntN(n))
				require.Equal(t, room, ok)
				if ok {
					require.NoError(t, loc.Check(int64(pages)*PageSize, n, segPages))
					c.block(loc, pages)
					payload += pages
				}
			}
			s := f.Stats()
			require.Equal(t, n*segPages, s.Pages)
			require.Equal(t, s.Pages, s.Header+s.Payload+s.Log+s.Pad+s.Open+s.Lost+s.Free)
			require.Equal(t, [2]int{payload, log}, [2]int{s.Payload, s.Log})
			require.GreaterOrEqual(t, s.Free, 0)
			require.LessOrEqual(t, s.OpenRows, maxOpenRows)
		}
		require.Len(t, c.owner, payload+log)
	})
}

// apart checks that no unit of two copies shares a device.
func apart(t require.TestingT, n, pages int, copies []Location) {
	units := map[[2]int]bool{}
	for _, l := range copies {
		for j, e := range Extents(nil, l, int64(pages)*PageSize, n) {
			require.False(t, units[[2]int{j, e.Device}], "unit %d twice on device %d", j, e.Device)
			units[[2]int{j, e.Device}] = true
		}
	}
}

// A start that is asked for is given as long as rows can be opened, and blocks of one
// size fill a group without a gap, wherever they begin.
func TestFillerFillsRows(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 3, 4, 6, 7, 8, 12, 16} {
		for _, pages := range []int{1, 16, 200, 257, 600, 1152, 2304, 5000} {
			units, u := UnitFor(pages, n)
			k := LayerUnits(int64(pages)*PageSize/36, u)
			height := ceil(units, n) * u
			const rows = 48
			f := filler(t, n, 1+rows*height)
			placed, at := 0, 0
			for ; ; placed++ {
				start := Start(at%n, placed, units, n, k)
				full := !f.room(height)
				loc, ok := f.Place(pages, start)
				if !ok {
					break
				}
				if !full {
					require.Equal(t, start, int(loc.Device))
				}
			}
			s := f.Stats()
			require.Zero(t, s.Free)
			require.Zero(t, s.Open, "%d devices, blocks of %d", n, pages)
			require.Equal(t, rows*max(1, n/units), placed)
		}
	}
}

// Many chains put at once, each with its own start: only the rows left open at the
// end are not full.
func TestFillerWithManyChains(t *testing.T) {
	t.Parallel()
	rng := seeded(t)
	const n, pages = 8, 400 // two units
	units, u := UnitFor(pages, n)
	f := filler(t, n, 1+64*u)
	base, depth := [20]int{}, [20]int{}
	for i := range base {
		base[i] = rng.IntN(n)
	}
	for {
		c := rng.IntN(len(base))
		want := Start(base[c], depth[c], units, n, 1)
		_, ok := f.Place(pages, want)
		if !ok {
			break
		}
		depth[c]++
	}
	s := f.Stats()
	t.Logf("%.1f %% of the group is payload; %+v", 100*float64(s.Payload)/float64(s.Pages), s)
	assert.GreaterOrEqual(t, float64(s.Payload), 0.97*float64(s.Pages))
}

func TestRollbackTwice(t *testing.T) {
	t.Parallel()
	f := filler(t, 4, 100)
	f.Place(3, 1)
	m := f.Mark()
	first, _ := f.Place(3, 2)
	for range 3 {
		f.Rollback(m)
		again, ok := f.Place(3, 2)
		require.True(t, ok)
		require.Equal(t, first, again)
		f.Place(50, 0)
		f.Log(0, 1)
	}
}

func TestPacked(t *testing.T) {
	t.Parallel()
	f := filler(t, 4, 100)
	place := func(size, start int, avoid ...Location) Location {
		l, ok := f.PlacePacked(size, start, avoid...)
		require.True(t, ok)
		return l
	}
	a := place(600, 2)
	assert.Equal(t, Location{Page: 1, Device: 2}, a)
	assert.Equal(t, Location{Page: 1, Device: 2, Sub: 2}, place(2048, 0), "the page is shared, whatever the start")
	copyOfA := place(600, 2, a)
	assert.Equal(t, Location{Page: 1, Device: 3}, copyOfA, "a copy is elsewhere")
	assert.NotContains(t, []uint8{2, 3}, place(600, 2, a, copyOfA).Device)
	assert.Equal(t, Location{Page: 1, Device: 2, Sub: 6}, place(1024, 0), "the last two slots")
	f.Mark()
	assert.Zero(t, place(600, 2).Sub, "another batch, another page")
	_, ok := f.PlacePacked(600, 0, Location{Device: 0}, Location{Device: 1}, Location{Device: 2}, Location{Device: 3})
	assert.False(t, ok)
}

// What is placed in one batch shares pages, however often it is gone back to a point in it;
// what was placed before the batch is shared with nobody.
func TestSharing(t *testing.T) {
	t.Parallel()
	f := filler(t, 4, 100)
	_, ok := f.Share(600)
	require.False(t, ok, "there is no page to share yet")
	first, ok := f.PlacePacked(600, 1)
	require.True(t, ok)
	at := f.Point()
	before := f.Stats()
	for range 3 {
		l, ok := f.Share(1000)
		require.True(t, ok)
		require.Equal(t, Location{Page: first.Page, Device: 1, Sub: 2}, l)
		_, ok = f.Share(1000, first)
		require.False(t, ok, "its only page is on the device of another copy")
		_, ok = f.Share(3000)
		require.False(t, ok, "there are not so many slots left")
		other, ok := f.PlacePacked(3000, 2)
		require.True(t, ok)
		require.NotEqual(t, first.Page<<8|uint32(first.Device), other.Page<<8|uint32(other.Device))
		f.Rollback(at)
		require.Equal(t, before, f.Stats())
	}
	f.Mark()
	_, ok = f.Share(600)
	require.False(t, ok, "that page may be on its way to a device")
}

func TestRotation(t *testing.T) {
	t.Parallel()
	assert.Zero(t, Rotation(5, 1, 1))
	for n := 2; n <= 16; n++ {
		spread := map[int]int{}
		for g := range uint32(2 * (n - 1)) {
			seen := map[int]bool{}
			for c := 1; c < min(n, skep.MaxCopies); c++ {
				r := Rotation(g, c, n)
				require.True(t, r >= 1 && r < n)
				require.False(t, seen[r], "two copies with one rotation")
				seen[r] = true
			}
			spread[Rotation(g, 1, n)]++
		}
		require.Len(t, spread, n-1)
		for _, times := range spread {
			require.Equal(t, 2, times, "a lost device's load spreads evenly over all others")
		}
	}
	_ = Rotation(1<<32-1, -5, 3)
}

func BenchmarkPlace(b *testing.B) {
	f, _ := NewFiller(8, MaxSegmentPages)
	m := f.Mark()
	for i := range b.N {
		if _, ok := f.Place(300, i); !ok {
			f.Rollback(m)
		}
	}
}
