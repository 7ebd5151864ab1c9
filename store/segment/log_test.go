package segment

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/drawn"
)

// A testLog is the end of a segment, as a device holds it, and what was appended.
type testLog struct {
	t     testing.TB
	id    LogID
	image []byte // log page 0 is its last page
	pages int
}

func newTestLog(t testing.TB, pages int) *testLog {
	return &testLog{t: t, id: sampleLog, image: make([]byte, pages*PageSize)}
}

func (l *testLog) append(seq uint64, fill func(w *LogWriter)) {
	l.t.Helper()
	var w LogWriter
	fill(&w)
	at := AppendOffset(int64(len(l.image)), l.pages, w.Pages())
	require.NoError(l.t, w.Encode(l.image[at:at+int64(w.Pages()*PageSize)], l.id, l.pages, seq))
	l.pages += w.Pages()
}

// records appends n records whose Seq is seq, seq+1, …
func (l *testLog) records(seq uint64, n int) {
	l.append(seq, func(w *LogWriter) {
		for i := range n {
			r := plainRecord(int(seq) + i)
			require.NoError(l.t, w.Record(&r))
		}
	})
}

func (l *testLog) page(k int) []byte {
	at := AppendOffset(int64(len(l.image)), k, 1)
	return l.image[at : at+PageSize]
}

// read reads image in pieces of chunk pages: the appends as "seq@first+pages:entries",
// and the end. Every record must decode.
func read(t testing.TB, image []byte, id LogID, chunk int) ([]string, LogEnd) {
	t.Helper()
	r := NewLogReader(id)
	var got []string
	for {
		a, ok := r.Next()
		switch {
		case !ok && len(image) == 0:
			return got, r.End()
		case !ok:
			n := max(0, len(image)-chunk*PageSize)
			require.NoError(t, r.Feed(append([]byte(nil), image[n:]...)))
			image = image[:n]
		default:
			n := 0
			for e := range a.Entries() {
				if e.Kind == KindBlock {
					require.NoError(t, DecodeRecord(e.Body, new(Record)))
				}
				n++
			}
			got = append(got, fmt.Sprintf("%d@%d+%d:%d", a.Seq, a.First, a.Pages, n))
		}
	}
}

func TestLogRoundTrip(t *testing.T) {
	t.Parallel()
	l := newTestLog(t, 16)
	rec, stone, purge, ns := sampleRecord(), sampleTombstone(), samplePurge(), sampleNamespace()
	l.append(100, func(w *LogWriter) {
		require.NoError(t, w.Namespace(&ns))
		require.NoError(t, w.Record(&rec))
		require.NoError(t, w.Tombstone(&stone))
		require.NoError(t, w.RecordBytes(rec.Append(nil)))
		require.NoError(t, w.Purge(&purge))
		assert.Equal(t, AppendPages(w.Len()), w.Pages())
	})
	r := NewLogReader(l.id)
	_, ok := r.Next()
	require.False(t, ok, "nothing was fed")
	require.NoError(t, r.Feed(l.image))
	a, ok := r.Next()
	require.True(t, ok)
	var kinds []Kind
	for e := range a.Entries() {
		kinds = append(kinds, e.Kind)
		switch e.Kind {
		case KindBlock:
			assert.Equal(t, rec.Append(nil), e.Body)
		case KindTombstone:
			got, err := DecodeTombstone(e.Body)
			require.NoError(t, err)
			assert.Equal(t, stone, got)
		case KindPurge:
			got, err := DecodePurge(e.Body)
			require.NoError(t, err)
			assert.Equal(t, purge, got)
		case KindNamespace:
			got, err := DecodeNamespace(e.Body)
			require.NoError(t, err)
			assert.Equal(t, ns, got)
		}
	}
	assert.Equal(t, []Kind{KindNamespace, KindBlock, KindTombstone, KindBlock, KindPurge}, kinds)
	_, ok = r.Next()
	assert.False(t, ok)
	assert.Equal(t, LogEnd{Appends: 1, Pages: 1, Seq: 100}, r.End())
}

