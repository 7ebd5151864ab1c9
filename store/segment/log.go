package segment

import (
	"encoding/binary"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep"
)

// Log page. Part of the format and should not be changed; drawn in docs/reference/format.md.
const (
	lpGroup      = 12 // uint32
	lpStore      = 16 // 16 bytes
	lpGeneration = 32 // uint64
	lpSeq        = 40 // uint64, of the append
	lpIndex      = 48 // uint32, of the page in the log
	lpOrdinal    = 52 // uint16, of the page in its append
	lpCount      = 54 // uint16, pages of the append
	lpPosition   = 56 // uint16, of the device in the group's list
	lpUsed       = 58 // uint16, bytes of the body in use
	lpSpare      = 60 // 4 bytes, zero
	lpBody       = 64 // BodySize bytes, zero after the used ones

	// BodySize is how much of an append's byte stream a log page holds.
	BodySize = offChecksum - lpBody
)

// LogID is the identity of one segment's log in one generation. Each of its pages
// carries it, but for the secret, which only seeds their checksums.
type LogID struct {
	Store      StoreID
	Secret     Secret
	Group      uint32
	Generation uint64
	Position   uint16 // of the device in the group's list
}

// seed is what the checksum of a page with this identity starts from.
func (id *LogID) seed() uint64 {
	var buf [16 + 16 + 4 + 8 + 2]byte
	b := append(buf[:0], id.Secret[:]...)
	b = append(b, id.Store[:]...)
	b = le.AppendUint32(b, id.Group)
	b = le.AppendUint64(b, id.Generation)
	b = le.AppendUint16(b, id.Position)
	return xxh3.Hash(b)
}

// AppendOffset is where in a segment of segmentBytes an append of pages log pages
// lies whose first has index first, in bytes from the segment's start. The log grows
// down: that is where the append's last page lies. Page k alone is at
// AppendOffset(segmentBytes, k, 1).
func AppendOffset(segmentBytes int64, first, pages int) int64 {
	return segmentBytes - int64(first+pages)*PageSize
}

// EntrySize is what an entry with a body of n bytes takes of an append's byte stream.
func EntrySize(n int) int {
	var b [binary.MaxVarintLen64]byte
	return 1 + binary.PutUvarint(b[:], uint64(n)) + n
}

// AppendPages is how many log pages an append of n bytes of entries takes.
func AppendPages(n int) int { return (n + BodySize - 1) / BodySize }

// LogWriter gathers the entries of one append and encodes them into log pages. The
// same entries may be encoded several times: a block's record goes to the log of
// each segment that holds a copy. The zero LogWriter is empty and ready; it is not
// for concurrent use.
type LogWriter struct {
	stream []byte // kind, uvarint length, body; and again
	format uint32 // of its pages; 0: FormatVersion
}

// Reset drops the entries and keeps the memory.
func (w *LogWriter) Reset() { w.stream, w.format = w.stream[:0], 0 }

// Len is the length of the entries so far, in bytes.
func (w *LogWriter) Len() int { return len(w.stream) }

// Pages is how many log pages the entries so far take.
func (w *LogWriter) Pages() int { return AppendPages(len(w.stream)) }

// Record adds a block's record. Invalid, and nothing is added, when it is outside
// its limits or the append would pass MaxAppendPages.
func (w *LogWriter) Record(r *Record) error {
	if err := r.Validate(); err != nil {
		return err
	}
	n := r.Len()
	if err := w.begin(KindBlock, n); err != nil {
		return err
	}
	w.stream = r.Append(w.stream)
	return nil
}

// RecordBytes adds a record encoded before, as the catalog keeps it; b is copied.
// Damaged, and nothing is added, when its checksum is wrong.
func (w *LogWriter) RecordBytes(b []byte) error {
	if err := checkRecordSum(b); err != nil {
		return err
	}
	if err := w.begin(KindBlock, len(b)); err != nil {
		return err
	}
	w.stream = append(w.stream, b...)
	return nil
}

// Tombstone adds a tombstone.
func (w *LogWriter) Tombstone(t *Tombstone) error {
	if err := w.begin(KindTombstone, tsSize); err != nil {
		return err
	}
	w.stream = t.append(w.stream)
	return nil
}

// Purge adds a purge. Invalid when it has a tag and is not salted.
func (w *LogWriter) Purge(p *Purge) error {
	if !p.Salted && p.SaltTag != (SaltTag{}) {
		return skep.Invalidf("purge entry", "salt tag", "set", "zero unless salted")
	}
	if err := w.begin(KindPurge, pgSize); err != nil {
		return err
	}
	w.stream = p.append(w.stream)
	return nil
}

