package segment

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each fuzz test takes bytes as they are and once more with the checksum made right,
// so that the fuzzer is not stopped by it. What decodes must be valid and re-encode
// to the same bytes.

func FuzzRecord(f *testing.F) {
	r, small := sampleRecord(), Record{Seq: 1, Parts: []RecordPart{{Name: "kv", Size: 3, Inline: []byte("abc")}}}
	f.Add(r.Append(nil))
	f.Add(small.Append(nil))
	sealed := sealedRecord()
	f.Add(sealed.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > MaxRecordSize+1 {
			return
		}
		b = bytes.Clone(b)
		check := func() {
			var r Record
			h, headErr := DecodeHead(b)
			err := DecodeRecord(b, &r)
			if err != nil {
				return
			}
			require.NoError(t, headErr)
			require.NoError(t, r.Validate())
			assertHead(t, r, h)
			require.Equal(t, b, r.Append(nil))
		}
		check()
		if len(b) >= 4 {
			le.PutUint32(b, uint32(len(b)))
		}
		resealRecord(b)
		check()
	})
}

func FuzzSuperblock(f *testing.F) {
	f.Add(superblockPage(f, sampleSuperblock()))
	f.Fuzz(func(t *testing.T, b []byte) {
		check := func(page []byte) {
			if s, err := DecodeSuperblock(page); err == nil {
				require.Equal(t, page, superblockPage(t, s))
			}
			_, _, _ = ChooseSuperblock(page, b)
		}
		check(b)
		page := make([]byte, PageSize)
		copy(page, b)
		sealPage(page, 0)
		check(page)
	})
}

func FuzzSegmentHeader(f *testing.F) {
	f.Add(headerPage(f, sampleHeader()))
	f.Fuzz(func(t *testing.T, b []byte) {
		check := func(page []byte) {
			if h, err := DecodeHeader(page); err == nil {
				require.Equal(t, page, headerPage(t, h))
			}
		}
		check(b)
		page := make([]byte, PageSize)
		copy(page, b)
		sealPage(page, 0)
		check(page)
	})
}

func FuzzLogPages(f *testing.F) {
	l := newTestLog(f, 5)
	l.records(1, 1)
	l.records(2, 8)
	f.Add(l.image, uint8(0))
	f.Add(l.image, uint8(7))
	sealing := sealingLog(f)
	f.Add(sealing.image, uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, mode uint8) {
		image := bytes.Clone(b[:len(b)/PageSize*PageSize])
		chunk := 1 + int(mode>>2&3)
		if mode&2 != 0 {
			for at := 0; at < len(image); at += PageSize {
				sealPage(image[at:at+PageSize], sampleLog.seed())
			}
		}
		r := NewLogReader(sampleLog)
		seq, pages, rest := uint64(0), 0, image
		for appends := 0; ; {
			a, ok := r.Next()
			if !ok && len(rest) > 0 {
				n := max(0, len(rest)-chunk*PageSize)
				require.NoError(t, r.Feed(rest[n:]))
				rest = rest[:n]
				continue
			}
			if !ok {
				break
			}
			require.True(t, appends == 0 || a.Seq > seq)
			require.GreaterOrEqual(t, a.First, pages)
			appends, seq, pages = appends+1, a.Seq, a.First+a.Pages
			require.LessOrEqual(t, pages*PageSize, len(image))
			total := 0
			for e := range a.Entries() {
				total += EntrySize(len(e.Body))
				decodeAny(t, e)
			}
			require.Equal(t, AppendPages(total), a.Pages, "entries fill the append")
			require.Equal(t, appends, r.End().Appends)
		}
		assert.LessOrEqual(t, cap(r.pending.stream), 2*len(image)+PageSize)
	})
}

// decodeAny decodes an entry; what decodes re-encodes to the same bytes.
func decodeAny(t *testing.T, e Entry) {
	switch e.Kind {
	case KindBlock:
		var r Record
		if DecodeRecord(e.Body, &r) == nil {
			require.Equal(t, e.Body, r.Append(nil))
		}
	case KindTombstone:
		if v, err := DecodeTombstone(e.Body); err == nil {
			require.Equal(t, e.Body, v.append(nil))
		}
	case KindPurge:
		if v, err := DecodePurge(e.Body); err == nil {
			require.Equal(t, e.Body, v.append(nil))
		}
	case KindMark:
		if v, err := DecodeMark(e.Body); err == nil {
			require.Equal(t, e.Body, v.append(nil))
		}
	case KindSealing:
		if v, err := DecodeSealing(e.Body); err == nil {
			require.Equal(t, e.Body, v.append(nil))
		}
	case KindNamespace:
		_, _ = DecodeNamespace(e.Body) // JSON says one thing in many ways
	default:
		t.Fatalf("kind %d came out", e.Kind)
	}
}