// Appends of all lengths, read in pieces of all sizes, come out the same.
func TestLogPieces(t *testing.T) {
	t.Parallel()
	l := newTestLog(t, 40)
	var want []string
	seq := uint64(10)
	for _, n := range []int{1, 2, 3, 20, 1, 7} {
		first := l.pages
		l.records(seq, n)
		want = append(want, fmt.Sprintf("%d@%d+%d:%d", seq, first, l.pages-first, n))
		seq += 100
	}
	require.Greater(t, l.pages, 10)
	for chunk := 1; chunk <= 40; chunk++ {
		got, end := read(t, l.image, l.id, chunk)
		require.Equal(t, want, got, "pieces of %d", chunk)
		require.Equal(t, LogEnd{Appends: 6, Pages: l.pages, Seq: 510}, end)
	}
}

// A log that fills what it is given ends without an end page.
func TestLogWithoutEnd(t *testing.T) {
	t.Parallel()
	l := newTestLog(t, 2)
	l.records(1, 4)
	require.Equal(t, 2, l.pages)
	got, end := read(t, l.image, l.id, 1)
	assert.Equal(t, []string{"1@0+2:4"}, got)
	assert.NoError(t, end.Err)
}

func TestLogFeedInput(t *testing.T) {
	t.Parallel()
	r := NewLogReader(sampleLog)
	assert.ErrorIs(t, r.Feed(nil), skep.Invalid)
	assert.ErrorIs(t, r.Feed(make([]byte, 100)), skep.Invalid)
	require.NoError(t, r.Feed(make([]byte, PageSize)))
	assert.ErrorIs(t, r.Feed(make([]byte, PageSize)), skep.Invalid)
	_, ok := r.Next()
	assert.False(t, ok)
}

