package lend

import "slices"

// Borrower is the side that uses what it was lent.
type Borrower struct {
	id     int
	life   uint64
	epoch  uint64
	since  map[int]uint64 // by unit: the epoch from which on it has had it
	units  Units
	until  Time
	owes   []revocation // not acknowledged yet, oldest first
	owed   bool         // a Return for epoch
	over   bool         // it gives everything back, and takes nothing any more
	active map[int]int  // copies under way, by unit
}

// NewBorrower makes borrower number id of a lender, in a life that no process of this
// number has had before: a random number does.
func NewBorrower(id int, life uint64) *Borrower {
	return &Borrower{id: id, life: life, since: map[int]uint64{}, active: map[int]int{}}
}

// Units is what may be used at a moment: nothing once the lease has ended.
func (b *Borrower) Units(now Time) Units {
	if now >= b.until {
		return Units{}
	}
	return b.units
}

// Has is what it was lent, whether the lease still holds or not, and Until when that ends.
func (b *Borrower) Has() Units { return b.units }

// Until is when the lease ends.
func (b *Borrower) Until() Time { return b.until }

// Epoch is the epoch of Units.
func (b *Borrower) Epoch() uint64 { return b.epoch }

// Since is the epoch from which on a unit has been the borrower's all the time, if it is: what
// was written there under an earlier one is lost.
func (b *Borrower) Since(unit int) uint64 { return b.since[unit] }

// Renew asks for the lease to go on. To be sent well before it ends.
func (b *Borrower) Renew() Message {
	return Message{Kind: Renew, Borrower: b.id, Life: b.life, Epoch: b.epoch, Units: b.units}
}

// Receive takes a lender's message, in whatever order and however often it comes.
func (b *Borrower) Receive(m Message) []Message {
	switch {
	case m.Borrower != b.id || m.Life != b.life || m.Epoch < b.epoch:
		return nil
	case (m.Kind == Grant || m.Kind == Revoke) && b.over:
		b.epoch, b.owed = m.Epoch, true // it is told that all of it comes back
		b.owe(m, m.Units)
		return b.settle()
	case m.Kind == Grant:
		b.has(m.Units, m.Epoch)
		b.epoch, b.until = m.Epoch, max(b.until, m.Until)
		b.owe(m, m.Units)
		return nil
	case m.Kind == Revoke:
		b.epoch = m.Epoch
		b.has(Units{max(b.units.From, m.Units.From), min(b.units.To, m.Units.To)}, m.Epoch)
		b.owe(m, b.units)
		return b.settle()
	}
	return nil
}

// owe notes that a revocation is to be acknowledged; after a grant none is. One may come again.
func (b *Borrower) owe(m Message, keeps Units) {
	if m.Kind == Grant {
		b.owes = nil
	} else if n := len(b.owes); n == 0 || b.owes[n-1].epoch < m.Epoch {
		b.owes = append(b.owes, revocation{epoch: m.Epoch, keeps: keeps})
	}
}

// has takes u for what the borrower has. A unit it had before it has had all the time: the
// lender gives none to others before this borrower has acknowledged that it is gone.
func (b *Borrower) has(u Units, epoch uint64) {
	if u.Len() == 0 {
		u = Units{}
	}
	for unit := range b.since {
		if unit < u.From || unit >= u.To {
			delete(b.since, unit)
		}
	}
	for unit := u.From; unit < u.To; unit++ {
		if _, had := b.since[unit]; !had {
			b.since[unit] = epoch
		}
	}
	b.units = u
}

// Return gives everything back, now and whatever is still granted. The answer comes once
// nothing touches the units any more.
func (b *Borrower) Return() []Message {
	b.over, b.owed = true, true
	b.has(Units{}, b.epoch)
	return b.settle()
}

// Begin notes that a copy to or from a unit is to start. False: the unit may not be used.
func (b *Borrower) Begin(now Time, unit int) bool {
	if !b.holds(now, unit) {
		return false
	}
	b.active[unit]++
	return true
}

// End notes that a copy is done, and says whether what it copied may be believed: the unit
// is the borrower's still, and it cannot have been anybody else's meanwhile, because that
// takes an Ack, which waits for the copy. An Ack that waited for it comes with it.
func (b *Borrower) End(now Time, unit int) (valid bool, out []Message) {
	if b.active[unit]--; b.active[unit] <= 0 {
		delete(b.active, unit)
	}
	return b.holds(now, unit), b.settle()
}

func (b *Borrower) holds(now Time, unit int) bool {
	u := b.Units(now)
	return unit >= u.From && unit < u.To
}

// settle gives the Return that is owed once nothing of the borrower touches any unit, else the Ack of the newest
// revocation of which nothing touches what it took, nor what those before it did. Newer ones may wait for their copies
// yet: a lender ends who does not acknowledge the oldest in time.
func (b *Borrower) settle() []Message {
	if b.over && b.owed && len(b.active) == 0 {
		b.owed, b.owes = false, nil
		return []Message{{Kind: Return, Borrower: b.id, Life: b.life, Epoch: b.epoch}}
	}
	for i, r := range slices.Backward(b.owes) {
		if b.within(r.keeps) {
			b.owes = b.owes[i+1:]
			return []Message{{Kind: Ack, Borrower: b.id, Life: b.life, Epoch: r.epoch, Units: r.keeps}}
		}
	}
	return nil
}

// within says whether all copies under way are in u.
func (b *Borrower) within(u Units) bool {
	for unit := range b.active {
		if unit < u.From || unit >= u.To {
			return false
		}
	}
	return true
}
