package lend

import (
	"fmt"
	"slices"
	"time"

	"github.com/skepkv/skep"
)

// Time is a moment, in the caller's clock.
type Time = time.Duration

// Units are [From, To) of an arena.
type Units struct{ From, To int }

// Len is how many there are.
func (u Units) Len() int { return max(0, u.To-u.From) }

// Kind says what a message is. The numbers travel between processes.
type Kind uint8

const (
	Grant  Kind = 1 // lender: these units, all that the borrower has, until then
	Revoke Kind = 2 // lender: of them, only these from now on; acknowledge before then
	Renew  Kind = 3 // borrower: it lives
	Ack    Kind = 4 // borrower: nothing of it touches what it has no more
	Kill   Kind = 5 // lender to whoever can: end the borrower's process
	Return Kind = 6 // borrower: nothing of it touches anything, and it takes no more
)

// Message goes from a lender to one of its borrowers or back. Units are those the borrower
// has after it. Life tells a borrower's process from those of the same number before it,
// whose mail may still be under way.
type Message struct {
	Kind     Kind
	Borrower int
	Life     uint64
	Epoch    uint64
	Units    Units
	Until    Time
}

// Config are the times of a lender.
type Config struct {
	Lease   time.Duration // how long a grant holds without renewal
	Reclaim time.Duration // how long a borrower has to drain
}

func (c Config) validate() error {
	if c.Lease <= 0 || c.Lease > time.Hour {
		return skep.Invalidf("lend", "lease", c.Lease, "more than 0, at most 1h")
	}
	if c.Reclaim <= 0 || c.Reclaim > time.Hour {
		return skep.Invalidf("lend", "reclaim", c.Reclaim, "more than 0, at most 1h")
	}
	return nil
}

// Lender is the side that owns the arena. Units below its border are its own; those above
// belong to borrowers, each a range of its own, or are free to be lent.
type Lender struct {
	config Config
	units  int
	floor  int
	peers  map[int]*peer
	seen   Time // when it was last at work; 0: never
}

// peer is a borrower as its lender sees it.
type peer struct {
	life   uint64
	epoch  uint64
	grant  uint64       // the epoch of its last grant
	has    Units        // may be in use by it
	keeps  Units        // after the revocations under way; else has
	owes   []revocation // oldest first: none of them acknowledged, no grant among them
	by     Time         // when it is to have acknowledged the oldest
	until  Time         // of its lease
	killed bool
}

// revocation is one that was not acknowledged yet.
type revocation struct {
	epoch uint64
	keeps Units
	by    Time
}

// acknowledged takes an Ack of one of the revocations under way: nothing of the borrower touches what that took, nor
// what those before it did.
func (p *peer) acknowledged(epoch uint64) {
	i := slices.IndexFunc(p.owes, func(r revocation) bool { return r.epoch == epoch })
	if i < 0 {
		return
	}
	p.has = p.owes[i].keeps
	if p.owes = p.owes[i+1:]; len(p.owes) > 0 {
		p.by = p.owes[0].by
	}
}

