package layout

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/skepkv/skep"
)

// A block of random shape and parts is written to devices and any range of any part
// read back, through granules, reads and merged runs: the bytes are the right ones,
// and no page is read that holds none of the granules needed.
func TestReadsMapBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := attention(rapid.IntRange(1, 6).Draw(t, "layers"), rapid.IntRange(1, 4).Draw(t, "heads"),
			8*rapid.IntRange(1, 16).Draw(t, "dim/8"), rapid.IntRange(1, 100).Draw(t, "tokens"), skep.BF16, skep.HND)
		geo := geometry(t, s)
		n := rapid.IntRange(1, 9).Draw(t, "devices")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		m := skep.Manifest{{Name: "boundary", Size: rng.Int64N(20000)}, {Name: "kv", Size: geo.PartBytes()}, {Name: "state", Size: rng.Int64N(300000)}}
		stored := make([]byte, StoredBytes(m))
		for i := range stored {
			stored[i] = byte(rng.Uint32())
		}
		f := filler(t, n, MaxSegmentPages)
		f.Place(rng.IntN(1000)+1, rng.IntN(n))
		loc, ok := f.Place(len(stored)/PageSize, rng.IntN(n))
		require.True(t, ok)
		loc.Group = 7
		dev := newDevices(n, int(f.low))
		dev.write(Extents(nil, loc, int64(len(stored)), n), stored)

		part := rng.IntN(len(m))
		g, err := GranulesOf(s, m[part].Name, m[part].Size)
		require.NoError(t, err)
		bytesOf := stored[PartOffset(m, part):][:m[part].Size]
		var spans []Span
		if m[part].Name == skep.PartKV {
			spans, err = geo.ByteRange(nil, someRange(t, s.Layers, "layers"), KV(rng.IntN(3)), someRange(t, s.KVHeads, "heads"), someRange(t, s.BlockTokens, "tokens"))
			require.NoError(t, err)
		} else if size := m[part].Size; size > 0 {
			for off := rng.Int64N(size); off < size; off += 1 + rng.Int64N(size) {
				spans = append(spans, Span{off, 1 + rng.Int64N(size-off)}) // ascending, and may overlap
			}
		}
		reads := AppendReads([]Read{{Tag: 9}}, loc, n, int64(len(stored)), PartOffset(m, part), g, spans)
		require.Equal(t, Read{Tag: 9}, reads[0])
		reads = reads[1:]

		needed := map[int]bool{} // granules
		for _, sp := range spans {
			for i, last := g.Cover(sp); i <= last; i++ {
				needed[i] = true
			}
		}
		got, have := make([]byte, len(bytesOf)), make([]bool, len(bytesOf))
		pages, onDevice := 0, map[[2]int]bool{}
		for _, r := range reads {
			require.EqualValues(t, 7, r.Group)
			require.Equal(t, int(ceil(int64(r.Skip)+r.Len, PageSize)), r.Pages)
			require.EqualValues(t, r.PartOff%PageSize, r.Skip, "page-aligned memory is read into directly")
			copy(got[r.PartOff:], dev[r.Device][int(r.Page)*PageSize+r.Skip:][:r.Len])
			for i := r.PartOff; i < r.PartOff+r.Len; i++ {
				require.False(t, have[i], "a byte is wanted once")
				have[i] = true
			}
			for p := range int64(r.Pages) {
				from := max(r.PartOff-int64(r.Skip)+p*PageSize, 0)
				first, last := g.At(from), g.At(min(from+PageSize, g.Part)-1)
				holds := false
				for i := first; i <= last; i++ {
					holds = holds || needed[i]
				}
				require.True(t, holds, "page %d of %+v holds no granule that is needed", p, r)
			}
			for p := range r.Pages {
				at := [2]int{r.Device, int(r.Page) + p}
				require.False(t, onDevice[at], "a page is read once")
				onDevice[at] = true
			}
			pages += r.Pages
		}
		for i := range needed {
			sp := g.Span(i)
			require.True(t, bytes.Equal(bytesOf[sp.Off:sp.End()], got[sp.Off:sp.End()]), "granule %d", i)
			require.NotContains(t, have[sp.Off:sp.End()], false)
		}

		// Merged, the same pages are read from the same places, neighbours at once.
		limit := rng.IntN(600)
		before := slices.Clone(reads)
		runs, seen, merged := Merge(nil, reads, limit), 0, 0
		for i, run := range runs {
			require.Equal(t, seen, run.First)
			at := run.Page
			for _, r := range reads[run.First:run.End] {
				require.Equal(t, [3]int{int(run.Group), run.Device, int(at)}, [3]int{int(r.Group), r.Device, int(r.Page)})
				at += uint32(r.Pages)
			}
			require.Equal(t, int(at-run.Page), run.Pages)
			require.True(t, run.Pages <= limit || run.End-run.First == 1)
			if i > 0 && runs[i-1].Device == run.Device {
				prev := runs[i-1]
				require.True(t, int(prev.Page)+prev.Pages < int(run.Page) ||
					prev.Pages+reads[run.First].Pages > limit, "neighbours left apart")
			}
			seen, merged = run.End, merged+run.Pages
		}
		require.Equal(t, len(reads), seen)
		require.Equal(t, pages, merged)
		require.ElementsMatch(t, before, reads)
	})
}

