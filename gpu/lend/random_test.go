package lend

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// world is one random schedule: lenders that each have an arena, a floor and a border that moves,
// and borrowers that borrow of all of them, read and write what they were lent, and move blocks from
// one lender's memory to another's, by copies that land late. The network loses, doubles and reorders;
// processes of both sides hang, are stopped, leave and die, in the middle of copies too.
type world struct {
	t         *testing.T
	rng       *rand.Rand
	now       Time
	lenders   []*lending
	borrowers []*process
	queue     []delivery
	lives     []int // of loans: which life of its borrower's process each is of
	count     counts
}

type counts struct{ reads, moved, kills, returns, left, crashed int }

// lending is a lender's process. The one that comes after its end has an arena of its own.
type lending struct {
	l       *Lender
	born    int
	floor   int
	shares  int // borrowers there may be
	offer   int // units from here on may be lent
	memory  *[]string
	marks   []string // what the lender wrote into its own units, as long as they are
	stopped Time     // until then it does nothing
	wants   []want
}

type want struct {
	border int
	by     Time
}

type process struct {
	born   int
	loans  []*loan // of each lender; nil: none
	copies []copying
	stuck  Time // until then it does nothing
}

type loan struct {
	b      *Borrower
	life   uint64
	lender int           // the life of the lender it is of
	table  map[int]entry // what it believes its units hold
	leaves bool          // it gave everything back
	closed bool          // the lender is gone, and it knows
}

type entry struct {
	value string
	epoch uint64
}

// place is a unit of a loan.
type place struct {
	of     *loan
	memory *[]string
	lender int // index
	unit   int
}

// copying is a copy: of value or, where it has a source, of what is read there at a moment.
type copying struct {
	from, to *place // nil: host memory
	value    string
	took, at Time // when it reads, when it writes
	saw      bool
}

type delivery struct {
	at             Time
	m              Message
	lender, born   int // the lender it comes from or goes to, in which life
	toLender, ends bool
}

func newWorld(t *testing.T, rng *rand.Rand) *world {
	w := &world{t: t, rng: rng}
	n := 1 + rng.IntN(4)
	for range 1 + rng.IntN(4) {
		w.lenders = append(w.lenders, w.lender(n, 0))
	}
	for range n {
		w.borrowers = append(w.borrowers, &process{loans: make([]*loan, len(w.lenders))})
	}
	return w
}

func (w *world) lender(shares, born int) *lending {
	n := 4 + w.rng.IntN(12)
	x := &lending{born: born, floor: w.rng.IntN(3), shares: shares, offer: n, marks: make([]string, n)}
	x.memory = &[]string{}
	*x.memory = make([]string, n)
	var err error
	x.l, err = NewLender(n, x.floor, times)
	require.NoError(w.t, err)
	return x
}

func (w *world) fail(what string, args ...any) {
	w.t.Helper()
	require.FailNow(w.t, fmt.Sprintf(what, args...), "at %v", w.now)
}

func (w *world) send(i int, toLender bool, list ...Message) {
	for _, m := range list {
		d := delivery{w.now, m, i, w.lenders[i].born, toLender, false}
		if m.Kind == Kill {
			w.count.kills++
			d.at += Time(w.rng.IntN(5)) * ms // the operating system ends it, in a while
			w.queue = append(w.queue, d)
			continue
		}
		for n := 1 + w.rng.IntN(10)/9 - w.rng.IntN(10)/9; n > 0; n-- {
			d.at = w.now + Time(w.rng.IntN(4000))*time.Microsecond
			w.queue = append(w.queue, d)
		}
	}
}

// die ends a borrower's process: its copies with it. Its lenders see that at once, by its pidfd.
func (w *world) die(id int) {
	w.borrowers[id] = &process{born: w.borrowers[id].born + 1, loans: make([]*loan, len(w.lenders))}
	for _, x := range w.lenders {
		x.l.Gone(id)
	}
}

