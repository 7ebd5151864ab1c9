package coact

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"

	"github.com/RoaringBitmap/roaring/v2"
	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep"
)

// Profile remembers which steps activated which entries of one layer of one context: for
// each entry a bitmap of steps, as plain words where those are smaller and as a roaring
// bitmap where few steps of many are set. Memory grows with entries × steps at the most,
// never with entries². It is for one goroutine at a time.
type Profile struct {
	entries int
	every   int // one step in so many is recorded
	offered int // steps seen
	steps   int // recorded
	full    bool
	explore []uint64 // recorded steps that selected exploratively
	sets    []stepSet
}

// stepSet is one entry's steps: words, unless few is set.
type stepSet struct {
	words []uint64
	few   *roaring.Bitmap
}

// fewOverhead is about what an empty roaring bitmap takes in memory, in bytes.
const fewOverhead = 160

// NewProfile makes an empty profile that records one step in every; later steps may name
// entries beyond, up to MaxEntries, as the context grows.
func NewProfile(entries, every int) (*Profile, error) {
	if entries < 1 || entries > MaxEntries {
		return nil, skep.Invalidf("profile", "entries", entries, fmt.Sprintf("1 to %d", MaxEntries))
	}
	if every < 1 || every > MaxSteps {
		return nil, skep.Invalidf("profile", "sampling", every, fmt.Sprintf("1 to %d", MaxSteps))
	}
	return &Profile{entries: entries, every: every, sets: make([]stepSet, entries)}, nil
}

// Observe tells of one step: the entries it activated, each once, and whether it had
// selected exploratively, beyond what our own selection would have returned: only such
// steps may judge a layout, since others confirm what the layout made them select. It
// reports whether the step was recorded; it is not when sampling leaves it out (an
// explorative step is always taken) or MaxSteps are full.
func (p *Profile) Observe(entries []uint32, explorative bool) (bool, error) {
	for _, e := range entries {
		if int(e) >= MaxEntries {
			return false, skep.Invalidf("observe", "entry", e, fmt.Sprintf("below %d", MaxEntries))
		}
	}
	p.offered++
	if p.steps >= MaxSteps || !explorative && (p.offered-1)%p.every != 0 {
		p.full = p.full || p.steps >= MaxSteps
		return false, nil
	}
	step := p.steps
	p.steps++
	if explorative {
		p.explore = setBit(p.explore, step)
	}
	for _, e := range entries {
		if int(e) >= len(p.sets) {
			p.sets = append(p.sets, make([]stepSet, int(e)+1-len(p.sets))...)
			p.entries = len(p.sets)
		}
		p.sets[e].add(step)
	}
	return true, nil
}

func setBit(words []uint64, i int) []uint64 {
	for len(words) <= i/64 {
		words = append(words, 0)
	}
	words[i/64] |= 1 << (i % 64)
	return words
}

func (s *stepSet) add(step int) {
	if s.few != nil {
		s.few.Add(uint32(step))
		if fewOverhead+s.few.GetSizeInBytes() > uint64(8*(step/64+1)) {
			words := make([]uint64, 0, step/64+1)
			s.each(func(t int) { words = setBit(words, t) })
			s.words, s.few = words, nil
		}
		return
	}
	if n := 8 * (step/64 + 1); n > 2*fewOverhead && step/64 >= len(s.words) {
		// The words are about to grow: is a list of the set steps smaller?
		set := 0
		for _, w := range s.words {
			set += bits.OnesCount64(w)
		}
		if fewOverhead+16+2*(set+1) < n/2 {
			few := roaring.New()
			s.each(func(t int) { few.Add(uint32(t)) })
			few.Add(uint32(step))
			s.words, s.few = nil, few
			return
		}
	}
	s.words = setBit(s.words, step)
}

func (s *stepSet) each(f func(step int)) {
	if s.few == nil {
		each(s.words, f)
		return
	}
	for it := s.few.Iterator(); it.HasNext(); {
		f(int(it.Next()))
	}
}

// Entries is the number of entries known.
func (p *Profile) Entries() int { return p.entries }

// Steps is how many steps are recorded.
func (p *Profile) Steps() int { return p.steps }

// Explorative reports whether a recorded step selected exploratively.
func (p *Profile) Explorative(step int) bool {
	return step >= 0 && step/64 < len(p.explore) && p.explore[step/64]>>(step%64)&1 == 1
}

// Bytes is about what the profile takes in memory.
func (p *Profile) Bytes() int64 {
	n := int64(len(p.sets))*32 + int64(8*len(p.explore))
	for _, s := range p.sets {
		n += int64(8 * cap(s.words))
		if s.few != nil {
			n += fewOverhead + int64(s.few.GetSizeInBytes())
		}
	}
	return n
}

// Bits is the matrix of the steps for which keep is true (nil: all), in order.
func (p *Profile) Bits(keep func(step int) bool) (*Bits, error) {
	at := make([]int32, p.steps)
	n := 0
	for t := range at {
		at[t] = -1
		if keep == nil || keep(t) {
			at[t] = int32(n)
			n++
		}
	}
	b, err := NewBits(p.entries, n)
	if err != nil {
		return nil, err
	}
	for e := range p.sets {
		row, count := b.row(e), int32(0)
		p.sets[e].each(func(t int) {
			if k := at[t]; k >= 0 {
				row[k/64] |= 1 << (k % 64)
				count++
			}
		})
		b.setCount(e, count)
	}
	return b, nil
}

