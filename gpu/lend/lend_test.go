package lend

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

const ms = time.Millisecond

var times = Config{Lease: 100 * ms, Reclaim: 10 * ms}

// Lent, taken back in part, acknowledged only when the last copy is done.
func TestReclaim(t *testing.T) {
	l, err := NewLender(10, 2, times)
	require.NoError(t, err)
	b := NewBorrower(7, 5)
	require.Equal(t, 10, l.Border())
	for _, m := range l.Lend(0, 7, 5, 100) {
		require.Equal(t, Message{Grant, 7, 5, 1, Units{2, 10}, 100 * ms}, m)
		require.Empty(t, b.Receive(m))
	}
	require.Equal(t, 2, l.Border(), "the floor stays")
	require.Empty(t, l.Lend(0, 7, 5, 1), "all are lent")
	require.Empty(t, l.Lend(0, 8, 5, 1), "there are none")

	require.True(t, b.Begin(1*ms, 3))
	require.True(t, b.Begin(1*ms, 8))
	revoke := l.Reclaim(2*ms, 6)
	require.Equal(t, []Message{{Revoke, 7, 5, 2, Units{6, 10}, 12 * ms}}, revoke)
	require.Empty(t, b.Receive(revoke[0]), "a copy is under way in unit 3")
	require.False(t, b.Begin(3*ms, 3))
	require.Equal(t, 2, l.Border(), "nothing is back")
	valid, acks := b.End(4*ms, 3)
	require.False(t, valid, "it was taken away meanwhile")
	require.Equal(t, []Message{{Kind: Ack, Borrower: 7, Life: 5, Epoch: 2, Units: Units{6, 10}}}, acks)
	require.Equal(t, []Message{{Grant, 7, 5, 2, Units{6, 10}, 105 * ms}}, l.Receive(5*ms, acks[0]))
	require.Equal(t, 6, l.Border())
	valid, _ = b.End(6*ms, 8)
	require.True(t, valid, "it kept that one")
	require.Equal(t, acks, b.Receive(revoke[0]), "asked again, it says it again")
}

// A border that moves down again gives the borrower more next to what it has, which it goes
// on believing; what it had to give back in between it does not.
func TestMore(t *testing.T) {
	l, err := NewLender(10, 0, times)
	require.NoError(t, err)
	b := NewBorrower(1, 9)
	b.Receive(l.Lend(0, 1, 9, 6)[0]) // [4, 10)
	revoke := l.Reclaim(1*ms, 7)
	require.Empty(t, l.Lend(1*ms, 1, 9, 1), "it owes an Ack")
	ack := b.Receive(revoke[0])
	l.Receive(2*ms, ack[0])
	require.Empty(t, l.Lend(3*ms, 1, 8, 2), "another life")
	more := l.Lend(3*ms, 1, 9, 2)
	require.Equal(t, []Message{{Grant, 1, 9, 3, Units{5, 10}, 102 * ms}}, more, "the lease is as it was")
	renewed := l.Receive(4*ms, b.Renew()) // the grant is lost; it comes again
	require.Equal(t, []Message{{Grant, 1, 9, 3, Units{5, 10}, 104 * ms}}, renewed)
	b.Receive(renewed[0])
	require.Equal(t, Units{5, 10}, b.Units(5*ms))
	require.EqualValues(t, 3, b.Since(5))
	require.EqualValues(t, 1, b.Since(7))
	require.Equal(t, []Loan{{Borrower: 1, Life: 9, Epoch: 3, Units: Units{5, 10}, Keeps: Units{5, 10}, By: 11 * ms, Until: 104 * ms}}, l.Loans())

	// It leaves while more is on its way to it.
	require.True(t, b.Begin(5*ms, 9))
	l.Lend(5*ms, 1, 9, 5)
	require.Empty(t, b.Return(), "a copy is under way")
	_, out := b.End(6*ms, 9)
	require.Equal(t, []Message{{Kind: Return, Borrower: 1, Life: 9, Epoch: 3}}, out)
	again := l.Receive(7*ms, out[0])
	require.Equal(t, Grant, again[0].Kind, "it may be using what was granted meanwhile")
	require.Zero(t, l.Border())
	out = b.Receive(again[0])
	require.Empty(t, l.Receive(8*ms, out[0]))
	require.Equal(t, 10, l.Border())
	require.Empty(t, l.Loans())
}

