package segment

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/tools/drawn"
)

func TestRecordRoundTrip(t *testing.T) {
	t.Parallel()
	small := Record{Seq: 1, Parts: []RecordPart{{Name: "kv", Size: 3, Inline: []byte("abc")}}}
	for _, r := range []Record{sampleRecord(), sealedRecord(), plainRecord(5), small} {
		require.NoError(t, r.Validate())
		b := r.Append([]byte("before"))
		assert.Len(t, b, len("before")+r.Len())
		assert.Equal(t, "before", string(b[:6]))
		var got Record
		require.NoError(t, DecodeRecord(b[6:], &got))
		assert.EqualExportedValues(t, r.normal(), got.normal())

		h, err := DecodeHead(b[6:])
		require.NoError(t, err)
		assertHead(t, r, h)
	}
}

// normal makes empty slices nil, which encode the same. Empty inline parts stay.
func (r Record) normal() Record {
	if len(r.Name) == 0 {
		r.Name = nil
	}
	if len(r.Copies) == 0 {
		r.Copies = nil
	}
	r.Parts = append([]RecordPart(nil), r.Parts...)
	for i := range r.Parts {
		if len(r.Parts[i].Sums) == 0 {
			r.Parts[i].Sums = nil
		}
		if len(r.Parts[i].Seal) == 0 {
			r.Parts[i].Seal = nil
		}
	}
	return r
}

func assertHead(t *testing.T, r Record, h Head) {
	t.Helper()
	want := Head{
		Seq: r.Seq, Instance: r.Instance, NamespaceID: r.NamespaceID, SaltTag: r.SaltTag, Key: r.Key, HasParent: r.Parent != nil, Sealed: r.Sealed != nil,
		Flags: r.Flags, Copies: uint8(len(r.Copies)), Parts: uint8(len(r.Parts)), Depth: r.Depth, ValidTokens: r.ValidTokens,
		Version: r.Version, Pages: r.Pages, Bytes: r.Bytes(),
	}
	if r.Parent != nil {
		want.Parent = *r.Parent
	}
	if len(r.Copies) > 0 {
		want.Place = r.Copies[0]
	}
	assert.Equal(t, want, h)
}

// One Record is decoded into again and again; nothing of an earlier one stays, and
// nothing of the input is kept.
func TestRecordReuse(t *testing.T) {
	t.Parallel()
	seed := drawn.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	var got Record
	for range 500 {
		r := randomRecord(rng)
		require.NoError(t, r.Validate())
		b := r.Append(nil)
		require.Len(t, b, r.Len())
		require.NoError(t, DecodeRecord(b, &got))
		again := got.Append(nil)
		require.Equal(t, b, again)
		clear(b)
		require.Equal(t, again, got.Append(nil))
		h, err := DecodeHead(again)
		require.NoError(t, err)
		assertHead(t, r, h)
	}
}

