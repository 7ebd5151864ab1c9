package restore

import (
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/segio"
)

// Which copy is read.
//
// A copy of a large block lies on all drives of its group, so a drive that is lost takes a piece of every copy with
// it. But the same piece of two copies is never on one drive. So what is chosen is not a copy but, for each unit, where
// to read it: from the drive in the best condition that has it. A block is lost when every copy of one unit is.

// bad is a range of a part that was wrong in one copy.
type bad struct {
	copy int
	span layout.Span
}

// troubles is what went wrong with a chunk so far. Nil: nothing.
type troubles struct {
	shun []Drive // reads from these failed
	bad  []bad
}

func (t *troubles) wrong(copy int, s layout.Span) bool {
	if t == nil {
		return false
	}
	for _, b := range t.bad {
		if b.copy == copy && b.span.Off < s.End() && s.Off < b.span.End() {
			return true
		}
	}
	return false
}

// rankOf is ReadRank of d for a chunk with these troubles.
func (t *troubles) rankOf(d Drive) int {
	if t != nil && slices.Contains(t.shun, d) {
		return segio.NoPlace
	}
	return d.ReadRank()
}

// partSpan is what of the part a read brings.
func partSpan(r *layout.Read) layout.Span { return layout.Span{Off: r.PartOff, Len: r.Len} }

// copyReads are the reads of the chunk's spans from copy c.
func (f *Located) copyReads(c int, spans []layout.Span) []layout.Read {
	reads := layout.AppendReads(nil, f.Copies[c], f.Stripe.Len(), f.Stored, f.Offset, f.Sums.Granules, spans)
	for i := range reads {
		reads[i].Tag = uint32(c)
	}
	return reads
}

// chooseReads says where each piece of the chunk is read. The error is DeviceFailed when a
// piece lies only on drives that cannot be read, Damaged when all its copies were wrong.
func (ch *chunk) chooseReads() ([]layout.Read, error) {
	f := ch.at
	first := f.copyReads(0, ch.spans)
	if ch.trouble == nil && f.Stripe.Healthy() {
		return first, nil
	}
	lists := make([][]layout.Read, len(f.Copies))
	lists[0] = first
	for c := range f.Copies {
		if c > 0 {
			lists[c] = f.copyReads(c, ch.spans)
		}
		if len(lists[c]) != len(first) {
			return nil, &skep.Error{Op: "restore", Kind: skep.Damaged, Field: "places of the copies"}
		}
	}
	chosen := make([]layout.Read, len(first))
	for i := range chosen {
		best, err := segio.Best(len(f.Copies), func(c int) bool { return ch.trouble.wrong(c, partSpan(&lists[c][i])) },
			func(c int) int { return ch.trouble.rankOf(f.Stripe.Drive(lists[c][i].Device)) })
		if err != nil {
			return nil, err
		}
		chosen[i] = lists[best][i]
	}
	return chosen, nil
}