// Neither a deadline nor the end of a lease gives memory back: the end of the process does.
func TestStuckBorrower(t *testing.T) {
	l, err := NewLender(4, 0, times)
	require.NoError(t, err)
	b := NewBorrower(1, 0)
	b.Receive(l.Lend(0, 1, 0, 4)[0])
	require.True(t, b.Begin(0, 0))
	b.Receive(l.Reclaim(1*ms, 4)[0])
	require.Equal(t, Revoke, l.Tick(5 * ms)[0].Kind, "repeated")
	require.Equal(t, []Message{{Kind: Kill, Borrower: 1, Epoch: 2}}, l.Tick(11*ms))
	require.Empty(t, l.Tick(12*ms), "once")
	require.Zero(t, l.Border())
	require.Empty(t, l.Receive(13*ms, Message{Kind: Ack, Borrower: 1, Epoch: 2}), "too late to be believed")
	l.Gone(1)
	require.Equal(t, 4, l.Border())
	grant := l.Lend(14*ms, 1, 0, 2)
	require.EqualValues(t, 4, grant[0].Epoch, "no epoch twice")
	require.Equal(t, Units{1, 4}, l.Lend(14*ms, 1, 0, 1)[0].Units, "one range a borrower")
	l.Gone(1)

	quiet := NewBorrower(2, 0)
	quiet.Receive(l.Lend(20*ms, 2, 0, 1)[0])
	require.True(t, quiet.Begin(119*ms, 3))
	require.False(t, quiet.Begin(120*ms, 3), "its lease has ended")

	silent, err := NewLender(4, 0, times)
	require.NoError(t, err)
	silent.Lend(0, 1, 0, 4)
	for at := 1 * ms; at < 110*ms; at += 9 * ms {
		require.Empty(t, silent.Tick(at))
	}
	require.Equal(t, Kill, silent.Tick(110 * ms)[0].Kind)
}

// A lender that was stopped for long has read no mail: who owed it an Ack, or a renewal, has
// after that the time it had before.
func TestStoppedLender(t *testing.T) {
	l, err := NewLender(4, 0, times)
	require.NoError(t, err)
	b := NewBorrower(1, 7)
	b.Receive(l.Lend(1*ms, 1, 7, 4)[0])
	require.Empty(t, l.Tick(5*ms))
	ack := b.Receive(l.Reclaim(6*ms, 2)[0])
	require.False(t, b.Begin(5000*ms, 3), "it uses nothing meanwhile: its lease ended")
	require.Equal(t, Revoke, l.Tick(5000 * ms)[0].Kind, "the Ack is there, and not read yet")
	require.Equal(t, Grant, l.Receive(5001*ms, ack[0])[0].Kind)
	require.Equal(t, 2, l.Border())
	require.Empty(t, l.Tick(5005*ms))

	l.Reclaim(5005*ms, 4)
	require.Equal(t, Revoke, l.Tick(9000 * ms)[0].Kind)
	require.Equal(t, Revoke, l.Tick(9005 * ms)[0].Kind)
	require.Equal(t, Kill, l.Tick(9012 * ms)[0].Kind, "no longer than that")
}

func TestBadConfig(t *testing.T) {
	for _, c := range []Config{{}, {Lease: 1}, {Reclaim: 1}, {Lease: 2 * time.Hour, Reclaim: 1}} {
		_, err := NewLender(1, 0, c)
		require.ErrorIs(t, err, skep.Invalid)
	}
	_, err := NewLender(1, 2, times)
	require.ErrorIs(t, err, skep.Invalid)
}