// What breaks a log of four appends, "1@0+1:1 2@1+3:8 20@4+1:1 30@5+1:1", and what a reader makes of it.
func TestLogDamage(t *testing.T) {
	t.Parallel()
	const a, b, c, d = "1@0+1:1", "2@1+3:8", "20@4+1:1", "30@5+1:1"
	build := func(id LogID) *testLog {
		l := newTestLog(t, 12)
		l.id = id
		l.records(1, 1)
		l.records(2, 8)
		l.records(20, 1)
		l.records(30, 1)
		require.Equal(t, 6, l.pages)
		return l
	}
	older := sampleLog
	older.Generation--
	reseal := func(p []byte) { sealPage(p, sampleLog.seed()) }
	for _, tc := range []struct {
		name  string
		edit  func(l *testLog)
		want  []string
		clean bool // nothing is wrong, but for what was never written
	}{
		{"nothing", func(*testLog) {}, []string{a, b, c, d}, true},
		{"blank page", func(l *testLog) { clear(l.page(4)) }, []string{a, b, d}, false},
		{"page of an earlier generation", func(l *testLog) { copy(l.page(4), build(older).page(4)) }, []string{a, b, d}, false},
		{"bad sector", func(l *testLog) { clear(l.page(4)[1024:1536]) }, []string{a, b, d}, false},
		{"torn: only the header's sector written", func(l *testLog) { clear(l.page(5)[512:]) }, []string{a, b, c}, false},
		{"torn: header's sector missing", func(l *testLog) { clear(l.page(5)[:512]) }, []string{a, b, c}, true},
		{"first page of an append missing", func(l *testLog) { clear(l.page(1)) }, []string{a, c, d}, false},
		{"middle page missing", func(l *testLog) { clear(l.page(2)) }, []string{a, c, d}, false},
		{"last page missing", func(l *testLog) { clear(l.page(3)) }, []string{a, c, d}, false},
		{"middle page damaged", func(l *testLog) { l.page(2)[2000] ^= 4 }, []string{a, c, d}, false},
		{"pages swapped", func(l *testLog) {
			p := append([]byte(nil), l.page(4)...)
			copy(l.page(4), l.page(5))
			copy(l.page(5), p)
		}, []string{a, b}, false},
		{"another device's page", func(l *testLog) {
			other := sampleLog
			other.Position = 2
			copy(l.page(4), build(other).page(4))
		}, []string{a, b, d}, false},
		{"page from before a crash behind one written since", func(l *testLog) {
			l.pages = 4
			l.records(40, 1)
		}, []string{a, b, "40@4+1:1"}, false},
		{"append from before a crash cut by one written since", func(l *testLog) {
			l.pages = 1
			l.records(40, 1)
		}, []string{a, "40@1+1:1"}, false},
		{"append torn before pages from before a crash that would complete it", func(l *testLog) {
			l.pages = 1
			behind := append([]byte(nil), l.image[:AppendOffset(int64(len(l.image)), 1, 1)]...)
			l.records(19, 8) // three pages as append 2 was, of which only the first arrives
			copy(l.image, behind)
		}, []string{a, c, d}, false},
		{"page before the last not full", func(l *testLog) {
			p, q := l.page(4), l.page(5)
			le.PutUint16(p[lpCount:], 2)
			le.PutUint16(q[lpCount:], 2)
			le.PutUint16(q[lpOrdinal:], 1)
			copy(q[lpSeq:lpIndex], p[lpSeq:lpIndex])
			reseal(p)
			reseal(q)
		}, []string{a, b}, false},
		{"ordinal skipped", func(l *testLog) { le.PutUint16(l.page(2)[lpOrdinal:], 2); reseal(l.page(2)) }, []string{a, c, d}, false},
		{"bytes after the used", func(l *testLog) { l.page(4)[offChecksum-1] = 1; reseal(l.page(4)) }, []string{a, b, d}, false},
		{"entry length not in its shortest form", func(l *testLog) {
			p := l.page(4)
			used := int(le.Uint16(p[lpUsed:]))
			copy(p[lpBody+4:], p[lpBody+3:lpBody+used])
			p[lpBody+2] |= 0x80
			p[lpBody+3] = 0
			le.PutUint16(p[lpUsed:], uint16(used+1))
			reseal(p)
		}, []string{a, b, d}, false},
		{"another format", func(l *testLog) { le.PutUint32(l.page(4)[offFormat:], FormatVersion+1); reseal(l.page(4)) }, []string{a, b, d}, false},
		{"a format that nobody knows", func(l *testLog) {
			le.PutUint32(l.page(4)[offFormat:], formatSealing+1)
			reseal(l.page(4))
		}, []string{a, b, d}, false},
		{"unknown kind", func(l *testLog) { l.page(4)[lpBody] = 9; reseal(l.page(4)) }, []string{a, b, d}, false},
		{"entry longer than its append", func(l *testLog) { le.PutUint16(l.page(4)[lpBody+1:], 0x7fff); reseal(l.page(4)) }, []string{a, b, d}, false},
		{"last byte of an entry not used", func(l *testLog) {
			p := l.page(4)
			used := le.Uint16(p[lpUsed:]) - 1
			p[lpBody+int(used)] = 0
			le.PutUint16(p[lpUsed:], used)
			reseal(p)
		}, []string{a, b, d}, false},
		{"ordinal at the count", func(l *testLog) { le.PutUint16(l.page(4)[lpOrdinal:], 1); reseal(l.page(4)) }, []string{a, b, d}, false},
		{"no pages in the append", func(l *testLog) { le.PutUint16(l.page(4)[lpCount:], 0); reseal(l.page(4)) }, []string{a, b, d}, false},
		{"used bytes over the page", func(l *testLog) { le.PutUint16(l.page(4)[lpUsed:], BodySize+1); reseal(l.page(4)) }, []string{a, b, d}, false},
		{"spare byte set", func(l *testLog) { l.page(4)[lpSpare] = 1; reseal(l.page(4)) }, []string{a, b, d}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := build(sampleLog)
			tc.edit(l)
			for chunk := 1; chunk <= 12; chunk++ {
				got, end := read(t, l.image, l.id, chunk)
				require.Equal(t, tc.want, got)
				assert.Equal(t, tc.clean, end.Err == nil, "%v", end.Err)
				assert.Equal(t, tc.clean, end.Damaged == 0)
			}
		})
	}
}