// crash ends a lender's process. Its borrowers hear of it by the end of the connection; what they have
// mapped stays until they let go of it, and is nobody's.
func (w *world) crash(i int) {
	w.count.crashed++
	old := w.lenders[i]
	for id := range w.borrowers {
		w.queue = append(w.queue, delivery{w.now + Time(w.rng.IntN(3000))*time.Microsecond, Message{Borrower: id}, i, old.born, false, true})
	}
	w.lenders[i] = w.lender(old.shares, old.born+1)
}

func (w *world) step() {
	w.now += Time(w.rng.IntN(1000)) * time.Microsecond
	w.deliver()
	for id := range w.borrowers {
		w.work(id)
	}
	for i, x := range w.lenders {
		if w.now >= x.stopped {
			w.send(i, false, x.l.Tick(w.now)...)
			w.own(i)
		}
		w.check(i)
	}
	w.happen()
}

// deliver hands out the mail that is due, in any order.
func (w *world) deliver() {
	var due, rest []delivery
	for _, d := range w.queue {
		if d.at <= w.now {
			due = append(due, d)
		} else {
			rest = append(rest, d)
		}
	}
	w.queue = rest
	w.rng.Shuffle(len(due), func(i, j int) { due[i], due[j] = due[j], due[i] })
	for _, d := range due {
		x, p := w.lenders[d.lender], w.borrowers[d.m.Borrower]
		k := p.loans[d.lender]
		late := func(t Time) { d.at = t; w.queue = append(w.queue, d) }
		switch {
		case d.m.Kind == Kill:
			if p.born == w.lives[d.m.Life] { // a pidfd never means a later process
				w.die(d.m.Borrower)
			}
		case d.toLender && w.now < x.stopped: // it reads its mail later
			late(x.stopped)
		case d.toLender && d.born == x.born:
			w.send(d.lender, false, x.l.Receive(w.now, d.m)...)
		case d.toLender: // there is nobody any more
		case w.now < p.stuck:
			late(p.stuck)
		case k == nil || k.lender != d.born:
		case d.ends:
			k.closed = true
			k.b.Return()
		default:
			w.send(d.lender, true, k.b.Receive(d.m)...)
		}
	}
}

// happen has a border move, somebody hang, leave or die.
func (w *world) happen() {
	i, id := w.rng.IntN(len(w.lenders)), w.rng.IntN(len(w.borrowers))
	x, p := w.lenders[i], w.borrowers[id]
	awake := w.now >= x.stopped
	switch w.rng.IntN(40) {
	case 0, 1: // up: it wants memory back
		if to := x.floor + w.rng.IntN(len(x.marks)-x.floor+1); awake && to > x.l.Border() {
			x.offer = to
			x.wants = slices.DeleteFunc(x.wants, func(v want) bool { return v.border > to }) // no longer wanted
			x.wants = append(x.wants, want{to, w.now + times.Reclaim + 10*ms})
			w.send(i, false, x.l.Reclaim(w.now, to)...)
		}
	case 2, 3, 4: // down, and it keeps its floor whatever it offers
		if to := w.rng.IntN(len(x.marks) + 1); awake && to < x.offer && len(x.wants) == 0 {
			x.offer = to
		}
	case 5:
		if w.rng.IntN(4) == 0 {
			w.die(id)
		}
	case 6:
		if k := p.loans[i]; k != nil && !k.leaves && w.now >= p.stuck {
			k.leaves = true
			w.send(i, true, k.b.Return()...)
		}
	case 7:
		if w.rng.IntN(4) == 0 {
			p.stuck = w.now + Time(w.rng.IntN(60))*ms
		}
	case 8:
		if w.rng.IntN(8) == 0 {
			w.crash(i)
		}
	case 9: // stopped for longer than it gives others, or not: it gives them the time back
		if awake && w.rng.IntN(6) == 0 {
			x.stopped = w.now + Time(w.rng.IntN(40))*ms
			for j := range x.wants {
				x.wants[j].by += x.stopped - w.now + times.Reclaim
			}
		}
	}
}

