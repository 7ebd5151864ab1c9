package segio

import (
	"bytes"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/segment"
)

var anySize = skep.Shape{Kind: skep.Opaque, BlockTokens: 1}

// cuts are buffers that follow one another from a part's start.
type cuts [][]byte

func (c cuts) Len() int { return len(c) }
func (c cuts) Piece(i int) (off int64, mem []byte) {
	for _, m := range c[:i] {
		off += int64(len(m))
	}
	return off, c[i]
}

// block is a block of one part, of such bytes as its size says.
func block(t testing.TB, size int) (*segment.Record, []byte) {
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i*7 + i>>9)
	}
	g, err := layout.GranulesOf(anySize, skep.PartKV, int64(size))
	require.NoError(t, err)
	rec := &segment.Record{Instance: 3, Key: skep.KeyOf([]byte("block")), Version: 5, Pages: uint32(layout.Padded(int64(size)) / layout.PageSize),
		Parts: []segment.RecordPart{{Name: skep.PartKV, Size: int64(size), Sums: make([]uint64, g.N())}}}
	sums, err := SumsOf("test", anySize, rec, 0)
	require.NoError(t, err)
	sums.Compute(data)
	return rec, data
}

// Every granule that is asked for is compared, each once, however its bytes are cut into pieces; what
// is missing is wrong.
func TestWrongGranules(t *testing.T) {
	t.Parallel()
	const size = 300_000
	rec, data := block(t, size)
	sums, err := SumsOf("test", anySize, rec, 0)
	require.NoError(t, err)
	n := sums.Granules.N()
	require.Greater(t, n, 3)
	wrong := func(spans []layout.Span, p Pieces) (list []int) {
		for g := range sums.Wrong(spans, p) {
			list = append(list, g)
		}
		return list
	}
	for _, n := range []int{size, 70_000, 4096, 1000} {
		pieces := cuts(slices.Collect(slices.Chunk(slices.Clone(data), n)))
		require.Empty(t, wrong(sums.All(), pieces))
		second := sums.Granules.Span(1)
		for i, off := 0, int64(0); i < len(pieces); i++ {
			if end := off + int64(len(pieces[i])); second.Off >= off && second.Off < end {
				pieces[i][second.Off-off] ^= 1
				break
			}
			off += int64(len(pieces[i]))
		}
		require.Equal(t, []int{1}, wrong(sums.All(), pieces))
		require.Equal(t, []int{1}, wrong([]layout.Span{{Off: second.Off, Len: 1}, {Off: second.Off + 1, Len: 100}}, pieces), "once")
		require.Empty(t, wrong([]layout.Span{{Off: second.End(), Len: 1}}, pieces), "it is not asked for")
	}
	require.Len(t, wrong(sums.All(), cuts{}), n)
	require.Equal(t, []int{n - 1}, wrong(sums.All(), cuts{data[:size-1]}))
}

// What is stored is compared with its record also where the two do not fit each other.
func TestVerify(t *testing.T) {
	t.Parallel()
	rec, data := block(t, 100_000)
	stored := append(slices.Clone(data), make([]byte, layout.Padded(100_000)-100_000)...)
	wrong, err := Verify(anySize, rec, stored)
	require.NoError(t, err)
	require.Empty(t, wrong)
	stored[len(data)] = 1 // padding
	_, err = Verify(anySize, rec, stored)
	require.NoError(t, err)
	stored[99_999] ^= 1
	wrong, err = Verify(anySize, rec, stored)
	requireKind(t, skep.Damaged, err)
	require.Len(t, wrong, 1)
	require.Equal(t, int64(100_000), wrong[0].End())

	_, err = Verify(anySize, rec, stored[:layout.PageSize])
	requireKind(t, skep.Damaged, err)
	rec.Parts[0].Sums = make([]uint64, 7)
	_, err = Verify(anySize, rec, stored)
	requireKind(t, skep.Damaged, err)

	rec, data = block(t, 100)
	rec.Parts[0].Inline, rec.Pages = slices.Clone(data), 0
	_, err = Verify(anySize, rec, nil)
	require.NoError(t, err)
	rec.Parts[0].Inline[3] ^= 1
	wrong, err = Verify(anySize, rec, nil)
	requireKind(t, skep.Damaged, err)
	require.Empty(t, wrong, "it is in the record")
}