// Payload that a client made to look like a log page, everything right but the
// store's secret, is not taken for one.
func TestLogForgedPayload(t *testing.T) {
	t.Parallel()
	l := newTestLog(t, 3)
	l.records(1, 1)
	l.id.Secret = Secret{}
	l.records(2, 1)
	got, _ := read(t, l.image, sampleLog, 1)
	assert.Equal(t, []string{"1@0+1:1"}, got)
}

// Every single flipped bit of every page of an append discards that append, is
// reported, and changes nothing that comes out.
func TestLogBitFlips(t *testing.T) {
	t.Parallel()
	l := newTestLog(t, 4)
	l.records(1, 1)
	l.records(2, 5)
	l.records(10, 1)
	require.Equal(t, 4, l.pages)
	for k, want := range [][]string{{"2@1+2:5", "10@3+1:1"}, {"1@0+1:1", "10@3+1:1"}, {"1@0+1:1", "10@3+1:1"}, {"1@0+1:1", "2@1+2:5"}} {
		page := l.page(k)
		for bit := range 8 * PageSize {
			page[bit/8] ^= 1 << (bit % 8)
			r := NewLogReader(l.id)
			require.NoError(t, r.Feed(l.image))
			var got []string
			for {
				a, ok := r.Next()
				if !ok {
					break
				}
				got = append(got, fmt.Sprintf("%d@%d+%d:%d", a.Seq, a.First, a.Pages, map[uint64]int{1: 1, 2: 5, 10: 1}[a.Seq]))
			}
			if end := r.End(); fmt.Sprint(got) != fmt.Sprint(want) || skep.KindOf(end.Err) != skep.Damaged {
				t.Fatalf("bit %d of page %d: %v, want %v; %+v", bit, k, got, want, end)
			}
			page[bit/8] ^= 1 << (bit % 8)
		}
	}
}

func TestLogWriterLimits(t *testing.T) {
	t.Parallel()
	var w LogWriter
	assert.ErrorIs(t, w.Encode(nil, sampleLog, 0, 1), skep.Invalid, "empty")
	assert.ErrorIs(t, w.Purge(&Purge{SaltTag: sampleTag}), skep.Invalid)
	assert.ErrorIs(t, w.Namespace(&Namespace{}), skep.Invalid)
	rec := sampleRecord()
	b := rec.Append(nil)
	b[50]++
	assert.ErrorIs(t, w.RecordBytes(b), skep.Damaged)
	assert.Zero(t, w.Len())

	require.NoError(t, w.Record(&rec))
	assert.Equal(t, EntrySize(rec.Len()), w.Len())
	page := make([]byte, PageSize)
	assert.ErrorIs(t, w.Encode(page[:100], sampleLog, 0, 1), skep.Invalid)
	assert.ErrorIs(t, w.Encode(page, sampleLog, -1, 1), skep.Invalid)
	assert.ErrorIs(t, w.Encode(page, sampleLog, MaxSegmentPages, 1), skep.Invalid)

	big := plainRecord(1)
	big.Parts[0].Sums = make([]uint64, MaxGranules)
	var err error
	n := 0
	for ; err == nil; n++ {
		before := w.Len()
		if err = w.Record(&big); err != nil {
			assert.Equal(t, before, w.Len())
		}
	}
	assert.ErrorIs(t, err, skep.Invalid)
	assert.ErrorContains(t, err, "must be at most 4096")
	assert.LessOrEqual(t, w.Pages(), MaxAppendPages)
	assert.Greater(t, w.Pages(), MaxAppendPages-AppendPages(big.Len())-2)
	w.Reset()
	assert.Zero(t, w.Pages())
}