// NewLender makes a lender of an arena of n units, floor of which it never lends.
func NewLender(n, floor int, c Config) (*Lender, error) {
	if n < 1 || floor < 0 || floor > n {
		return nil, skep.Invalidf("lend", "units and floor", fmt.Sprint(n, " ", floor), "1 or more, and 0 to as many")
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	return &Lender{config: c, units: n, floor: floor, peers: map[int]*peer{}}, nil
}

// Border is how many units are surely the lender's own: no borrower can touch a lower one.
func (l *Lender) Border() int {
	border := l.units
	for _, p := range l.peers {
		if p.has.Len() > 0 {
			border = min(border, p.has.From)
		}
	}
	return border
}

// Lent is what a borrower may be using.
func (l *Lender) Lent(borrower int) Units {
	if p := l.peers[borrower]; p != nil {
		return p.has
	}
	return Units{}
}

// Lend grants a borrower, in the given life of its, n units next below all that is lent, or
// as many as there are above the floor. A borrower that has some gets more if they come next
// below its own and it owes no acknowledgement; its lease goes on as it was.
func (l *Lender) Lend(now Time, borrower int, life uint64, n int) []Message {
	l.awake(now)
	p := l.peers[borrower]
	if p == nil {
		p = &peer{}
		l.peers[borrower] = p
	}
	border := l.Border()
	n = min(n, border-l.floor)
	switch {
	case n < 1 || p.killed || len(p.owes) > 0:
		return nil
	case p.has.Len() == 0:
		p.life, p.has, p.until = life, Units{border - n, border}, now+l.config.Lease
	case p.life == life && p.has.From == border:
		p.has.From -= n
	default:
		return nil
	}
	p.epoch++
	p.keeps, p.grant = p.has, p.epoch
	return []Message{l.grant(borrower, p)}
}

// Want is a borrower that takes what it is given.
type Want struct {
	Borrower int
	Life     uint64
	Units    int // at most; 0: as many as there are
}

// Share lends units down to the given one among borrowers, in the order given: none gets more than
// it wants, nor more than an equal share, of so many shares, of what may be lent at all. The
// first one has its share before the second has any, because what a borrower has is one range,
// which grows at its lower end only: equal parts of little would leave the first no way to grow.
func (l *Lender) Share(now Time, down, shares int, wants []Want) (out []Message) {
	share := max(1, (l.units-l.floor)/max(shares, 1))
	for _, w := range wants {
		n := share
		if w.Units > 0 {
			n = min(n, w.Units)
		}
		n = min(n-l.Lent(w.Borrower).Len(), l.Border()-down)
		if n > 0 {
			out = append(out, l.Lend(now, w.Borrower, w.Life, n)...)
		}
	}
	return out
}

func (l *Lender) grant(id int, p *peer) Message {
	return Message{Grant, id, p.life, p.epoch, p.has, p.until}
}

// Reclaim takes units back until the border is at least at want: at once from every borrower that has some below it,
// and no more than these. The messages are in the order of the borrowers' numbers. Units are the lender's when Border
// says so.
func (l *Lender) Reclaim(now Time, want int) []Message {
	l.awake(now)
	want = min(want, l.units)
	var out []Message
	for _, id := range l.ids() {
		p := l.peers[id]
		if p.keeps.Len() == 0 || p.keeps.From >= want {
			continue
		}
		p.epoch++
		p.keeps = Units{min(want, p.keeps.To), p.keeps.To}
		if p.owes = append(p.owes, revocation{p.epoch, p.keeps, now + l.config.Reclaim}); len(p.owes) == 1 {
			p.by = p.owes[0].by
		}
		out = append(out, l.revoke(id, p))
	}
	return out
}

func (l *Lender) revoke(id int, p *peer) Message {
	return Message{Revoke, id, p.life, p.epoch, p.keeps, p.by}
}

func (l *Lender) ids() []int {
	ids := make([]int, 0, len(l.peers))
	for id := range l.peers {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// awake notes that the lender is at work. What passed since it last was, when that is longer
// than a revocation may take, borrowers get back: its process or its machine was stopped, and
// their mail of that time has not been read yet.
func (l *Lender) awake(now Time) {
	if gap := now - l.seen; l.seen > 0 && gap > l.config.Reclaim {
		for _, p := range l.peers {
			p.by, p.until = p.by+gap, p.until+gap
			for i := range p.owes {
				p.owes[i].by += gap
			}
		}
	}
	l.seen = now
}

// Receive takes a borrower's message. What it says of an epoch before its last grant is old news, and is
// answered with the present state.
func (l *Lender) Receive(now Time, m Message) []Message {
	l.awake(now)
	p := l.peers[m.Borrower]
	if p == nil || p.killed || p.life != m.Life || m.Epoch > p.epoch || m.Kind != Ack && m.Kind != Renew && m.Kind != Return {
		return nil
	}
	switch {
	case m.Kind == Ack:
		p.acknowledged(m.Epoch)
	case m.Kind == Return && m.Epoch >= p.grant:
		p.has, p.keeps, p.owes = Units{}, Units{}, nil
	}
	if p.has.Len() == 0 {
		return nil
	}
	p.until = now + l.config.Lease
	if len(p.owes) > 0 {
		return []Message{l.revoke(m.Borrower, p)} // the first may be lost
	}
	return []Message{l.grant(m.Borrower, p)}
}

// Tick says what a moment brings: revocations are repeated, and who has not acknowledged in
// time, or let its lease run out, is to be ended. It is to be called several times in the
// shorter of lease and reclaim: a longer pause is taken for the lender's own.
func (l *Lender) Tick(now Time) []Message {
	l.awake(now)
	var out []Message
	for _, id := range l.ids() {
		p := l.peers[id]
		if p.has.Len() == 0 || p.killed {
			continue
		}
		switch {
		case len(p.owes) > 0 && now >= p.by, now >= p.until+l.config.Reclaim:
			p.killed = true
			out = append(out, Message{Kind: Kill, Borrower: id, Life: p.life, Epoch: p.epoch})
		case len(p.owes) > 0:
			out = append(out, l.revoke(id, p))
		}
	}
	return out
}

// Gone says that a borrower's process has ended, and with it its copies: all it had is the
// lender's. A borrower of the same number may borrow again.
func (l *Lender) Gone(borrower int) {
	if p := l.peers[borrower]; p != nil {
		p.epoch++
		p.has, p.keeps = Units{}, Units{}
		p.owes, p.killed = nil, false
	}
}

// Loan is what a borrower has, as its lender sees it.
type Loan struct {
	Borrower int
	Life     uint64
	Epoch    uint64
	Units    Units // that it may be using
	Keeps    Units // of them, after a revocation under way
	Revoking bool
	By       Time // when the revocation is to be acknowledged
	Until    Time // of its lease
	Killed   bool // its end was asked for
}

// Loans are those of all borrowers that may be using something, by number.
func (l *Lender) Loans() []Loan {
	var out []Loan
	for _, id := range l.ids() {
		if p := l.peers[id]; p.has.Len() > 0 {
			out = append(out, Loan{id, p.life, p.epoch, p.has, p.keeps, len(p.owes) > 0, p.by, p.until, p.killed})
		}
	}
	return out
}