func TestBest(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		bad  []bool
		rank []int
		want int
		err  error
	}{
		{[]bool{false, false}, []int{0, 0}, 0, nil},
		{[]bool{false, false}, []int{2, 1}, 1, nil},
		{[]bool{false, true}, []int{2, 0}, 0, nil},
		{[]bool{true, true}, []int{0, 0}, 0, ErrNoCopy},
		{[]bool{false, false}, []int{NoPlace, NoPlace}, 0, ErrNoDrive},
		{[]bool{true, false}, []int{0, NoPlace}, 0, ErrNoDrive},
	} {
		got, err := Best(len(tt.bad), func(c int) bool { return tt.bad[c] }, func(c int) int { return tt.rank[c] })
		require.Equal(t, tt.err, err)
		require.Equal(t, tt.want, got)
	}
	require.Equal(t, skep.Damaged, skep.KindOf(error(ErrNoCopy)))
	require.Equal(t, skep.DeviceFailed, skep.KindOf(error(ErrNoDrive)))
}

// stripes is a group of drives in memory.
type stripes []*device.Fault

func (g stripes) Len() int { return len(g) }
func (g stripes) Segment(i int) (device.Device, int64) {
	return g[i], layout.SegmentOffset(1, 4<<20)
}

// put writes two copies of a block of several units, each of whose units lies on other drives.
func put(t *testing.T, g stripes, size int) (*segment.Record, []byte) {
	rec, data := block(t, size)
	stored := device.AlignedBuffer(int(rec.Pages) * layout.PageSize)
	copy(stored, data)
	page := uint32(1)
	for c := range 2 {
		p := layout.Location{Group: 1, Page: page, Device: uint8(2 * c)}
		rec.Copies = append(rec.Copies, p)
		for _, e := range layout.Extents(nil, p, int64(len(stored)), len(g)) {
			dev, off := g.Segment(e.Device)
			require.NoError(t, device.WriteAt(t.Context(), dev, stored[e.Off:e.Off+e.Len], off+int64(e.Page)*layout.PageSize))
			page = max(page, e.Page+uint32(e.Pages()))
		}
	}
	return rec, data
}