// Entries whose end meets a page's end, one byte less and one more.
func TestLogPageBorders(t *testing.T) {
	t.Parallel()
	for used := 2*BodySize - 3; used <= 2*BodySize+3; used++ {
		l := newTestLog(t, 5)
		r := plainRecord(1)
		l.append(1, func(w *LogWriter) {
			// One record of all but the last 300 bytes, and one that ends at used.
			r.Parts[0].Sums = make([]uint64, 2*BodySize/8-100)
			require.NoError(t, w.Record(&r))
			small := plainRecord(2)
			small.Parts[0].Sums = nil
			small.Name = []byte("x")
			small.Name = make([]byte, used-w.Len()-EntrySize(small.Len())+1)
			require.NoError(t, w.Record(&small))
			require.Equal(t, used, w.Len())
		})
		want := fmt.Sprintf("1@0+%d:2", (used+BodySize-1)/BodySize)
		got, end := read(t, l.image, l.id, 1)
		assert.Equal(t, []string{want}, got)
		assert.NoError(t, end.Err)
	}
}

func TestDecodeEntriesBadInput(t *testing.T) {
	t.Parallel()
	stone, purge, ns := sampleTombstone(), samplePurge(), sampleNamespace()
	tb, pb := stone.append(nil), purge.append(nil)
	nb, err := ns.append(nil)
	require.NoError(t, err)
	set := func(b []byte, i int, v byte) []byte {
		b = append([]byte(nil), b...)
		b[i] = v
		return b
	}
	for name, err := range map[string]error{
		"short tombstone":    second(DecodeTombstone(tb[:71])),
		"long tombstone":     second(DecodeTombstone(append(tb, 0))),
		"tombstone spare":    second(DecodeTombstone(set(tb, tsSpare, 1))),
		"short purge":        second(DecodePurge(pb[:39])),
		"purge flag":         second(DecodePurge(set(pb, pgSalted, 2))),
		"purge spare":        second(DecodePurge(set(pb, pgSpare, 1))),
		"unsalted with tag":  second(DecodePurge(set(pb, pgSalted, 0))),
		"short namespace":    second(DecodeNamespace(nb[:15])),
		"long namespace":     second(DecodeNamespace(make([]byte, MaxNamespaceSize+1))),
		"namespace spare":    second(DecodeNamespace(set(nb, nsSpare, 1))),
		"namespace cut":      second(DecodeNamespace(nb[:len(nb)-1])),
		"namespace trailing": second(DecodeNamespace(append(nb, ' '))),
		"unknown field":      second(DecodeNamespace(append(nb[:nsJSON:nsJSON], `{"x":1}`...))),
		"invalid namespace":  second(DecodeNamespace(append(nb[:nsJSON:nsJSON], `{}`...))),
	} {
		assert.ErrorIs(t, err, skep.Damaged, name)
	}
}

func second[T any](_ T, err error) error { return err }

// The reader holds at most about what it was fed, whatever that claims.
func TestLogReaderMemory(t *testing.T) {
	t.Parallel()
	l := newTestLog(t, 200)
	l.records(1, 450)
	require.Greater(t, l.pages, 150)
	r := NewLogReader(l.id)
	require.NoError(t, r.Feed(l.image))
	_, ok := r.Next()
	require.True(t, ok)
	assert.LessOrEqual(t, cap(r.pending.stream), 2*len(l.image))
}

