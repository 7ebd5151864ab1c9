package twopointer

import (
	"fmt"
	"slices"

	"github.com/skepkv/skep"
)

// taken: the engine claimed up to to by the strand's claim word. Of a piece that was decided on meanwhile, and is not
// begun, it may have part or all: who publishes tail after a Load looks first, and that part is
// not on its way.
func (s *Scheduler) taken(st *strand, to int) error {
	last := slices.IndexFunc(st.flying, func(f flight) bool { return !f.boundary && f.from == st.tail })
	switch {
	case to <= st.head:
		return skep.Invalidf("schedule", "taken", to, fmt.Sprintf("more than %d, what was taken before", st.head))
	case to > st.tail && (last < 0 || to > st.flying[last].to):
		return skep.Invalidf("schedule", "taken", to, fmt.Sprintf("at most %d, from where on all is loaded or on its way", st.tail))
	}
	if to > st.tail {
		f := st.takeOff(last, span{st.tail, to})
		ch := &s.chans[st.Channel]
		ch.bytes = max(ch.bytes-f.bytes, 0)
		ch.busy = max(s.now, ch.busy-f.bytes/ch.rate)
		st.tail = to
	}
	s.begins(st, st.head, to)
	st.head = to
	s.unpark(st)
	return nil
}

// Standing is what a strand's claim word should say: computed or granted up to Head, loaded or on its way
// from Tail on. An engine may claim up to May without asking, whether it has other work or not. More says that
// pieces that did not come are to be computed as well.
type Standing struct {
	Head, May, Tail int // tokens, or layers
	More            bool
}

// Standing of a strand; false when it is none.
func (s *Scheduler) Standing(slot int) (Standing, bool) {
	if slot < 0 || slot >= len(s.strands) || !s.strands[slot].live {
		return Standing{}, false
	}
	if s.stale < 0 {
		s.refresh()
	}
	st := &s.strands[slot]
	tail := max(st.tail, st.head)
	return Standing{Head: st.head, May: st.head + s.room(st, tail-st.head, false), Tail: tail, More: len(st.islands) > 0}, true
}