func TestRecordLimits(t *testing.T) {
	t.Parallel()
	zero := skep.Key{}
	for _, c := range []struct {
		text string
		edit func(*Record)
	}{
		{"depth is 0", func(r *Record) { r.Depth = 0 }},
		{"depth is 17", func(r *Record) { r.Parent = nil }},
		{"depth is 16777216", func(r *Record) { r.Depth = skep.MaxDepth + 1 }},
		{"valid tokens is 65537", func(r *Record) { r.ValidTokens = skep.MaxBlockTokens + 1 }},
		{"flags is 128", func(r *Record) { r.Flags = 128 }},
		{"name length in bytes is 2049", func(r *Record) { r.Name = make([]byte, 2049) }},
		{"parts is 0", func(r *Record) { r.Parts = nil }},
		{"parts is 17", func(r *Record) { r.Parts = make([]RecordPart, 17) }},
		{"part name length in bytes is 0", func(r *Record) { r.Parts[0].Name = "" }},
		{"part name length in bytes is 65", func(r *Record) { r.Parts[0].Name = strings.Repeat("n", 65) }},
		{"part state is named twice", func(r *Record) { r.Parts[0].Name = "state" }},
		{"size of part kv is -1", func(r *Record) { r.Parts[0].Size = -1 }},
		{"size of part kv is 536870913", func(r *Record) { r.Parts[0].Size = skep.MaxPartBytes + 1 }},
		{"block size in bytes", func(r *Record) { r.Parts[0].Size = skep.MaxPartBytes }},
		{"inline bytes of part state is 4", func(r *Record) { r.Parts[1].Inline = make([]byte, 4) }},
		{"inline bytes of part state is 3585", func(r *Record) { r.Parts[1].Inline, r.Parts[1].Size = make([]byte, 3585), 3585 }},
		{"seal of part kv in bytes is 0", func(r *Record) { r.Sealed = &Seal{} }},
		{"seal of part kv in bytes is 112", func(r *Record) { r.Parts[0].Seal = make([]byte, SealSize(4)) }},
		{"granule checksums is 65542", func(r *Record) {
			*r = sealedRecord()
			r.Parts[0].Sums = make([]uint64, MaxSealedGranules+4)
			r.Parts[0].Seal = make([]byte, SealSize(MaxSealedGranules+4))
		}},
		{"granule checksums is 262150", func(r *Record) { r.Parts[0].Sums = make([]uint64, MaxGranules+4) }},
		{"copies is 0", func(r *Record) { r.Copies = nil }},
		{"copies is 5", func(r *Record) { r.Copies = make([]layout.Location, 5) }},
		{"copies is 2", func(r *Record) { r.Parts = r.Parts[1:3] }},
		{"pages is 0", func(r *Record) { r.Pages = 0 }},
		{"7:0@", func(r *Record) { r.Copies[0].Page = 0 }},
		{"7:1048576@", func(r *Record) { r.Copies[0].Page = MaxSegmentPages }},
		{"@64", func(r *Record) { r.Copies[0].Device = 64 }},
		{"+4096", func(r *Record) { r.Copies[0].Sub = 8 }},
		{"must be named once", func(r *Record) { r.Copies[1] = r.Copies[0] }},
	} {
		t.Run(c.text, func(t *testing.T) {
			r := sampleRecord()
			c.edit(&r)
			err := r.Validate()
			assert.ErrorIs(t, err, skep.Invalid)
			assert.ErrorContains(t, err, c.text)
			var w LogWriter
			assert.ErrorIs(t, w.Record(&r), skep.Invalid)
			assert.Zero(t, w.Len())
			// The same said by stored bytes is damage.
			assert.ErrorIs(t, DecodeRecord(r.Append(nil), new(Record)), skep.Damaged)
		})
	}
	r := sampleRecord()
	r.Parent, r.Replaces = &zero, &zero // a key of zeros is a key
	var got Record
	require.NoError(t, DecodeRecord(r.Append(nil), &got))
	assert.Equal(t, zero, *got.Parent)
	assert.Equal(t, zero, *got.Replaces)
}

func TestLargestRecordFits(t *testing.T) {
	t.Parallel()
	r := sampleRecord()
	r.Name = make([]byte, skep.MaxBlockNameSize)
	r.Copies = []layout.Location{{Page: 1}, {Page: 2}, {Page: 3}, {Page: 4}}
	r.Parts = nil
	for i := range skep.MaxParts {
		name := strings.Repeat(string(rune('a'+i)), skep.MaxPartNameSize)
		r.Parts = append(r.Parts, RecordPart{Name: name, Size: MaxInlineSize, Inline: make([]byte, MaxInlineSize)})
	}
	r.Parts[0].Inline, r.Parts[0].Sums = nil, make([]uint64, MaxGranules)
	for range 2 {
		require.NoError(t, r.Validate())
		b := r.Append(nil)
		assert.LessOrEqual(t, len(b), MaxRecordSize)
		require.NoError(t, DecodeRecord(b, new(Record)))
		var w LogWriter
		require.NoError(t, w.Record(&r))
		assert.LessOrEqual(t, w.Pages(), MaxAppendPages)
		r.Sealed, r.Parts[0].Sums = &Seal{}, make([]uint64, MaxSealedGranules)
		for i := range r.Parts {
			r.Parts[i].Seal = make([]byte, SealSize(len(r.Parts[i].Sums)))
		}
	}
}

func TestRecordBitFlips(t *testing.T) {
	t.Parallel()
	r := sampleRecord()
	b := r.Append(nil)
	for bit := range 8 * len(b) {
		b[bit/8] ^= 1 << (bit % 8)
		_, err := DecodeHead(b)
		require.ErrorIs(t, err, skep.Damaged, "bit %d", bit)
		require.ErrorIs(t, DecodeRecord(b, new(Record)), skep.Damaged, "bit %d", bit)
		b[bit/8] ^= 1 << (bit % 8)
	}
	for n := range len(b) {
		require.ErrorIs(t, DecodeRecord(b[:n], new(Record)), skep.Damaged, "cut to %d", n)
	}
	require.ErrorIs(t, DecodeRecord(append(b, 0), new(Record)), skep.Damaged)
}