// run is one random schedule: a lender, borrowers that read and write what they were lent
// by copies that land late, a network that loses, doubles and reorders, processes that hang
// and die.
type run struct {
	t       *testing.T
	rng     *rand.Rand
	now     Time
	l       *Lender
	memory  []string // what each unit holds
	b       map[int]*process
	queue   []delivery
	wants   []want
	reads   int // believed
	kills   int
	returns int // reclaims that came back
	left    int // borrowers that gave all back
}

type delivery struct {
	at       Time
	m        Message
	toLender bool
}

type want struct {
	border int
	by     Time
}

type process struct {
	b      *Borrower
	table  map[int]entry // what it believes its units hold
	copies []copying
	stuck  Time // until then it does nothing
	leaves bool // it gave everything back
	born   int
}

type entry struct {
	value string
	epoch uint64
}

type copying struct {
	at    Time
	unit  int
	write string // "" for a read
	read  string
	took  Time // when a read looked
	saw   bool
}

func (r *run) send(toLender bool, list ...Message) {
	for _, m := range list {
		if m.Kind == Kill {
			r.kills++
			// The operating system ends it, in a while.
			r.queue = append(r.queue, delivery{r.now + Time(r.rng.IntN(5))*ms, m, false})
			continue
		}
		for n := 1 + r.rng.IntN(10)/9 - r.rng.IntN(10)/9; n > 0; n-- {
			r.queue = append(r.queue, delivery{r.now + Time(r.rng.IntN(4000))*time.Microsecond, m, toLender})
		}
	}
}

// die ends a process: its copies with it.
func (r *run) die(id int) {
	born := r.b[id].born
	r.b[id] = &process{b: NewBorrower(id, uint64(born+1)), table: map[int]entry{}, born: born + 1}
	r.l.Gone(id)
}

func (r *run) step() {
	r.now += Time(r.rng.IntN(1000)) * time.Microsecond
	rest := r.queue[:0:0]
	due := []delivery{}
	for _, d := range r.queue {
		if d.at <= r.now {
			due = append(due, d)
		} else {
			rest = append(rest, d)
		}
	}
	r.queue = rest
	r.rng.Shuffle(len(due), func(i, j int) { due[i], due[j] = due[j], due[i] })
	for _, d := range due {
		p := r.b[d.m.Borrower]
		switch {
		case d.m.Kind == Kill:
			r.die(d.m.Borrower)
		case d.toLender:
			r.send(false, r.l.Receive(r.now, d.m)...)
		case r.now < p.stuck: // it reads its mail later
			r.queue = append(r.queue, delivery{p.stuck, d.m, false})
		default:
			r.send(true, p.b.Receive(d.m)...)
		}
	}
	for id, p := range r.b {
		r.work(id, p)
	}
	r.send(false, r.l.Tick(r.now)...)
	r.own()
	switch r.rng.IntN(40) {
	case 0:
		to := 1 + r.rng.IntN(len(r.memory))
		if to > r.l.Border() {
			r.wants = append(r.wants, want{to, r.now + times.Reclaim + 10*ms})
			r.send(false, r.l.Reclaim(r.now, to)...)
		}
	case 1, 2:
		id := r.rng.IntN(len(r.b))
		if len(r.wants) > 0 {
			break // who wants memory back lends none
		}
		r.send(false, r.l.Lend(r.now, id, uint64(r.b[id].born), 1+r.rng.IntN(4))...)
	case 3:
		id := r.rng.IntN(len(r.b))
		switch r.rng.IntN(4) {
		case 0:
			r.die(id)
		case 1:
			r.send(true, r.b[id].b.Return()...)
			r.b[id].leaves = true
		}
	case 4:
		if r.rng.IntN(4) == 0 {
			r.b[r.rng.IntN(len(r.b))].stuck = r.now + Time(r.rng.IntN(60))*ms
		}
	}
}

// own has the lender use what is its own, and checks that it finds what it wrote.
func (r *run) own() {
	border := r.l.Border()
	if border < 1 {
		require.GreaterOrEqual(r.t, border, 1, "the floor")
	}
	for u := range border {
		if r.memory[u] != "lender" {
			r.memory[u] = "lender" // it takes what it has got back
		}
	}
	left := r.wants[:0]
	for _, w := range r.wants {
		switch {
		case border >= w.border:
			r.returns++
		default:
			if r.now >= w.by+2*ms {
				require.FailNow(r.t, "memory is back within its deadline")
			}
			left = append(left, w)
		}
	}
	r.wants = left
}

