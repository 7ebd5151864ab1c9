package layout

import (
	"cmp"
	"slices"
)

// Read is one device read: Pages pages from Page, of which Len bytes from Skip on
// are wanted; they are the part's bytes from PartOff. Unless the value is packed,
// Skip is PartOff modulo PageSize, so memory that holds the part page-aligned is
// read into directly, at PartOff - Skip.
type Read struct {
	Group   uint32
	Device  int
	Page    uint32
	Pages   int
	Skip    int
	PartOff int64
	Len     int64
	Tag     uint32 // the caller's; Merge keeps it
}

// AppendReads appends the reads for spans of one part of the block of stored bytes
// at loc in a group of n devices. The part begins at partOff of the stored bytes
// (PartOffset) and is checked by g: the reads are whole granules, rounded to pages,
// and of no other granule (a gap of less than a page between two is read over).
// Spans should ascend, as ByteRange gives them; others work, but a page may be read
// twice. A span that is not in the part is left out.
func AppendReads(dst []Read, loc Location, n int, stored, partOff int64, g Granules, spans []Span) []Read {
	w := walk(loc, stored, n)
	if w.stored == 0 || partOff < 0 || g.Part > w.stored-partOff {
		return dst
	}
	var from, to int64 // stored bytes not yet emitted
	emit := func() {
		for from < to {
			end := min(to, (from/w.unit+1)*w.unit)
			e := w.extent(from, end)
			dst = append(dst, Read{
				Group: loc.Group, Device: e.Device, Page: e.Page, Pages: e.Pages(),
				Skip: e.Skip, PartOff: from - partOff, Len: e.Len,
			})
			from = end
		}
	}
	for _, s := range spans {
		first, last := g.Cover(s)
		if last < first {
			continue
		}
		lo, hi := partOff+g.Span(first).Off, partOff+g.Span(last).End()
		if from < to && lo >= from && (lo <= to || lo/PageSize < ceil(to, PageSize)) {
			to = max(to, hi)
			continue
		}
		emit()
		from, to = lo, hi
	}
	emit()
	return dst
}

// Run is neighbouring reads of one device, to be issued as one: Pages pages from
// Page. It is reads [First, End) of the slice Merge was given; read i's pages begin
// (reads[i].Page - Page) pages into the run. They may overlap (packed values).
type Run struct {
	Group      uint32
	Device     int
	Page       uint32
	Pages      int
	First, End int
}

// Merge sorts reads by group, device and page and appends them to dst as runs of
// neighbours of at most maxPages pages (a single longer read is a run of its own).
// With maxPages below 1 nothing but reads of the same pages is merged.
func Merge(dst []Run, reads []Read, maxPages int) []Run {
	slices.SortStableFunc(reads, func(a, b Read) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Device, b.Device), cmp.Compare(a.Page, b.Page))
	})
	base := len(dst)
	for i, r := range reads {
		if len(dst) > base {
			last := &dst[len(dst)-1]
			end := int(last.Page) + last.Pages
			grown := max(end, int(r.Page)+r.Pages) - int(last.Page)
			if last.Group == r.Group && last.Device == r.Device && int(r.Page) <= end &&
				(grown <= maxPages || grown == last.Pages) {
				last.Pages, last.End = grown, i+1
				continue
			}
		}
		dst = append(dst, Run{r.Group, r.Device, r.Page, r.Pages, i, i + 1})
	}
	return dst
}
