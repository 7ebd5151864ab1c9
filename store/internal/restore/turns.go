package restore

import (
	"container/heap"
	"slices"
)

// turns are chains of a session that may have chunks to issue, the one whose turn it is first. A chain whose chunks
// were issued or answered meanwhile leaves when it comes first.
type turns []*chain

func (t turns) Len() int           { return len(t) }
func (t turns) Less(i, j int) bool { return t[i].before(t[j]) }
func (t turns) Swap(i, j int)      { t[i], t[j] = t[j], t[i] }
func (t *turns) Push(x any)        { *t = append(*t, x.(*chain)) }
func (t *turns) Pop() any {
	c := (*t)[len(*t)-1]
	(*t)[len(*t)-1] = nil
	*t = (*t)[:len(*t)-1]
	return c
}

// before says whether it is c's turn before o's: of higher priority, then of the earlier deadline, then who has had
// fewer of its chunks issued, then who was named first.
func (c *chain) before(o *chain) bool {
	if c.priority != o.priority {
		return c.priority > o.priority
	}
	if !c.deadline.Equal(o.deadline) {
		return !c.deadline.IsZero() && (o.deadline.IsZero() || c.deadline.Before(o.deadline))
	}
	if c.next != o.next {
		return c.next < o.next
	}
	return c.index < o.index
}

// issuable says that the chain's next chunk may be issued.
func (c *chain) issuable() bool { return c.left > 0 && c.next < c.limit() }

// waitingLocked says whether any chunk waits to be issued. REQUIRES: ses.mu.
func (ses *session) waitingLocked() bool {
	if ses.planned { // the scheduler moves limits
		ses.ordered = false
	}
	return ses.bestLocked() != nil
}

// bestLocked is the chain whose turn it is, which leads turns. Nil: none has a chunk to issue. REQUIRES: ses.mu.
func (ses *session) bestLocked() *chain {
	if !ses.ordered {
		ses.ordered = true
		ses.turns = append(ses.turns[:0], ses.chains...)
		ses.turns = slices.DeleteFunc(ses.turns, func(c *chain) bool { return !c.issuable() })
		heap.Init(&ses.turns)
	}
	for len(ses.turns) > 0 {
		if c := ses.turns[0]; c.issuable() {
			return c
		}
		heap.Pop(&ses.turns)
	}
	return nil
}

// passedLocked takes the next chunk of the chain that leads turns off it. REQUIRES: ses.mu, held since bestLocked.
func (ses *session) passedLocked() {
	ses.turns[0].next++
	heap.Fix(&ses.turns, 0)
}

// lookahead is how many blocks are located at a time in the block directions.
const lookahead = 128

// ensureLocked makes sure that the block of the next chunk of c, which leads turns, is located. It gives up the lock
// while it reads the catalog, which it does at once for chains whose turn comes after, and then returns false: it may
// be another's turn. REQUIRES: ses.mu.
func (ses *session) ensureLocked(c *chain) bool {
	if c.located(c.next) {
		return true
	}
	var asks []Ask
	var of []*chain
	wanted := make([]int, 0, lookahead)
	for len(ses.turns) > 0 && len(of) < lookahead && len(wanted) < lookahead {
		c := heap.Pop(&ses.turns).(*chain)
		from := len(wanted)
		wanted = c.unlocated(wanted, lookahead)
		asks, of = append(asks, Ask{&c.Asked, wanted[from:]}), append(of, c)
	}
	for _, c := range of {
		heap.Push(&ses.turns, c)
	}
	ses.mu.Unlock()
	list := ses.rs.Source.Locate(asks)
	ses.mu.Lock()
	for i, c := range of {
		for _, b := range asks[i].Blocks {
			f := list[0]
			c.found[b], list = f, list[1:]
			for item := b; item < len(c.items); item += len(c.found) {
				if c.items[item] == itemWaiting { // else it was answered meanwhile
					f.left++
				}
			}
			if f.left == 0 {
				f.LetGo(ses.rs.Source)
			}
		}
	}
	return false
}

// located says whether it was looked where the block of the chunk at a turn is.
func (c *chain) located(turn int) bool { return c.found[c.blockOf(c.InOrder(turn))] != nil }

// unlocated appends to list, up to most, which blocks of c are looked for together: none where its next one was.
func (c *chain) unlocated(list []int, most int) []int {
	if !c.issuable() || c.located(c.next) {
		return list
	}
	if c.Direction.ByLayer() {
		for b := range c.found {
			list = append(list, b)
		}
		return list
	}
	for turn := c.next; turn < len(c.items) && len(list) < most; turn++ {
		if i := c.InOrder(turn); c.items[i] == itemWaiting && c.found[i] == nil {
			list = append(list, i)
		}
	}
	return list
}
