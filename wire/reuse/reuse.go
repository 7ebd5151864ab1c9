// Package reuse keeps the book of memory that a client lends its callers in pieces and that servers use: what is free,
// and what a server may use yet that nobody hears of any more. The latter is not lent again before its time.
package reuse

import (
	"cmp"
	"slices"
)

// Span is a part of the memory, in bytes.
type Span struct{ Off, Len int64 }

func (s Span) meets(o Span) bool { return s.Off < o.Off+o.Len && o.Off < s.Off+s.Len }

// Attach is one time that a server took the memory: with one connection.
type Attach struct {
	server [16]byte
	over   bool // the server has taken the memory again since
}

// mostAttaches are remembered. One that is forgotten is never over: that costs memory, and is safe.
const mostAttaches = 64

// Book is of one piece of memory. It is for one goroutine at a time.
type Book struct {
	free     []Span // disjoint, by offset, never touching
	out      int
	tainted  []taint
	parked   []Span // given back while they were tainted
	waits    []wait
	attaches []*Attach // that are not over, by age
}

// taint is what the server of an attach may use yet, for one user: a session or a put of it.
type taint struct {
	by  *Attach
	use any
	Span
}

// wait is who wants to know when none of the spans is tainted any more.
type wait struct {
	spans []Span
	tell  func()
}

// New is the book of memory that is free.
func New(free Span) *Book { return &Book{free: []Span{free}} }

// Out is how many spans are lent.
func (b *Book) Out() int { return b.out }

// Take lends n bytes; false: no piece is large enough.
func (b *Book) Take(n int64) (Span, bool) {
	i := slices.IndexFunc(b.free, func(f Span) bool { return f.Len >= n })
	if i < 0 {
		return Span{}, false
	}
	f := &b.free[i]
	s := Span{f.Off, n}
	f.Off, f.Len = f.Off+n, f.Len-n
	if f.Len == 0 {
		b.free = slices.Delete(b.free, i, i+1)
	}
	b.out++
	return s, true
}

// Give takes back what was lent: to be lent again, once it is not tainted.
func (b *Book) Give(s Span) {
	b.out--
	b.put(s)
}

func (b *Book) put(s Span) {
	if b.Tainted(s) {
		b.parked = append(b.parked, s)
		return
	}
	i, _ := slices.BinarySearchFunc(b.free, s.Off, func(f Span, off int64) int { return cmp.Compare(f.Off, off) })
	b.free = slices.Insert(b.free, i, s)
	if i+1 < len(b.free) && b.free[i].Off+b.free[i].Len == b.free[i+1].Off {
		b.free[i].Len += b.free[i+1].Len
		b.free = slices.Delete(b.free, i+1, i+2)
	}
	if i > 0 && b.free[i-1].Off+b.free[i-1].Len == b.free[i].Off {
		b.free[i-1].Len += b.free[i].Len
		b.free = slices.Delete(b.free, i, i+1)
	}
}

// Attached notes that a server has taken the memory, with a connection that is new.
//
// A server takes a client's memory only when nothing of the client's connections before uses it: no session, no put,
// no drive of either (region.admit of package wire). So every earlier attach to it is over then: what was tainted by
// those is not any more, and nothing can be tainted by them afterwards, however late somebody finds out that a
// connection of then broke. An attach to another server, which is another process or another run of one, says nothing of
// this server's drives, and leaves its taints.
func (b *Book) Attached(server [16]byte) *Attach {
	b.Gone(server)
	if len(b.attaches) == mostAttaches {
		b.attaches = slices.Delete(b.attaches, 0, 1)
	}
	a := &Attach{server: server}
	b.attaches = append(b.attaches, a)
	return a
}

// Gone notes that servers use nothing any more that they took the memory for until now: their processes have ended, and
// so has what drives did for them.
func (b *Book) Gone(servers ...[16]byte) {
	for _, a := range b.attaches {
		a.over = a.over || slices.Contains(servers, a.server)
	}
	b.attaches = slices.DeleteFunc(b.attaches, func(a *Attach) bool { return a.over })
	b.clear(func(t taint) bool { return t.by != nil && t.by.over })
}

// Taint notes what the server of an attach may use yet, which it does until the attach is over. Of nil, which is none
// that is known, it does for good. use is a pointer to what it is used for; nil: nobody will say that it is over.
func (b *Book) Taint(by *Attach, use any, s Span) {
	if t := (taint{by, use, s}); (by == nil || !by.over) && !slices.Contains(b.tainted, t) {
		b.tainted = append(b.tainted, t)
	}
}

// Untaint notes that the server of an attach uses nothing any more for what it was tainted for. What it uses for others
// in the same place stays tainted.
func (b *Book) Untaint(by *Attach, use any) {
	b.clear(func(t taint) bool { return t.by == by && t.use == use })
}

// Tainted says whether a server may use some of s yet that nobody hears of.
func (b *Book) Tainted(s Span) bool {
	return slices.ContainsFunc(b.tainted, func(t taint) bool { return t.meets(s) })
}

// AnyTainted is Tainted of everything.
func (b *Book) AnyTainted() bool { return len(b.tainted) > 0 }

// Withheld is how many bytes were given back and are not lent again, as they are tainted.
func (b *Book) Withheld() (n int64) {
	for _, s := range b.parked {
		n += s.Len
	}
	return n
}

// Tell has f called, by a goroutine of its own, once none of the spans is tainted: now, where that is so.
func (b *Book) Tell(spans []Span, f func()) {
	b.waits = append(b.waits, wait{spans, f})
	b.settle()
}

func (b *Book) clear(gone func(taint) bool) {
	b.tainted = slices.DeleteFunc(b.tainted, gone)
	b.settle()
}

// settle lends again, and tells, what is not tainted any more.
func (b *Book) settle() {
	parked := b.parked
	b.parked = nil
	for _, s := range parked {
		b.put(s)
	}
	b.waits = slices.DeleteFunc(b.waits, func(w wait) bool {
		if slices.ContainsFunc(w.spans, b.Tainted) {
			return false
		}
		go w.tell()
		return true
	})
}