func TestReadsOfOneLayer(t *testing.T) {
	t.Parallel()
	// Qwen3-8B, 32 tokens, on 8 devices: 4.5 MiB in 8 units of 144 pages (576 KiB);
	// layer 4 is bytes 524288 to 655360 and lies on two of them.
	s := attention(36, 8, 128, 32, skep.BF16, skep.HND)
	geo := geometry(t, s)
	g, err := GranulesOf(s, skep.PartKV, geo.PartBytes())
	require.NoError(t, err)
	spans, err := geo.ByteRange(nil, skep.Only(4, 5), KAndV, skep.All, skep.All)
	require.NoError(t, err)
	got := AppendReads(nil, Location{Group: 3, Page: 1, Device: 7}, 8, StoredBytes(skep.Manifest{{Name: "kv", Size: geo.PartBytes()}}), 0, g, spans)
	assert.Equal(t, []Read{
		{Group: 3, Device: 7, Page: 129, Pages: 16, PartOff: 524288, Len: 65536},
		{Group: 3, Device: 0, Page: 1, Pages: 16, PartOff: 589824, Len: 65536},
	}, got)
}

func TestReadOfPacked(t *testing.T) {
	t.Parallel()
	m := skep.Manifest{{Name: "kv", Size: 700}, {Name: "state", Size: 100}}
	stored, ok := PackedBytes(m)
	require.True(t, ok)
	got := AppendReads(nil, Location{Page: 5, Device: 1, Sub: 4}, 4, stored, PackedOffset(m, 1), uniform(100, 100), []Span{{10, 1}})
	assert.Equal(t, []Read{{Device: 1, Page: 5, Pages: 1, Skip: 4*512 + 1024, Len: 100}}, got)
}

func TestReadsOfGranulesThatTouch(t *testing.T) {
	t.Parallel()
	loc := Location{Page: 1}
	for _, c := range []struct {
		name  string
		g     Granules
		spans []Span
		want  []Read
	}{
		{"at a page", uniform(16384, 4096), []Span{{0, 1}, {4096, 1}}, []Read{{Page: 1, Pages: 2, Len: 8192}}},
		{"inside a page", uniform(18000, 6000), []Span{{0, 1}, {6000, 1}}, []Read{{Page: 1, Pages: 3, Len: 12000}}},
		{"a gap within a page is read over", uniform(6000, 1000), []Span{{0, 1}, {2000, 1}}, []Read{{Page: 1, Pages: 1, Len: 3000}}},
		{"a page between them is not", uniform(12288, 4096), []Span{{0, 1}, {8192, 1}}, []Read{
			{Page: 1, Pages: 1, Len: 4096}, {Page: 3, Pages: 1, PartOff: 8192, Len: 4096}}},
		{"within one granule", uniform(12288, 4096), []Span{{0, 1}, {10, 1}, {20, 4000}}, []Read{{Page: 1, Pages: 1, Len: 4096}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			assert.Equal(t, c.want, AppendReads(nil, loc, 4, Padded(c.g.Part), 0, c.g, c.spans))
		})
	}
}

func TestReadsRefuse(t *testing.T) {
	t.Parallel()
	loc, g := Location{Page: 1}, uniform(5000, 4096)
	assert.Empty(t, AppendReads(nil, loc, 4, 8192, 4096, g, []Span{{0, 1}}), "the part does not lie in the block")
	assert.Empty(t, AppendReads(nil, loc, 4, 8192, -4096, g, []Span{{0, 1}}))
	assert.Empty(t, AppendReads(nil, loc, 4, 8192, 0, g, []Span{{5000, 1}, {-1, 2}, {0, 0}}), "spans outside the part")
	assert.Empty(t, AppendReads(nil, loc, 4, 8192, 0, Granules{}, []Span{{0, 1}}))
	got := AppendReads(nil, loc, 1, 8192, 0, g, []Span{{4999, 1}, {0, 1}})
	require.Len(t, got, 2, "spans that do not ascend work, each for itself")
}

func TestMerge(t *testing.T) {
	t.Parallel()
	at := func(device, page, pages int, tag uint32) Read {
		return Read{Device: device, Page: uint32(page), Pages: pages, Tag: tag}
	}
	reads := []Read{at(1, 10, 4, 1), at(0, 14, 4, 2), at(0, 10, 4, 3), at(0, 18, 4, 4), at(0, 10, 1, 5), at(0, 30, 1, 6)}
	runs := Merge([]Run{{Device: 9}}, reads, 8)
	assert.Equal(t, []Run{
		{Device: 9},
		{Device: 0, Page: 10, Pages: 8, First: 0, End: 3}, // tags 3, 5 (the same page again) and 2
		{Device: 0, Page: 18, Pages: 4, First: 3, End: 4}, // a neighbour, but too much
		{Device: 0, Page: 30, Pages: 1, First: 4, End: 5},
		{Device: 1, Page: 10, Pages: 4, First: 5, End: 6},
	}, runs)
	assert.EqualValues(t, 3, reads[0].Tag)
	other := []Read{{Group: 1, Page: 1, Pages: 1}, {Group: 2, Page: 2, Pages: 1}}
	assert.Len(t, Merge(nil, other, 100), 2, "another group is another segment")
	assert.Empty(t, Merge(nil, nil, 100))
}

func BenchmarkAppendReads(b *testing.B) {
	s := attention(36, 8, 128, 32, skep.BF16, skep.HND)
	geo, _ := Of(s)
	g, _ := GranulesOf(s, skep.PartKV, geo.PartBytes())
	spans, _ := geo.ByteRange(nil, skep.All, KAndV, skep.All, skep.All)
	var dst []Read
	b.ReportAllocs()
	for range b.N {
		dst = AppendReads(dst[:0], Location{Page: 1}, 8, geo.PartBytes(), 0, g, spans)
	}
}
