package layout

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/drawn"
)

func TestFormatLocation(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		loc  Location
		bits uint64
		text string
	}{
		{Location{}, 0, "0:0@0"},
		{Location{Group: 1}, 1 << 32, "1:0@0"},
		{Location{Page: 1}, 1 << 11, "0:1@0"},
		{Location{Device: 1}, 1 << 3, "0:0@1"},
		{Location{Sub: 7}, 7, "0:0@0+3584"},
		{Location{Group: 1<<32 - 1, Page: 1<<20 - 1, Device: 255, Sub: 7}, 0xffffffff_7fffffff, "4294967295:1048575@255+3584"},
	} {
		assert.Equal(t, c.bits, c.loc.Pack())
		assert.Equal(t, c.loc, Unpack(c.bits))
		assert.Equal(t, c.text, c.loc.String())
	}
}

func TestLocationPacks(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := Location{
			Group: rapid.Uint32().Draw(t, "group"), Page: rapid.Uint32Range(0, MaxSegmentPages-1).Draw(t, "page"),
			Device: rapid.Uint8().Draw(t, "device"), Sub: rapid.Uint8Range(0, 7).Draw(t, "sub"),
		}
		require.Equal(t, l, Unpack(l.Pack()))
	})
}

func TestLocationCheck(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name              string
		loc               Location
		stored            int64
		devices, segPages int
		ok                bool
	}{
		{"one page", Location{Page: 1}, 4096, 4, 2, true},
		{"nowhere", Location{}, 4096, 4, 2, false},
		{"past the end", Location{Page: 2}, 4096, 4, 2, false},
		{"two rows", Location{Page: 1, Device: 3}, 8 << 20, 4, 1 + 2*256, true},
		{"the second row past the end", Location{Page: 1, Device: 3}, 8 << 20, 4, 2 * 256, false},
		{"no such device", Location{Page: 1, Device: 4}, 4096, 4, 100, false},
		{"packed", Location{Page: 1, Sub: 7}, 512, 4, 2, true},
		{"packed past its page", Location{Page: 1, Sub: 7}, 513, 4, 2, false},
		{"no such slot", Location{Page: 1, Sub: 8}, 0, 4, 2, false},
		{"too large", Location{Page: 1}, MaxStoredBytes + 1, 64, MaxSegmentPages, false},
		{"negative", Location{Page: 1}, -1, 4, 2, false},
		{"no devices", Location{Page: 1}, 1, 0, 2, false},
		{"too many devices", Location{Page: 1}, 1, 65, 2, false},
		{"segment of a header", Location{Page: 1}, 1, 1, 1, false},
		{"segment too large", Location{Page: 1}, 1, 1, MaxSegmentPages + 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.loc.Check(c.stored, c.devices, c.segPages); c.ok {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, skep.Invalid)
			}
		})
	}
}

func TestFormatUnitFor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ pages, devices, units, unitPages int }{
		{1, 1, 1, 1}, {1, 8, 1, 1}, {256, 8, 1, 256},
		{257, 8, 2, 129}, {513, 8, 4, 129}, {1152, 8, 8, 144}, // 4.5 MiB: 8 units, not 5
		{2304, 8, 16, 144}, {2048, 8, 8, 256}, {2049, 8, 16, 129}, {257, 1, 2, 129},
		{300, 7, 7, 43}, {300, 6, 2, 150}, {600, 6, 3, 200}, {1000, 6, 6, 167},
		{257, 13, 13, 20}, {257, 17, 17, 16}, {257, 19, 2, 129}, {257, 61, 2, 129}, {15000, 61, 61, 246},
		{131072, 8, 512, 256}, {0, 8, 0, 0}, {8, 0, 0, 0}, {-1, -1, 0, 0},
	} {
		units, u := UnitFor(c.pages, c.devices)
		assert.Equal(t, [2]int{c.units, c.unitPages}, [2]int{units, u}, "%d pages on %d devices", c.pages, c.devices)
	}
}