// own has a lender lend what it offers, use what is its own, and find what it wrote there.
func (w *world) own(i int) {
	x := w.lenders[i]
	if x.l.Border() >= x.offer {
		var wants []Want
		for id, p := range w.borrowers {
			if k := p.loans[i]; k != nil && k.lender == x.born && !k.leaves {
				wants = append(wants, Want{Borrower: id, Life: k.life, Units: id % 3 * 2})
			}
		}
		w.send(i, false, x.l.Share(w.now, x.offer, x.shares, wants)...)
	}
	border := min(x.offer, x.l.Border())
	for u := range x.marks {
		if x.marks[u] != "" && (*x.memory)[u] != x.marks[u] {
			w.fail("somebody wrote %q into unit %d, which is the lender's", (*x.memory)[u], u)
		}
		if x.marks[u] = ""; u < border { // it takes what it has got back
			x.marks[u] = fmt.Sprint("lender's at ", w.now)
			(*x.memory)[u] = x.marks[u]
		}
	}
	left := x.wants[:0]
	for _, v := range x.wants {
		switch {
		case x.l.Border() >= v.border:
			w.count.returns++
		case w.now >= v.by+2*ms:
			w.fail("memory is back within its deadline, %v", v.by)
		default:
			left = append(left, v)
		}
	}
	x.wants = left
}

// check looks at what a lender has given: beyond the floor, nothing twice, no more than a share, and
// nobody believes that it has more.
func (w *world) check(i int) {
	x := w.lenders[i]
	if x.l.Border() < x.floor {
		w.fail("the floor")
	}
	owner := make([]int, len(x.marks))
	for id, p := range w.borrowers {
		lent := x.l.Lent(id)
		if lent.Len() > max(1, (len(x.marks)-x.floor)/x.shares) {
			w.fail("borrower %d has more than its share: %v", id, lent)
		}
		for u := lent.From; u < lent.To; u++ {
			if owner[u] != 0 {
				w.fail("unit %d is lent twice", u)
			}
			owner[u] = 1 + id
		}
		if k := p.loans[i]; k != nil && k.lender == x.born {
			if has := k.b.Has(); has.Len() > 0 && (has.From < lent.From || has.To > lent.To) {
				w.fail("borrower %d believes it has %v and was lent %v", id, has, lent)
			}
		}
	}
}

// land carries copies as far as they have got, whether their process is stuck or not: a process
// that hangs does not stop its GPU.
func (w *world) land(p *process) (done []copying) {
	rest := p.copies[:0]
	for _, c := range p.copies {
		if c.from != nil && !c.saw && w.now >= c.took {
			c.value, c.saw = (*c.from.memory)[c.from.unit], true
		}
		if c.at > w.now {
			rest = append(rest, c)
			continue
		}
		if to := c.to; to != nil && c.value != "" {
			if x := w.lenders[to.lender]; x.memory == to.memory && to.unit < x.l.Border() {
				w.fail("a late copy lands in unit %d, which is the lender's own", to.unit)
			}
			(*to.memory)[to.unit] = c.value
		}
		if w.now < p.stuck { // landed, and nobody there to note it
			c.at = p.stuck
			rest = append(rest, c)
			continue
		}
		done = append(done, c)
	}
	p.copies = rest
	return done
}

// work lands a borrower's copies, notes what came of them, and has it do something.
func (w *world) work(id int) {
	p := w.borrowers[id]
	done := w.land(p)
	if w.now < p.stuck {
		return
	}
	for _, c := range done {
		w.ended(c)
	}
	for i, x := range w.lenders {
		k := p.loans[i]
		switch {
		case k == nil:
			if w.now >= x.stopped && w.rng.IntN(10) == 0 && x.l.Lent(id).Len() == 0 { // it connects
				life := uint64(len(w.lives))
				w.lives = append(w.lives, p.born)
				p.loans[i] = &loan{b: NewBorrower(id, life), life: life, lender: x.born, table: map[int]entry{}}
			}
		case p.uses(k): // what it has mapped stays until its copies are done
		case k.closed, k.leaves && (k.lender != x.born || x.l.Lent(id).Len() == 0):
			if k.leaves && !k.closed {
				w.count.left++
			}
			p.loans[i] = nil
		case w.rng.IntN(3) == 0:
			w.send(i, true, k.b.Renew())
			if k.leaves { // until the lender has heard it
				w.send(i, true, k.b.Return()...)
			}
		}
	}
	if len(p.copies) < 4 {
		w.begin(p)
	}
}

