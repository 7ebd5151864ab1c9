package elastic

// Demand is what a lender's own work needs, in its blocks.
type Demand struct {
	Running  int // blocks of running requests
	Admitted int // blocks admitted requests will need for their prompts
	Growth   int // blocks decoding may add before the next decision
}

// Need is the blocks a demand asks for.
func (d Demand) Need() int { return max(d.Running, 0) + max(d.Admitted, 0) + max(d.Growth, 0) }

// ScaleUp says by how many units the border has to move up so that the lender has need
// blocks, at most what is lent. All running and admitted requests count; Algorithm 1 of the
// paper looks at one request (ScaleUpOne).
func (a *Arena) ScaleUp(d Demand) int {
	short := d.Need() - a.Capacity(Lender)
	if short <= 0 {
		return 0
	}
	return min((short+a.unit.Lender-1)/a.unit.Lender, a.units-a.border)
}

// ScaleDown says by how many units the border may move down when the lender's peak over a
// window was peak blocks and headroom more are to be kept: it is positive, and leaves the
// lender its floor.
func (a *Arena) ScaleDown(peak, headroom int) int {
	keep := max(peak, a.Used(Lender)) + max(headroom, 0)
	spare := a.Capacity(Lender) - keep
	if spare < a.unit.Lender {
		return 0
	}
	return min(spare/a.unit.Lender, a.border-a.floor)
}

// ScaleUpOne is Algorithm 1's ScaleUp: blocks to move for one request of the given length in
// tokens, in blocks of the lender and of the borrower.
func ScaleUpOne(blocks, blockTokens, meuLender, meuBorrower, requestTokens int) (lender, borrower int) {
	if blockTokens < 1 || meuLender < 1 {
		return 0, 0
	}
	need := (requestTokens + blockTokens - 1) / blockTokens
	if need <= blocks {
		return 0, 0
	}
	k := (need - blocks + meuLender - 1) / meuLender
	return k * meuLender, k * meuBorrower
}

// ScaleDownOne is Algorithm 1's ScaleDown: blocks to lend when the longest request of the
// window had the given length in tokens.
func ScaleDownOne(blocks, blockTokens, meuLender, meuBorrower, longestTokens int) (lender, borrower int) {
	if blockTokens < 1 || meuLender < 1 {
		return 0, 0
	}
	need := (longestTokens + blockTokens - 1) / blockTokens
	if need >= blocks {
		return 0, 0
	}
	k := (blocks - need) / meuLender
	return k * meuLender, k * meuBorrower
}

// Policy is how a lender decides where its border goes.
type Policy uint8

const (
	// AllRequests counts all running and admitted requests and their growth, and gives what the
	// peak of their blocks leaves over: ScaleUp and ScaleDown, what package loan does.
	AllRequests Policy = iota
	// OneRequest is the paper's Algorithm 1, which looks at the request that comes, and at the longest
	// one there was: ScaleUpOne and ScaleDownOne. To compare.
	OneRequest
)

func (p Policy) String() string {
	if p == OneRequest {
		return "algorithm-1"
	}
	return "all-requests"
}

// Seen is what a policy is asked with. AllRequests looks at blocks, OneRequest at tokens.
type Seen struct {
	Demand      Demand // now
	Peak        int    // blocks in use or asked for, of the window
	Headroom    int    // blocks to keep beyond it
	BlockTokens int
	Tokens      int // of the request that comes
	Longest     int // tokens of the longest one of the window
}

// Up is by how many units the border has to move up: at most what is lent.
func (p Policy) Up(a *Arena, s Seen) int {
	if p == AllRequests {
		return a.ScaleUp(s.Demand)
	}
	blocks, _ := ScaleUpOne(a.Capacity(Lender), s.BlockTokens, a.unit.Lender, a.unit.Borrower, s.Tokens)
	return min(blocks/a.unit.Lender, a.units-a.border)
}

// Down is by how many it may move down: at most to the floor. OneRequest does not ask what is in use
// beyond: such blocks are stranded.
func (p Policy) Down(a *Arena, s Seen) int {
	if p == AllRequests {
		return a.ScaleDown(s.Peak, s.Headroom)
	}
	blocks, _ := ScaleDownOne(a.Capacity(Lender), s.BlockTokens, a.unit.Lender, a.unit.Borrower, s.Longest)
	return min(blocks/a.unit.Lender, a.border-a.floor)
}

// Peak is the greatest of what was seen within a window of time, in time amortised constant
// and memory of one entry for each decrease. Times must not go back.
type Peak struct {
	Window int64 // in the caller's unit of time
	seen   []sample
}

type sample struct {
	at    int64
	value int
}

// See notes value at a time.
func (p *Peak) See(at int64, value int) {
	for len(p.seen) > 0 && p.seen[len(p.seen)-1].value <= value {
		p.seen = p.seen[:len(p.seen)-1]
	}
	p.seen = append(p.seen, sample{at, value})
	p.expire(at)
}

// At is the peak of the window that ends at a time; 0 when nothing was seen in it.
func (p *Peak) At(at int64) int {
	p.expire(at)
	if len(p.seen) == 0 {
		return 0
	}
	return p.seen[0].value
}

func (p *Peak) expire(at int64) {
	n := 0
	for n < len(p.seen) && at-p.seen[n].at > p.Window {
		n++
	}
	p.seen = p.seen[n:]
}
