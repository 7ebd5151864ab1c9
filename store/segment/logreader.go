package segment

import (
	"encoding/binary"
	"fmt"
	"iter"

	"github.com/skepkv/skep"
)

// LogReader reads one segment's log from page 0 on, whatever the pages hold. It does no I/O: the caller feeds it pages,
// end of the segment first, in reads of any size.
//
//	r := NewLogReader(id)
//	for {
//		a, ok := r.Next()
//		if !ok { … }  // read the next piece below and r.Feed it, or stop: r.End() says what was found
//		// for e := range a.Entries() …
//	}
//
// It passes over what is not a page of this log in this place, is damaged, or breaks the chain, and goes on for as long
// as it is fed: behind a page that was lost there may be whole appends. Of a log that was being written when the
// machine stopped the last one may be torn; what lies behind that was never acknowledged. Only whole appends come out,
// in rising order of their sequence numbers. When the log has ended the caller decides: after some pages without an
// append.
type LogReader struct {
	id   LogID
	seed uint64

	chunk []byte // pages fed and not looked at yet; the next is the last
	next  int    // log index of that page

	end     LogEnd
	pending struct { // the append being put together
		seq          uint64
		format       uint32
		first        int
		pages, count int // seen of it, and in all; count 0: none
		stream       []byte
	}
}

// LogEnd is what a LogReader found so far.
type LogEnd struct {
	Appends int    // whole ones
	Pages   int    // log index after the last whole append: where the next one may go
	Seq     uint64 // of the last whole append
	Damaged int    // pages that were ours and broken, or of an append that was not whole
	// Err is nil when there was nothing but whole appends, and behind them pages never written in this generation; else
	// the first damage, of kind Damaged or Version. After a crash the last append may well be torn; in a sealed segment
	// it means lost records.
	Err error
}

// NewLogReader begins at log page 0 of the log id.
func NewLogReader(id LogID) *LogReader { return &LogReader{id: id, seed: id.seed()} }

// Feed gives the reader the pages below those fed before, as read from the device:
// the first time the segment's last len(chunk) bytes, then those before. Invalid when
// that is not a whole number of pages or earlier pages are still unread. The chunk is
// lent until Next has returned false, and never written to.
func (r *LogReader) Feed(chunk []byte) error {
	if len(chunk)%PageSize != 0 || len(chunk) == 0 {
		return skep.Invalidf("read log", "length in bytes", len(chunk), fmt.Sprintf("a multiple of %d", PageSize))
	}
	if len(r.chunk) != 0 {
		return skep.Invalidf("read log", "unread pages", len(r.chunk)/PageSize, "0 before more are fed")
	}
	r.chunk = chunk
	return nil
}

// Append is one whole append.
type Append struct {
	Seq    uint64 // store-wide
	First  int    // log index of its first page
	Pages  int
	stream []byte
}

// Entries gives the append's entries in order. Their bodies point into the chunk fed
// or into the reader, and are valid until the reader's next call.
func (a Append) Entries() iter.Seq[Entry] { return Entries(a.stream) }

// Entries gives the entries of what LogWriter.Bytes gave, in order. Their bodies point into it.
func Entries(stream []byte) iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		for rest := stream; len(rest) > 0; {
			e, n := nextEntry(rest)
			if n == 0 || !yield(e) {
				return
			}
			rest = rest[n:]
		}
	}
}

// nextEntry takes the entry at the front of b and says how long it is, 0 when there
// is none: unknown kind, too short, or a length not in its shortest form.
func nextEntry(b []byte) (Entry, int) {
	if len(b) < 2 || b[0] < byte(KindBlock) || b[0] > byte(lastKind) {
		return Entry{}, 0
	}
	size, n := binary.Uvarint(b[1:])
	if n <= 0 || size > uint64(len(b)-1-n) || n > 1 && b[n] == 0 {
		return Entry{}, 0
	}
	end := 1 + n + int(size)
	return Entry{Kind: Kind(b[0]), Body: b[1+n : end : end]}, end
}

// Next gives the next whole append. False: every page fed was looked at. It never fails: what it passes over is in End.
func (r *LogReader) Next() (Append, bool) {
	for len(r.chunk) > 0 {
		page := r.chunk[len(r.chunk)-PageSize:]
		r.chunk = r.chunk[:len(r.chunk)-PageSize]
		index := r.next
		r.next++
		ours, err := r.check(page, index)
		if err != nil {
			r.damage(err, 1)
			r.drop()
			continue
		}
		if !ours {
			r.drop()
			continue
		}
		if a, ok := r.add(page, index); ok {
			return a, true
		}
	}
	return Append{}, false
}

// End says what was found so far. An append begun and not finished counts as damage
// only once a page that should continue it does not.
func (r *LogReader) End() LogEnd { return r.end }

// Midway says whether the last page looked at belongs to an append that goes on below.
func (r *LogReader) Midway() bool { return r.pending.count > 0 }

// Looked is how many pages were looked at so far.
func (r *LogReader) Looked() int { return r.next }

func (r *LogReader) damage(err error, pages int) {
	if r.end.Err == nil {
		r.end.Err = err
	}
	r.end.Damaged += pages
}

// drop gives up the append being put together.
func (r *LogReader) drop() {
	if p := &r.pending; p.count > 0 {
		r.damage(damaged("read log", "append", fmt.Sprintf("%d of its pages", p.pages), fmt.Sprintf("%d from page %d", p.count, p.first)), p.pages)
		p.count = 0
	}
}