// A forger who gets the checksum right still meets the other checks, byte by byte.
func TestRecordForgedBytes(t *testing.T) {
	t.Parallel()
	seed := drawn.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 2))
	r := sampleRecord()
	good := r.Append(nil)
	accepted := 0
	for i := range good[:len(good)-checksumSize] {
		for range 8 {
			b := append([]byte(nil), good...)
			b[i] = byte(rng.Uint32())
			resealRecord(b)
			var got Record
			if err := DecodeRecord(b, &got); err != nil {
				require.ErrorIs(t, err, skep.Damaged)
				continue
			}
			accepted++
			require.NoError(t, got.Validate())
			require.Equal(t, b, got.Append(nil), "byte %d", i)
		}
	}
	assert.NotZero(t, accepted)
}

// Encodings that say the same in another way, or carry bytes nothing reads, are damage.
func TestRecordOneEncoding(t *testing.T) {
	t.Parallel()
	rooted := sampleRecord()
	rooted.Parent, rooted.Depth = nil, 0
	inline := Record{Seq: 1, Parts: []RecordPart{{Name: "kv", Size: 3, Inline: []byte("abc")}}}
	for name, c := range map[string]struct {
		of   Record
		edit func(b []byte) []byte
	}{
		"byte after the parts":     {sampleRecord(), func(b []byte) []byte { return append(b, 0) }},
		"parent without its flag":  {rooted, func(b []byte) []byte { b[recParent] = 1; return b }},
		"place without copies":     {inline, func(b []byte) []byte { b[recPlace+placePage] = 1; return b }},
		"spare of the first place": {sampleRecord(), func(b []byte) []byte { b[recPlace+placeSpare] = 1; return b }},
		"spare of the next place":  {sampleRecord(), func(b []byte) []byte { b[recTail+placeSpare] = 1; return b }},
		"spare of the head":        {sampleRecord(), func(b []byte) []byte { b[recSpare] = 1; return b }},
		"spare of a part":          {inline, func(b []byte) []byte { b[recTail+partSpare] = 1; return b }},
		"flag of a part":           {inline, func(b []byte) []byte { b[recTail+partInline] = 2; return b }},
	} {
		b := c.of.Append(nil)
		require.NoError(t, DecodeRecord(b, new(Record)))
		b = c.edit(b)
		le.PutUint32(b, uint32(len(b)))
		resealRecord(b)
		assert.ErrorIs(t, DecodeRecord(b, new(Record)), skep.Damaged, name)
	}
}

func resealRecord(b []byte) {
	if len(b) >= checksumSize {
		le.PutUint64(b[len(b)-checksumSize:], xxh3.Hash(b[:len(b)-checksumSize]))
	}
}

// Alone: allocations of the whole process are counted.
func TestRecordAllocations(t *testing.T) {
	r := plainRecord(1)
	b := r.Append(nil)
	buf := make([]byte, 0, len(b))
	var got Record
	assert.Zero(t, testing.AllocsPerRun(100, func() { _, _ = DecodeHead(b) }), "head")
	assert.Zero(t, testing.AllocsPerRun(100, func() { buf = r.Append(buf[:0]) }), "append")
	assert.LessOrEqual(t, testing.AllocsPerRun(100, func() { _ = DecodeRecord(b, &got) }), 1.0, "decode: the parent's key only")
}

func BenchmarkDecodeHead(b *testing.B) {
	r := plainRecord(1)
	enc := r.Append(nil)
	for b.Loop() {
		if _, err := DecodeHead(enc); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(enc)), "record-bytes")
}

func BenchmarkPeekHead(b *testing.B) {
	r := plainRecord(1)
	enc := r.Append(nil)
	for b.Loop() {
		if _, err := PeekHead(enc); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeRecord(b *testing.B) {
	r := plainRecord(1)
	enc := r.Append(nil)
	var into Record
	b.ReportAllocs()
	for b.Loop() {
		if err := DecodeRecord(enc, &into); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppend(b *testing.B) {
	r := plainRecord(1)
	buf := make([]byte, 0, r.Len())
	b.ReportAllocs()
	for b.Loop() {
		buf = r.Append(buf[:0])
	}
}