func TestUnitsKeepTheirLimits(t *testing.T) {
	t.Parallel()
	for n := 1; n <= MaxDevices; n++ {
		for pages := 1; pages <= 70000; pages += 1 + pages/50 {
			units, u := UnitFor(pages, n)
			require.GreaterOrEqual(t, units*u, pages)
			require.Less(t, units*u-pages, units, "less than a page of padding a unit")
			require.LessOrEqual(t, u, MaxUnitPages)
			require.LessOrEqual(t, units, max(ceil(pages, MaxUnitPages)+n, ceil(pages, MinUnitPages)))
			if n <= 16 {
				require.True(t, units%n == 0 || n%units == 0, "%d units fill rows of %d", units, n)
			}
		}
	}
}

// devices is a group's memory: every byte of every device's segment.
type devices [][]byte

func newDevices(n, segPages int) devices {
	d := make(devices, n)
	for i := range d {
		d[i] = make([]byte, segPages*PageSize)
	}
	return d
}

func (d devices) write(exts []Extent, stored []byte) {
	for _, e := range exts {
		copy(d[e.Device][int(e.Page)*PageSize+e.Skip:], stored[e.Off:e.Off+e.Len])
	}
}

// Every byte is in one extent, no two extents meet on a device, and unit j is where
// the package comment says.
func TestExtentsCoverOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 20).Draw(t, "devices")
		stored := rapid.Int64Range(1, 40<<20).Draw(t, "stored")
		loc := Location{Page: rapid.Uint32Range(1, 1000).Draw(t, "page"), Device: uint8(rapid.IntRange(0, n-1).Draw(t, "device"))}
		pages := int(ceil(stored, PageSize))
		units, u := UnitFor(pages, n)
		at := int64(0)
		used := map[[2]int]bool{}
		for j, e := range Extents(nil, loc, stored, n) {
			require.Less(t, j, units)
			require.Equal(t, at, e.Off)
			require.Positive(t, e.Len)
			require.LessOrEqual(t, e.Pages(), u)
			require.Equal(t, (int(loc.Device)+j)%n, e.Device)
			require.Equal(t, int(loc.Page)+j/n*u, int(e.Page))
			require.Zero(t, e.Skip)
			for p := range e.Pages() {
				cell := [2]int{e.Device, int(e.Page) + p}
				require.False(t, used[cell])
				used[cell] = true
			}
			at += e.Len
		}
		require.Equal(t, stored, at)
		require.Len(t, used, pages)
	})
}

func TestExtentsOfPacked(t *testing.T) {
	t.Parallel()
	got := Extents(nil, Location{Page: 9, Device: 2, Sub: 3}, 1100, 4)
	assert.Equal(t, []Extent{{Device: 2, Page: 9, Skip: 1536, Off: 0, Len: 1100}}, got)
	assert.Equal(t, 1, got[0].Pages())
}

func TestExtentsOfNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		stored int64
		n      int
	}{{0, 4}, {-1, 4}, {1, 0}, {1, -1}, {1, 65}, {MaxStoredBytes + 1, 4}} {
		assert.Empty(t, Extents(nil, Location{Page: 1}, c.stored, c.n))
		assert.Empty(t, AppendReads(nil, Location{Page: 1}, c.n, c.stored, 0, Granules{1, 1, 1}, []Span{{0, 1}}))
	}
}

func TestParts(t *testing.T) {
	t.Parallel()
	m := skep.Manifest{{Name: "kv", Size: 5000}, {Name: "empty", Size: 0}, {Name: "boundary", Size: 4096}, {Name: "state", Size: 1}}
	for i, want := range []int64{0, 8192, 8192, 12288, 16384} {
		assert.Equal(t, want, PartOffset(m, i))
	}
	assert.EqualValues(t, 16384, StoredBytes(m))
	small := skep.Manifest{{Name: "kv", Size: 700}, {Name: "state", Size: 2000}}
	n, ok := PackedBytes(small)
	assert.True(t, ok)
	assert.EqualValues(t, 1024+2048, n)
	assert.EqualValues(t, 1024, PackedOffset(small, 1))
	n, ok = PackedBytes(skep.Manifest{{Name: "kv", Size: 3585}})
	assert.False(t, ok)
	assert.EqualValues(t, 4096, n)
	assert.EqualValues(t, 0, PartOffset(m, -1))
	assert.EqualValues(t, 16384, PartOffset(m, 99))
	assert.EqualValues(t, 4096, Padded(1))
}

func seeded(t *testing.T) *rand.Rand {
	seed := drawn.Seed(t)
	return rand.New(rand.NewPCG(seed, 0))
}