// check says whether page is a page of this log at index; an error when it is one
// and broken, or in the wrong place, or of another format.
func (r *LogReader) check(page []byte, index int) (bool, error) {
	const op = "read log"
	where := func(field string) string { return fmt.Sprintf("%s of page %d", field, index) }
	magic := string(page[offMagic:offMagic+8]) == magicLog
	claims := LogID{
		Store:      StoreID(page[lpStore:]),
		Secret:     r.id.Secret,
		Group:      le.Uint32(page[lpGroup:]),
		Generation: le.Uint64(page[lpGeneration:]),
		Position:   le.Uint16(page[lpPosition:]),
	}
	sum := le.Uint64(page[offChecksum:])
	if !magic || claims != r.id || sum != pageSum(page, r.seed) {
		// A page of an earlier generation is not ours, and whole. One that is not
		// whole but says in two of three places that it is ours was ours: so a page
		// with a bad sector or a flipped bit is told from one never written.
		if magic && claims != r.id && sum == pageSum(page, claims.seed()) {
			return false, nil
		}
		marks := 0
		for _, m := range []bool{magic, claims.Store == r.id.Store, claims.Group == r.id.Group && claims.Generation == r.id.Generation && claims.Position == r.id.Position} {
			if m {
				marks++
			}
		}
		if marks < 2 {
			return false, nil
		}
		return false, damaged(op, where("checksum"), fmt.Sprintf("%016x", sum), "that of its bytes")
	}
	if n := le.Uint32(page[offFormat:]); n != formatSealing {
		if err := checkFormat(op, n); err != nil {
			return false, err
		}
	}
	if got := le.Uint32(page[lpIndex:]); int64(got) != int64(index) {
		return false, damaged(op, where("index"), got, index)
	}
	ordinal, count, used := int(le.Uint16(page[lpOrdinal:])), int(le.Uint16(page[lpCount:])), int(le.Uint16(page[lpUsed:]))
	if count < 1 || count > MaxAppendPages || ordinal >= count {
		return false, damaged(op, where("place in the append"), ordinal, fmt.Sprintf("below %d", count))
	}
	if used < 1 || used > BodySize || used < BodySize && ordinal < count-1 {
		return false, damaged(op, where("used bytes"), used, fmt.Sprintf("1 to %d, and all before the last page", BodySize))
	}
	if !Blank(page[lpSpare:lpBody]) || !Blank(page[lpBody+used:offChecksum]) {
		return false, damaged(op, where("spare bytes"), "set", "zero")
	}
	return true, nil
}

// add puts a good page to the append it belongs to; ok when that is whole now.
func (r *LogReader) add(page []byte, index int) (a Append, ok bool) {
	const op = "read log"
	p := &r.pending
	seq, ordinal, count := le.Uint64(page[lpSeq:]), int(le.Uint16(page[lpOrdinal:])), int(le.Uint16(page[lpCount:]))
	body, format := page[lpBody:lpBody+int(le.Uint16(page[lpUsed:]))], le.Uint32(page[offFormat:])
	if p.count > 0 && (seq != p.seq || ordinal != p.pages || count != p.count || format != p.format) {
		r.drop()
	}
	if p.count == 0 {
		// A page left from before a crash, behind one written since, has a lower number.
		if ordinal != 0 || r.end.Appends > 0 && seq <= r.end.Seq {
			r.damage(damaged(op, fmt.Sprintf("page %d", index), fmt.Sprintf("page %d of append %d", ordinal, seq),
				fmt.Sprintf("the first of one after %d", r.end.Seq)), 1)
			return Append{}, false
		}
		p.seq, p.format, p.first, p.count, p.pages = seq, format, index, count, 0
		p.stream = p.stream[:0]
	}
	p.pages++
	if p.count == 1 {
		return r.finish(body)
	}
	p.stream = append(p.stream, body...)
	if p.pages < p.count {
		return Append{}, false
	}
	return r.finish(p.stream)
}

// finish checks a whole append's entries before any of them is given out.
func (r *LogReader) finish(stream []byte) (Append, bool) {
	p := &r.pending
	a := Append{Seq: p.seq, First: p.first, Pages: p.count, stream: stream}
	p.count = 0
	format := uint32(FormatVersion)
	for at := 0; at < len(stream); {
		e, n := nextEntry(stream[at:])
		if n == 0 {
			r.damage(damaged("read log", "entry", fmt.Sprintf("kind %d at byte %d of append %d", stream[at], at, a.Seq), "a whole entry of a known kind"), a.Pages)
			return Append{}, false
		}
		at, format = at+n, max(format, formatOf(e.Kind))
	}
	if format != p.format {
		r.damage(damaged("read log", fmt.Sprintf("format of append %d", a.Seq), p.format, format), a.Pages)
		return Append{}, false
	}
	if a.First > r.end.Pages && r.end.Err == nil {
		// Pages that were not ours, and now one that is.
		r.damage(damaged("read log", "pages missing", a.First-r.end.Pages, fmt.Sprintf("none before page %d", a.First)), a.First-r.end.Pages)
	}
	r.end.Appends++
	r.end.Pages = a.First + a.Pages
	r.end.Seq = a.Seq
	return a, true
}