// Counts is how many of the steps activated each entry.
func (p *Profile) Counts() []int {
	out := make([]int, p.entries)
	for e, s := range p.sets {
		if s.few != nil {
			out[e] = int(s.few.GetCardinality())
		}
		for _, w := range s.words {
			out[e] += bits.OnesCount64(w)
		}
	}
	return out
}

// Merge adds the steps of another profile of the same context and layer behind p's own.
// Invalid when both together have more than MaxSteps; p is unchanged then.
func (p *Profile) Merge(o *Profile) error {
	if p.steps+o.steps > MaxSteps {
		return skep.Invalidf("merge profiles", "steps", p.steps+o.steps, fmt.Sprintf("at most %d", MaxSteps))
	}
	if o.entries > p.entries {
		p.sets = append(p.sets, make([]stepSet, o.entries-p.entries)...)
		p.entries = o.entries
	}
	base := p.steps
	for e := range o.sets {
		o.sets[e].each(func(t int) { p.sets[e].add(base + t) })
	}
	for t := range o.steps {
		if o.Explorative(t) {
			p.explore = setBit(p.explore, base+t)
		}
	}
	p.steps += o.steps
	p.offered += o.offered
	return nil
}

// Forget drops the oldest steps so that at most keep remain.
func (p *Profile) Forget(keep int) {
	drop := p.steps - max(keep, 0)
	if drop <= 0 {
		return
	}
	sets := make([]stepSet, p.entries)
	var explore []uint64
	for e := range p.sets {
		p.sets[e].each(func(t int) {
			if t >= drop {
				sets[e].add(t - drop)
			}
		})
	}
	for t := drop; t < p.steps; t++ {
		if p.Explorative(t) {
			explore = setBit(explore, t-drop)
		}
	}
	p.sets, p.explore, p.steps, p.full = sets, explore, p.steps-drop, false
}

// The written form:
//
//	"SKPROF01"  uvarint entries, every, offered, steps
//	the explorative steps, as gaps: uvarint count, uvarint gaps
//	each entry's steps, the same way
//	xxh3 of all before, 8 bytes little-endian
const profileMagic = "SKPROF01"

// MarshalBinary is the profile's stored and exported form.
func (p *Profile) MarshalBinary() ([]byte, error) {
	out := []byte(profileMagic)
	for _, v := range []int{p.entries, p.every, p.offered, p.steps} {
		out = binary.AppendUvarint(out, uint64(v))
	}
	var steps []int
	gaps := func() {
		out = binary.AppendUvarint(out, uint64(len(steps)))
		prev := -1
		for _, t := range steps {
			out = binary.AppendUvarint(out, uint64(t-prev))
			prev = t
		}
	}
	each(p.explore, func(t int) { steps = append(steps, t) })
	gaps()
	for e := range p.sets {
		steps = steps[:0]
		p.sets[e].each(func(t int) { steps = append(steps, t) })
		gaps()
	}
	return binary.LittleEndian.AppendUint64(out, xxh3.Hash(out)), nil
}

// UnmarshalBinary reads what MarshalBinary wrote; Damaged when it is anything else.
func (p *Profile) UnmarshalBinary(data []byte) error {
	damaged := func(err error) error {
		return &skep.Error{Op: "read profile", Kind: skep.Damaged, Err: err}
	}
	if len(data) < len(profileMagic)+8 || string(data[:len(profileMagic)]) != profileMagic {
		return damaged(fmt.Errorf("not a profile"))
	}
	body := data[:len(data)-8]
	if xxh3.Hash(body) != binary.LittleEndian.Uint64(data[len(body):]) {
		return damaged(fmt.Errorf("checksum does not match"))
	}
	body = body[len(profileMagic):]
	var bad error
	next := func(limit int) int {
		v, n := binary.Uvarint(body)
		if n <= 0 || v > uint64(limit) {
			if bad == nil {
				bad = io.ErrUnexpectedEOF
			}
			return 0
		}
		body = body[n:]
		return int(v)
	}
	q := Profile{}
	q.entries, q.every, q.offered, q.steps = next(MaxEntries), next(MaxSteps), next(1<<40), next(MaxSteps)
	if bad != nil || q.entries < 1 || q.every < 1 || q.entries > len(body) { // each entry takes a byte at least
		return damaged(fmt.Errorf("counts out of range"))
	}
	q.sets = make([]stepSet, q.entries)
	list := func(f func(step int)) {
		prev := -1
		for n := next(q.steps); n > 0 && bad == nil; n-- {
			gap := next(q.steps)
			if prev += gap; gap < 1 || prev >= q.steps {
				bad = fmt.Errorf("step %d of %d", prev, q.steps)
				return
			}
			f(prev)
		}
	}
	list(func(t int) { q.explore = setBit(q.explore, t) })
	for e := range q.sets {
		list(func(t int) { q.sets[e].add(t) })
		if bad != nil {
			return damaged(bad)
		}
	}
	if len(body) != 0 {
		return damaged(fmt.Errorf("%d bytes too many", len(body)))
	}
	*p = q
	return nil
}