// work lands copies, whether the process is stuck or not, and has it do something.
func (r *run) work(id int, p *process) {
	var done []copying
	rest := p.copies[:0]
	for _, c := range p.copies {
		if c.write == "" && !c.saw && r.now >= c.took {
			c.read, c.saw = r.memory[c.unit], true
		}
		if c.at > r.now {
			rest = append(rest, c)
			continue
		}
		if c.write != "" {
			if c.unit < r.l.Border() {
				require.FailNow(r.t, "a late copy lands in the lender's own memory")
			}
			r.memory[c.unit] = c.write
		}
		if r.now < p.stuck { // landed, and nobody there to note it
			c.at = p.stuck
			c.write, c.saw = "", true
			rest = append(rest, c)
			continue
		}
		done = append(done, c)
	}
	p.copies = rest
	if p.leaves && len(p.copies) == 0 && r.l.Lent(id).Len() == 0 {
		r.left++ // its process ends in order, and the next one begins
		r.b[id] = &process{b: NewBorrower(id, uint64(p.born+1)), table: map[int]entry{}, born: p.born + 1}
		return
	}
	if r.now < p.stuck {
		return
	}
	for _, c := range done {
		valid, out := p.b.End(r.now, c.unit)
		r.send(true, out...)
		e, known := p.table[c.unit]
		if c.write == "" && c.saw && valid && known && e.epoch >= p.b.Since(c.unit) && c.read != "" {
			if e.value != c.read {
				require.Equal(r.t, e.value, c.read, "a read that is believed is right")
			}
			r.reads++
		}
	}
	if r.rng.IntN(3) == 0 {
		r.send(true, p.b.Renew())
		if p.leaves { // until the lender has heard it
			r.send(true, p.b.Return()...)
		}
	}
	u := p.b.Units(r.now)
	if u.Len() == 0 || len(p.copies) > 3 {
		return
	}
	unit := u.From + r.rng.IntN(u.Len())
	for _, c := range p.copies {
		if c.unit == unit {
			return // one at a time in a unit, as its own table sees to
		}
	}
	if !p.b.Begin(r.now, unit) {
		require.FailNow(r.t, "what it has it may use")
	}
	epoch := p.b.Epoch()
	c := copying{unit: unit, at: r.now + Time(r.rng.IntN(6000))*time.Microsecond}
	if e, known := p.table[unit]; known && e.epoch >= p.b.Since(unit) && r.rng.IntN(2) == 0 {
		c.took = r.now + Time(r.rng.Float64()*float64(c.at-r.now))
	} else {
		c.write = fmt.Sprintf("borrower %d.%d at %v", id, p.born, r.now)
		p.table[unit] = entry{c.write, epoch}
	}
	p.copies = append(p.copies, c)
}

func TestRandomSchedules(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	reads, kills, returns, left := 0, 0, 0, 0
	schedules := uint64(1200)
	if testing.Short() {
		schedules = 200
	}
	for i := range schedules {
		rng := rand.New(rand.NewPCG(seed, i))
		n := 4 + rng.IntN(12)
		l, err := NewLender(n, 1, times)
		require.NoError(t, err)
		r := &run{t: t, rng: rng, l: l, memory: make([]string, n), b: map[int]*process{}}
		for id := range 1 + rng.IntN(3) {
			r.b[id] = &process{b: NewBorrower(id, 0), table: map[int]entry{}}
		}
		for range 400 {
			r.step()
		}
		reads, kills, returns, left = reads+r.reads, kills+r.kills, returns+r.returns, left+r.left
	}
	t.Logf("%d reads believed, %d borrowers ended, %d left, %d reclaims came back", reads, kills, left, returns)
	require.Positive(t, left)
	require.Positive(t, reads)
	require.Positive(t, kills)
	require.Positive(t, returns)
}
