package segment

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// Format 1 is what the files in v1 say. Once it was released a change that fails here needs
// a new format and a new folder, not a rewrite.
var rewrite = flag.Bool("rewrite", false, "write the golden images instead of comparing with them")

func TestGolden(t *testing.T) {
	t.Parallel()
	rec, stone, purge, ns := sampleRecord(), sampleTombstone(), samplePurge(), sampleNamespace()
	l := newTestLog(t, 3)
	l.append(1<<33+1, func(w *LogWriter) {
		require.NoError(t, w.Namespace(&ns))
		require.NoError(t, w.Record(&rec))
		require.NoError(t, w.Tombstone(&stone))
		require.NoError(t, w.Purge(&purge))
	})
	l.append(1<<33+9, func(w *LogWriter) { // an entry across two pages
		for i := range 3 {
			r := plainRecord(i)
			require.NoError(t, w.Record(&r))
		}
	})
	require.Equal(t, 3, l.pages)
	freed, exact := sampleHeader(), sampleTombstone()
	freed.Flags, exact.Exact = HeaderFreed, true
	mark := Mark{Flushed: 1<<33 + 7}
	sealing, sealings := sampleSealing(), sealingLog(t)
	sealed := sealedRecord()
	nsBody, err := ns.append(nil)
	require.NoError(t, err)
	var sums []byte
	for i, data := range []string{"", "a", "0123456789abcdef0", strings.Repeat("granule ", 1000)} {
		sums = le.AppendUint64(sums, GranuleSum(9, sampleTag, rec.Key, "kv", i, 4, []byte(data)))
	}

	for _, c := range []struct {
		name  string
		bytes []byte
		read  func(t *testing.T, b []byte)
	}{
		{"superblock", superblockPage(t, sampleSuperblock()), func(t *testing.T, b []byte) {
			s, err := DecodeSuperblock(b)
			require.NoError(t, err)
			assert.Equal(t, sampleSuperblock(), s)
		}},
		{"header", headerPage(t, sampleHeader()), func(t *testing.T, b []byte) {
			h, err := DecodeHeader(b)
			require.NoError(t, err)
			assert.Equal(t, sampleHeader(), h)
		}},
		{"record", rec.Append(nil), func(t *testing.T, b []byte) {
			var got Record
			require.NoError(t, DecodeRecord(b, &got))
			assert.EqualExportedValues(t, rec.normal(), got.normal())
		}},
		{"sealed", sealed.Append(nil), func(t *testing.T, b []byte) {
			var got Record
			require.NoError(t, DecodeRecord(b, &got))
			assert.EqualExportedValues(t, sealed.normal(), got.normal())
		}},
		{"tombstone", stone.append(nil), func(t *testing.T, b []byte) {
			got, err := DecodeTombstone(b)
			require.NoError(t, err)
			assert.Equal(t, stone, got)
		}},
		{"purge", purge.append(nil), func(t *testing.T, b []byte) {
			got, err := DecodePurge(b)
			require.NoError(t, err)
			assert.Equal(t, purge, got)
		}},
		{"namespace", nsBody, func(t *testing.T, b []byte) {
			got, err := DecodeNamespace(b)
			require.NoError(t, err)
			assert.Equal(t, ns, got)
		}},
		{"log", l.image, func(t *testing.T, b []byte) {
			got, end := read(t, b, sampleLog, 1)
			assert.Equal(t, []string{"8589934593@0+1:4", "8589934601@1+2:3"}, got)
			assert.NoError(t, end.Err)
		}},
		{"sums", sums, func(*testing.T, []byte) {}},
		{"freed", headerPage(t, freed), func(t *testing.T, b []byte) {
			h, err := DecodeHeader(b)
			require.NoError(t, err)
			assert.Equal(t, freed, h)
		}},
		{"exact", exact.append(nil), func(t *testing.T, b []byte) {
			got, err := DecodeTombstone(b)
			require.NoError(t, err)
			assert.Equal(t, exact, got)
		}},
		{"mark", mark.append(nil), func(t *testing.T, b []byte) {
			got, err := DecodeMark(b)
			require.NoError(t, err)
			assert.Equal(t, mark, got)
		}},
		{"sealing", sealing.append(nil), func(t *testing.T, b []byte) {
			got, err := DecodeSealing(b)
			require.NoError(t, err)
			assert.Equal(t, sealing, got)
		}},
		{"log-sealing", sealings.image, func(t *testing.T, b []byte) {
			got, end := read(t, b, sampleLog, 1)
			assert.Equal(t, []string{"8589934601@0+1:2", "8589934602@1+1:1"}, got)
			assert.NoError(t, end.Err)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join("testdata", "v1", c.name+".hex")
			if *rewrite {
				require.NoError(t, os.WriteFile(path, []byte(dump(c.bytes)), 0o644))
			}
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			golden, err := undump(string(text))
			require.NoError(t, err)
			assert.Equal(t, string(text), dump(c.bytes), "encodes otherwise than format 1 does")
			c.read(t, golden)
		})
	}
}

