package pace

import "time"

// Pair is the lookups at one node. What is asked while the node gives the client bytes waits behind them, as long as its
// link is full: that says nothing of how quick the node is otherwise, nor of others that owe nothing. So the two kinds
// have a line each.
type Pair struct{ rest, laden *Line }

// NewPair makes two lines of which nothing is known.
func NewPair(k Kind) Pair {
	p := Pair{NewLine(k), NewLine(k)}
	p.laden.laden = true
	return p
}

// Line is the line of a lookup that begins; laden says that the node owes the client bytes.
func (p Pair) Line(laden bool) *Line {
	if laden {
		return p.laden
	}
	return p.rest
}

// Probe is Line.Probe of what is known of the node at rest, as a call of the line that laden says. What the answer of a
// laden node takes is the most that it takes at rest: it counts there where it is less than was expected.
func (p Pair) Probe(now time.Time, laden bool) *Call {
	if !laden {
		return p.rest.Probe(now)
	}
	if !p.rest.probes(now) {
		return nil
	}
	c := p.laden.Begin(now)
	c.of = p.rest
	return c
}

// Both is what is usual of lookups at nodes that owe the client nothing, and at others.
type Both struct{ rest, laden Others }

// UsualOf looks at the nodes' lines. A pair without lines is not looked at.
func UsualOf(now time.Time, pairs []Pair) Both {
	rest, laden := make([]*Line, len(pairs)), make([]*Line, len(pairs))
	for i, p := range pairs {
		rest[i], laden[i] = p.rest, p.laden
	}
	return Both{Usual(now, rest), Usual(now, laden)}
}

// Due is Others.Due, of the line's kind.
func (b Both) Due(l *Line) time.Duration {
	if l.laden {
		return b.laden.Due(l)
	}
	return b.rest.Due(l)
}