// uses says that a copy of a loan's units is under way.
func (p *process) uses(k *loan) bool {
	for _, c := range p.copies {
		if c.from != nil && c.from.of == k || c.to != nil && c.to.of == k {
			return true
		}
	}
	return false
}

// ended notes what a copy brought.
func (w *world) ended(c copying) {
	source, valid := entry{}, true
	if f := c.from; f != nil {
		ok, out := f.of.b.End(w.now, f.unit)
		w.reply(f, out)
		e, known := f.of.table[f.unit]
		source, valid = e, ok && c.saw && known && e.epoch >= f.of.b.Since(f.unit)
		if valid && e.value != c.value {
			w.fail("a read that is believed is right: %q, not %q", e.value, c.value)
		}
		if valid {
			w.count.reads++
		}
	}
	if to := c.to; to != nil {
		ok, out := to.of.b.End(w.now, to.unit)
		w.reply(to, out)
		delete(to.of.table, to.unit)
		if valid && ok {
			if c.from != nil {
				w.count.moved++
				c.value = source.value
			}
			to.of.table[to.unit] = entry{c.value, to.of.b.Epoch()}
		}
	}
}

func (w *world) reply(at *place, out []Message) {
	if w.lenders[at.lender].born == at.of.lender {
		w.send(at.lender, true, out...)
	}
}

// pick is a unit the process may use now and has no copy under way in.
func (w *world) pick(p *process) *place {
	i := w.rng.IntN(len(w.lenders))
	k := p.loans[i]
	if k == nil || k.closed {
		return nil
	}
	u := k.b.Units(w.now)
	if u.Len() == 0 {
		return nil
	}
	at := &place{of: k, memory: w.lenders[i].memory, lender: i, unit: u.From + w.rng.IntN(u.Len())}
	for _, c := range p.copies { // one at a time in a unit, as its own table sees to
		for _, o := range []*place{c.from, c.to} {
			if o != nil && o.of == k && o.unit == at.unit {
				return nil
			}
		}
	}
	return at
}

// begin starts a read, a write, or a move from one lender's memory to another's.
func (w *world) begin(p *process) {
	at := w.pick(p)
	if at == nil || at.of.lender != w.lenders[at.lender].born { // the lender is gone, and it does not know yet
		return
	}
	c := copying{at: w.now + Time(w.rng.IntN(6000))*time.Microsecond}
	c.took = w.now + Time(w.rng.Float64()*float64(c.at-w.now))
	e, known := at.of.table[at.unit]
	if known && e.epoch >= at.of.b.Since(at.unit) && w.rng.IntN(3) > 0 {
		if c.from = at; w.rng.IntN(3) == 0 {
			if to := w.pick(p); to != nil && (to.of != at.of || to.unit != at.unit) && to.of.lender == w.lenders[to.lender].born {
				c.to = to
			}
		}
	} else {
		c.to, c.value = at, fmt.Sprintf("%p at %v", p, w.now)
	}
	for _, o := range []*place{c.from, c.to} {
		if o != nil && !o.of.b.Begin(w.now, o.unit) {
			w.fail("what it has it may use")
		}
	}
	p.copies = append(p.copies, c)
}

// No byte that is believed is wrong, nothing lands on the wrong side of a border, and memory is back
// within its deadline, whatever happens among several lenders and borrowers.
func TestRandomSchedules(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	schedules := uint64(1200)
	if testing.Short() {
		schedules = 200
	}
	var all counts
	for i := range schedules {
		w := newWorld(t, rand.New(rand.NewPCG(seed, i)))
		for range 300 {
			w.step()
		}
		c := w.count
		all = counts{all.reads + c.reads, all.moved + c.moved, all.kills + c.kills, all.returns + c.returns, all.left + c.left, all.crashed + c.crashed}
	}
	t.Logf("%d schedules: %+v", schedules, all)
	for _, n := range []int{all.reads, all.moved, all.kills, all.returns, all.left, all.crashed} {
		require.Positive(t, n, "%+v", all)
	}
}
