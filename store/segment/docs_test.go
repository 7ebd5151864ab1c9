package segment

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type field struct {
	name string
	at   int
}

// The fields of each structure in order; each ends where the next begins. The page
// of an encoded structure is docs/reference/format.md's table of the same name.
var formatFields = map[string][]field{
	"Superblock": {
		{"magic", offMagic}, {"format", offFormat}, {"spare", sbSpare0}, {"sequence", sbSequence}, {"store id", sbStore}, {"device id", sbDevice},
		{"hash secret", sbSecret}, {"device bytes", sbDeviceBytes}, {"segment bytes", sbSegmentBytes}, {"first segment", sbFirstSegment},
		{"created", sbCreated}, {"device index", sbDeviceIndex}, {"device count", sbDeviceCount}, {"serial length", sbSerialSize}, {"made count", sbMadeCount},
		{"serial", sbSerial}, {"capacity", sbCapacity}, {"given up count", sbGivenUpCount},
		{"given up", sbGivenUp}, {"spare", sbSpare2}, {"checksum", offChecksum}, {"", PageSize},
	},
	"Owner": {
		{"magic", offMagic}, {"format", offFormat}, {"spare", sbSpare0}, {"store id", owStore}, {"device id", owDevice}, {"owner", owOwner},
		{"path length", owPathSize}, {"path", owPath}, {"spare", owSpare}, {"checksum", offChecksum}, {"", PageSize},
	},
	"Segment header": {
		{"magic", offMagic}, {"format", offFormat}, {"flags", shFlags}, {"store id", shStore}, {"device id", shDevice}, {"generation", shGeneration},
		{"sequence", shSeq}, {"segment bytes", shSegmentBytes}, {"group", shGroup}, {"segment", shSegment}, {"position", shPosition}, {"devices", shCount},
		{"copies", shCopies}, {"spare", shSpare1}, {"device list", shDevices}, {"spare", shSpare2}, {"checksum", offChecksum}, {"", PageSize},
	},
	"Device list slot": {{"device index", slotDevice}, {"spare", slotSpare}, {"segment", slotSegment}, {"", slotSize}},
	"Log page": {
		{"magic", offMagic}, {"format", offFormat}, {"group", lpGroup}, {"store id", lpStore}, {"generation", lpGeneration}, {"sequence", lpSeq},
		{"index", lpIndex}, {"ordinal", lpOrdinal}, {"count", lpCount}, {"position", lpPosition}, {"used", lpUsed}, {"spare", lpSpare},
		{"body", lpBody}, {"checksum", offChecksum}, {"", PageSize},
	},
	"Record": {
		{"length", recSize}, {"flags", recFlags}, {"has", recHas}, {"copies", recCopies}, {"parts", recParts}, {"sequence", recSeq},
		{"instance", recInstance}, {"namespace id", recNamespace}, {"salt tag", recSaltTag}, {"key", recKey}, {"parent", recParent}, {"depth", recDepth},
		{"valid tokens", recValidTokens}, {"write version", recVersion}, {"pages", recPages}, {"bytes", recBytes}, {"place", recPlace},
		{"name length", recNameSize}, {"spare", recSpare}, {"", recTail},
	},
	"Place":            {{"group", placeGroup}, {"page", placePage}, {"device", placeDevice}, {"sub", placeSub}, {"spare", placeSpare}, {"", placeSize}},
	"Part":             {{"name length", partNameSize}, {"inline", partInline}, {"spare", partSpare}, {"checksums", partSums}, {"bytes", partBytes}, {"", partHead}},
	"Tombstone":        {{"sequence", tsSeq}, {"covers", tsCovers}, {"instance", tsInstance}, {"exact", tsExact}, {"spare", tsSpare}, {"salt tag", tsSaltTag}, {"key", tsKey}, {"", tsSize}},
	"Purge":            {{"sequence", pgSeq}, {"covers", pgCovers}, {"instance", pgInstance}, {"salted", pgSalted}, {"spare", pgSpare}, {"salt tag", pgSaltTag}, {"", pgSize}},
	"Namespace":        {{"sequence", nsSeq}, {"instance", nsInstance}, {"spare", nsSpare}, {"", nsJSON}},
	"Sealing":          {{"instance", slInstance}, {"spare", slSpare}, {"key id", slKey}, {"", slSize}},
	"Mark":             {{"flushed", 0}, {"", MarkSize}},
	"Format limits":    nil, // compared by TestDocsLimits
	"Numbers":          nil, // in words
	"Root row":         nil, // compared by package catalog's TestDocsRootRow
	"Side root key":    nil, // and TestDocsSideRows
	"Side piece key":   nil,
	"Side row limits":  nil,
	"Granule identity": {{"instance", 0}, {"write version", 4}, {"salt tag", 8}, {"key", 24}, {"", 56}},
	"Log seed":         {{"hash secret", 0}, {"store id", 16}, {"group", 32}, {"generation", 36}, {"position", 44}, {"", 46}},
}