// Superblocks as builds from before the first release wrote them, whose formats were numbered 1
// to 4, are told from those of format 1 and refused, and so are their numbers with today's bytes.
func TestUnreleasedFormats(t *testing.T) {
	t.Parallel()
	for _, n := range []uint32{1, 4} {
		text, err := os.ReadFile(filepath.Join("testdata", "unreleased", fmt.Sprintf("superblock-%d.hex", n)))
		require.NoError(t, err)
		page, err := undump(string(text))
		require.NoError(t, err)
		want := fmt.Sprintf("superblock: other format: format is %d of a build from before the first release, must be 1, "+
			"the one that this program reads: use the skep that wrote the store, or make the store anew", n)
		_, err = DecodeSuperblock(page)
		assert.Equal(t, skep.Version, skep.KindOf(err))
		assert.ErrorContains(t, err, want)
		for _, other := range [][]byte{page, superblockPage(t, sampleSuperblock()), make([]byte, PageSize)} {
			_, _, err = ChooseSuperblock(other, page)
			assert.ErrorContains(t, err, want)
		}
		page[200] ^= 1
		_, err = DecodeSuperblock(page)
		assert.Equal(t, skep.Damaged, skep.KindOf(err))
	}
	for _, n := range []uint32{0, 2, 3, 4, 1 << 31} {
		page := superblockPage(t, sampleSuperblock())
		le.PutUint32(page[offFormat:], n)
		sealPage(page, 0)
		_, err := DecodeSuperblock(page)
		assert.Equal(t, skep.Version, skep.KindOf(err))
		assert.ErrorContains(t, err, fmt.Sprintf("format is %d, must be 1,", n))
	}
	header := headerPage(t, sampleHeader())
	copy(header, "skep/seg")
	sealPage(header, 0)
	_, err := DecodeHeader(header)
	assert.Equal(t, skep.Foreign, skep.KindOf(err), "what a device held before is nothing of a store's")
}

// dump writes b as lines of an offset and 32 bytes, leaves out lines of zeros, and
// ends with the length.
func dump(b []byte) string {
	var out strings.Builder
	for at := 0; at < len(b); at += 32 {
		if line := b[at:min(at+32, len(b))]; !Blank(line) {
			fmt.Fprintf(&out, "%06x %x\n", at, line)
		}
	}
	fmt.Fprintf(&out, "%06x\n", len(b))
	return out.String()
}

func undump(text string) ([]byte, error) {
	var b []byte
	for line := range strings.Lines(text) {
		var at int
		var digits string
		if n, err := fmt.Sscanf(line, "%x %s", &at, &digits); n < 1 {
			return nil, fmt.Errorf("line %q: %w", line, err)
		}
		raw, err := hex.DecodeString(digits)
		if err != nil || at < len(b) {
			return nil, fmt.Errorf("line %q: %w", line, err)
		}
		b = append(append(b, make([]byte, at-len(b))...), raw...)
	}
	return b, nil
}

func TestDump(t *testing.T) {
	t.Parallel()
	b := bytes.Repeat([]byte{0}, 200)
	b[0], b[130] = 1, 2
	got, err := undump(dump(b))
	require.NoError(t, err)
	assert.Equal(t, b, got)
}