// A random history of appends of which one page is lost: all but the append that it was of comes out, as written.
func TestLogRandomCrash(t *testing.T) {
	t.Parallel()
	seed := drawn.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 4))
	for range 200 {
		l := newTestLog(t, 120)
		var want []string
		ends := []int{}
		for seq := uint64(1); l.pages < 40; seq += 1 + rng.Uint64N(1000) {
			first, n := l.pages, 1+rng.IntN(20)
			l.append(seq, func(w *LogWriter) {
				for range n {
					r := randomRecord(rng)
					require.NoError(t, w.Record(&r))
				}
			})
			want = append(want, fmt.Sprintf("%d@%d+%d:%d", seq, first, l.pages-first, n))
			ends = append(ends, l.pages)
		}
		lost := rng.IntN(l.pages)
		page := l.page(lost)
		if rng.IntN(2) == 0 {
			clear(page)
		} else {
			clear(page[512*rng.IntN(8):])
		}
		whole := 0
		for whole < len(ends) && ends[whole] <= lost {
			whole++
		}
		got, end := read(t, l.image, l.id, 1+rng.IntN(10))
		require.Equal(t, append(append([]string(nil), want[:whole]...), want[whole+1:]...), append([]string(nil), got...))
		require.Equal(t, len(want)-1, end.Appends)
	}
}

func BenchmarkLogEncode(b *testing.B) {
	var w LogWriter
	for i := range 64 {
		r := plainRecord(i)
		require.NoError(b, w.Record(&r))
	}
	dst := make([]byte, w.Pages()*PageSize)
	b.SetBytes(int64(len(dst)))
	b.ReportAllocs()
	for b.Loop() {
		if err := w.Encode(dst, sampleLog, 0, 1); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLogRead(b *testing.B) {
	l := newTestLog(b, 64)
	for seq := uint64(1); l.pages < 48; seq++ {
		l.records(seq, 16)
	}
	b.SetBytes(int64(l.pages * PageSize))
	heads := 0
	for b.Loop() {
		r := NewLogReader(l.id)
		_ = r.Feed(l.image)
		for {
			a, ok := r.Next()
			if !ok {
				break
			}
			for e := range a.Entries() {
				if _, err := DecodeHead(e.Body); err != nil {
					b.Fatal(err)
				}
				heads++
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(heads), "ns/record")
}

// A program from before there were sealings refuses the append that has one by its format, and reads the rest.
// Pages that say another format than they should are damaged.
func TestSealingsHaveAFormatOfTheirOwn(t *testing.T) {
	t.Parallel()
	l := sealingLog(t)
	require.Equal(t, uint32(formatSealing), le.Uint32(l.page(0)[offFormat:]))
	require.Equal(t, uint32(FormatVersion), le.Uint32(l.page(1)[offFormat:]))
	for page, format := range []uint32{FormatVersion, formatSealing} {
		l := sealingLog(t)
		le.PutUint32(l.page(page)[offFormat:], format)
		sealPage(l.page(page), sampleLog.seed())
		got, end := read(t, l.image, l.id, 1)
		require.Len(t, got, 1)
		require.ErrorIs(t, end.Err, skep.Damaged)
	}
	var w LogWriter
	sealing, stone := sampleSealing(), sampleTombstone()
	require.NoError(t, w.Sealing(&sealing))
	again := LogWriter{}
	require.NoError(t, again.Add(w.Bytes()))
	w.Reset()
	require.NoError(t, w.Tombstone(&stone))
	for at, w := range []*LogWriter{&again, &w} {
		page := make([]byte, PageSize)
		require.NoError(t, w.Encode(page, sampleLog, 0, 1))
		require.Equal(t, uint32([]int{formatSealing, FormatVersion}[at]), le.Uint32(page[offFormat:]))
	}
	spare := make([]byte, slSize)
	spare[slKey-1] = 1
	for _, bad := range [][]byte{nil, make([]byte, slSize-1), make([]byte, slSize+1), spare} {
		_, err := DecodeSealing(bad)
		require.ErrorIs(t, err, skep.Damaged)
	}
}