var limits = map[string]int{
	"FormatVersion": FormatVersion, "PageSize": PageSize, "ReservedBytes": ReservedBytes, "MaxSerialSize": MaxSerialSize, "MaxGroupDevices": MaxGroupDevices,
	"MaxGivenUp":      MaxGivenUp,
	"MinSegmentPages": MinSegmentPages, "MaxSegmentPages": MaxSegmentPages, "SubsPerPage": SubsPerPage, "MaxInlineSize": MaxInlineSize,
	"MaxGranules": MaxGranules, "MaxSealedGranules": MaxSealedGranules, "KeyIDSize": KeyIDSize, "NonceSize": NonceSize, "TagSize": TagSize,
	"MaxRecordSize": MaxRecordSize, "MaxAppendPages": MaxAppendPages, "MaxNamespaceSize": MaxNamespaceSize, "BodySize": BodySize,
}

// docs/reference/format.md says what the code does: every table row's offset, size and name.
func TestDocsOffsets(t *testing.T) {
	t.Parallel()
	tables := docTables(t)
	for name, fields := range formatFields {
		rows := tables[name]
		if fields == nil {
			continue
		}
		var want [][3]string
		for i, f := range fields[:len(fields)-1] {
			require.Less(t, f.at, fields[i+1].at, "%s: %s", name, f.name)
			want = append(want, [3]string{strconv.Itoa(f.at), strconv.Itoa(fields[i+1].at - f.at), f.name})
		}
		end := strconv.Itoa(fields[len(fields)-1].at)
		var got [][3]string
		for _, r := range rows {
			if _, err := strconv.Atoi(r[1]); err == nil && r[0] != "end-8" {
				got = append(got, [3]string{r[0], r[1], r[2]})
			} else if _, err := strconv.Atoi(r[0]); err == nil { // of variable size, after the fixed ones
				assert.Equal(t, end, r[0], "%s: %s", name, r[2])
			}
		}
		assert.Equal(t, want, got, name)
	}
	for name, magic := range map[string]string{"Superblock": magicSuperblock, "Owner": magicOwner, "Segment header": magicHeader, "Log page": magicLog} {
		assert.Contains(t, tables[name], []string{"0", "8", "magic", "`" + magic + "`"}, name)
		assert.Contains(t, tables[name], []string{"8", "4", "format", strconv.Itoa(FormatVersion)}, name)
	}
	delete(tables, "Every page") // in words
	for name := range tables {
		assert.Contains(t, formatFields, name, "a table in the page that nothing checks")
	}
}

func TestDocsLimits(t *testing.T) {
	t.Parallel()
	got := map[string]int{}
	for _, r := range docTables(t)["Format limits"] {
		n, err := strconv.Atoi(r[1])
		require.NoError(t, err, r[0])
		got[r[0]] = n
	}
	assert.Equal(t, limits, got)
}

// docTables gives the rows of each table of docs/reference/format.md under its nearest heading,
// without the two rows of the table's head.
func docTables(t *testing.T) map[string][][]string {
	text, err := os.ReadFile("../../docs/reference/format.md")
	require.NoError(t, err)
	heading := regexp.MustCompile(`^#+ (.*)$`)
	tables, name, skip := map[string][][]string{}, "", 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if m := heading.FindStringSubmatch(line); m != nil {
			name, skip = m[1], 2
		}
		if !strings.HasPrefix(line, "|") {
			continue
		}
		if skip > 0 {
			skip--
			continue
		}
		var cells []string
		for _, c := range strings.Split(strings.Trim(line, "|"), "|") {
			cells = append(cells, strings.TrimSpace(c))
		}
		tables[name] = append(tables[name], cells)
	}
	return tables
}