// What ReadBlock makes of faults: it reads the block where it is right, and says what is at fault.
func TestReadBlock(t *testing.T) {
	t.Parallel()
	const size = 2560 << 10
	flip := device.Rule{Action: device.FlipBit, Kinds: device.Reads}
	fail := device.Rule{Action: device.Fail, Kinds: device.Reads}
	hold := device.Rule{Action: device.Hold, Kinds: device.Reads}
	for _, tt := range []struct {
		name   string
		faults map[int]device.Rule
		policy Policy
		kind   skep.Kind // of the error; Other: none
		wrong  []int     // drives that are told of
		silent []int
		spares []int // drives that are not read
	}{
		{name: "all is well"},
		{name: "a drive of higher rank", spares: []int{1},
			policy: Policy{Rank: func(i int) int { return []int{0, 5, 0, 0}[i] }}},
		{name: "a drive of no use", policy: Policy{Rank: func(i int) int { return []int{0, NoPlace, 0, 0}[i] }}, spares: []int{1}},
		{name: "drives of no use", policy: Policy{Rank: func(i int) int { return NoPlace }}, kind: skep.DeviceFailed, spares: []int{0, 1, 2, 3}},
		{name: "wrong bytes", faults: map[int]device.Rule{0: flip}, wrong: []int{0}},
		{name: "a failure", faults: map[int]device.Rule{1: fail}},
		{name: "silence", faults: map[int]device.Rule{1: hold}, silent: []int{1}},
		{name: "wrong bytes in every copy of a unit", faults: map[int]device.Rule{0: flip, 2: flip}, kind: skep.Damaged, wrong: []int{0, 2}},
		{name: "wrong bytes, and the other copy cannot be read", faults: map[int]device.Rule{0: flip, 2: fail}, kind: skep.DeviceFailed, wrong: []int{0}},
		{name: "the other copy wrong", faults: map[int]device.Rule{0: fail, 2: flip}, kind: skep.DeviceFailed, wrong: []int{2}},
		{name: "wrong bytes, and the other copy's drive is away", faults: map[int]device.Rule{0: flip}, policy: Policy{Rank: func(i int) int { return []int{0, 0, NoPlace, 0}[i] }}, kind: skep.DeviceFailed, wrong: []int{0}, spares: []int{2}},
		{name: "no copy of a unit", faults: map[int]device.Rule{0: fail, 2: fail}, kind: skep.DeviceFailed},
		{name: "one copy only, which is right", faults: map[int]device.Rule{}, policy: Policy{Only: 1 << 1}},
		{name: "one copy only, wrong", faults: map[int]device.Rule{3: flip}, policy: Policy{Only: 1 << 0}, kind: skep.Damaged, wrong: []int{3}},
		{name: "one copy only, silent", faults: map[int]device.Rule{3: hold}, policy: Policy{Only: 1 << 1}, kind: skep.Deadline, silent: []int{3}},
	} {
		run := func(t *testing.T) {
			g := stripes{mem(t, 16<<20), mem(t, 16<<20), mem(t, 16<<20), mem(t, 16<<20)}
			rec, data := put(t, g, size)
			units := RecordUnits(rec, len(g))
			require.Len(t, units, len(g))
			for i := range units {
				require.NotEqual(t, units[i].Segments[0], units[i].Segments[1])
			}
			for i, rule := range tt.faults {
				g[i].MustInject(rule)
			}
			p := tt.policy
			p.Timeout = time.Second
			wrong, silent := map[int]bool{}, map[int]bool{}
			p.Wrong = func(i int) { wrong[i] = true }
			p.Silent = func(i int) { silent[i] = true }
			buf := device.AlignedBuffer(int(rec.Pages) * layout.PageSize)
			got, err := ReadBlock(t.Context(), g, anySize, rec, buf, p)
			for i, d := range g {
				require.Equal(t, slices.Contains(tt.wrong, i), wrong[i], "drive %d gave wrong bytes", i)
				require.Equal(t, slices.Contains(tt.silent, i), silent[i], "drive %d did not answer", i)
				if slices.Contains(tt.spares, i) {
					require.Zero(t, d.Stats().Reads.Ops)
				}
			}
			require.Equal(t, len(tt.silent) > 0, Lent(buf, got, err))
			if tt.kind != skep.Other {
				requireKind(t, tt.kind, err)
				return
			}
			require.NoError(t, err)
			require.True(t, bytes.Equal(data, got[:size]))
		}
		t.Run(tt.name, func(t *testing.T) { synctest.Test(t, run) })
	}
}

// A block that shares its page is read from its slot.
func TestReadPackedBlock(t *testing.T) {
	t.Parallel()
	g := stripes{mem(t, 16<<20), mem(t, 16<<20)}
	rec, data := block(t, 700)
	rec.Copies = []layout.Location{{Group: 1, Page: 2, Device: 1, Sub: 3}}
	page := bytes.Repeat([]byte{0xee}, layout.PageSize)
	copy(page[3*layout.SlotSize:], data)
	dev, off := g.Segment(1)
	aligned := device.AlignedBuffer(layout.PageSize)
	copy(aligned, page)
	require.NoError(t, device.WriteAt(t.Context(), dev, aligned, off+2*layout.PageSize))
	buf := device.AlignedBuffer(layout.PageSize)
	got, err := ReadBlock(t.Context(), g, anySize, rec, buf, Policy{Timeout: hangs})
	require.NoError(t, err)
	require.Equal(t, data, got[:700])
}