// Mark adds a mark.
func (w *LogWriter) Mark(m *Mark) error {
	if err := w.begin(KindMark, MarkSize); err != nil {
		return err
	}
	w.stream = m.append(w.stream)
	return nil
}

// Bytes are the entries so far, as Add takes them. They are lent until the next change.
func (w *LogWriter) Bytes() []byte { return w.stream }

// Add appends entries as another writer's Bytes gave them; b is copied. Damaged, and
// nothing is added, when b is not whole entries of known kinds; Invalid when the append
// would pass MaxAppendPages.
func (w *LogWriter) Add(b []byte) error {
	format := w.format
	for at := 0; at < len(b); {
		e, n := nextEntry(b[at:])
		if n == 0 {
			return damaged("log entries", "entry at byte", at, "a whole entry of a known kind")
		}
		at, format = at+n, max(format, formatOf(e.Kind))
	}
	if pages := AppendPages(len(w.stream) + len(b)); pages > MaxAppendPages {
		return skep.Invalidf("log append", "pages", pages, fmt.Sprintf("at most %d", MaxAppendPages))
	}
	w.stream, w.format = append(w.stream, b...), format
	return nil
}

// Sealing adds a sealing. A program from before there were any refuses the append as of another format: nothing else
// that it needs should be in it.
func (w *LogWriter) Sealing(s *Sealing) error {
	if err := w.begin(KindSealing, slSize); err != nil {
		return err
	}
	w.stream = s.append(w.stream)
	return nil
}

// Namespace adds a namespace. Invalid, and nothing is added, when its info is.
func (w *LogWriter) Namespace(n *Namespace) error {
	body, err := n.append(nil)
	if err != nil {
		return err
	}
	if err := w.begin(KindNamespace, len(body)); err != nil {
		return err
	}
	w.stream = append(w.stream, body...)
	return nil
}

// Entry adds an entry as it was read; its body is copied.
func (w *LogWriter) Entry(e Entry) error {
	if err := w.begin(e.Kind, len(e.Body)); err != nil {
		return err
	}
	w.stream = append(w.stream, e.Body...)
	return nil
}

func (w *LogWriter) begin(k Kind, n int) error {
	if pages := AppendPages(len(w.stream) + EntrySize(n)); pages > MaxAppendPages {
		return skep.Invalidf("log append", "pages", pages, fmt.Sprintf("at most %d", MaxAppendPages))
	}
	w.format = max(w.format, formatOf(k))
	w.stream = append(w.stream, byte(k))
	w.stream = binary.AppendUvarint(w.stream, uint64(n))
	return nil
}

// Encode writes the append into dst, Pages()·PageSize bytes, in device order, so that
// dst goes in one write to AppendOffset(segmentBytes, first, Pages()): its first page
// last. first is the log index of the append's first page, seq the append's store-wide
// sequence number, which must be above that of the log's append before. Invalid when
// there are no entries, dst has another length or first leaves the segment.
func (w *LogWriter) Encode(dst []byte, id LogID, first int, seq uint64) error {
	const op = "log append"
	n := w.Pages()
	switch {
	case n == 0:
		return skep.Invalidf(op, "entries", 0, "at least 1")
	case len(dst) != n*PageSize:
		return skep.Invalidf(op, "destination length in bytes", len(dst), n*PageSize)
	case first < 0 || first > MaxSegmentPages-n:
		return skep.Invalidf(op, "first page", first, fmt.Sprintf("0 to %d", MaxSegmentPages-n))
	}
	seed, rest := id.seed(), w.stream
	for i := range n {
		page := dst[(n-1-i)*PageSize : (n-i)*PageSize]
		if err := beginPage(op, magicLog, page); err != nil {
			return err
		}
		le.PutUint32(page[offFormat:], max(w.format, FormatVersion))
		le.PutUint32(page[lpGroup:], id.Group)
		copy(page[lpStore:], id.Store[:])
		le.PutUint64(page[lpGeneration:], id.Generation)
		le.PutUint64(page[lpSeq:], seq)
		le.PutUint32(page[lpIndex:], uint32(first+i))
		le.PutUint16(page[lpOrdinal:], uint16(i))
		le.PutUint16(page[lpCount:], uint16(n))
		le.PutUint16(page[lpPosition:], id.Position)
		used := copy(page[lpBody:offChecksum], rest)
		le.PutUint16(page[lpUsed:], uint16(used))
		rest = rest[used:]
		sealPage(page, seed)
	}
	return nil
}
