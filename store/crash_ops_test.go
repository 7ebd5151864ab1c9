package store

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"time"

	"github.com/skepkv/skep"
)

// crashWriter does operations in its own namespaces, one after the other.
type crashWriter struct {
	w      *crashWorld
	l      *life
	s      *Store
	o      Options
	or     *oracle
	rng    *rand.Rand
	number int
}

// run does n operations, or, in a run's first life, as many until the campaign is over.
func (c *crashWriter) run(ctx context.Context, n int, first bool) {
	for i := range n {
		if c.s == nil || first && c.w.over() {
			return
		}
		c.l.at(c.step(ctx, first && c.w.calm && i > 40))
	}
}

func (c *crashWriter) own() []*crashSpace {
	each := len(c.w.spaces) / c.w.writers
	return c.w.spaces[c.number*each : (c.number+1)*each]
}

// draw chooses an operation.
func (c *crashWriter) draw() opKind {
	sum := 0
	for _, n := range c.w.weights {
		sum += n
	}
	k := c.rng.IntN(sum)
	for op, n := range c.w.weights {
		if k -= n; k < 0 {
			return opKind(op)
		}
	}
	return opPut
}

// step does one random operation and tells the oracle. In a calm only Cache blocks are
// put: nobody's sync makes up for a missing one.
func (c *crashWriter) step(ctx context.Context, calm bool) string {
	spaces := c.own()
	sp := spaces[c.rng.IntN(len(spaces))]
	op := c.draw()
	if calm {
		sp = spaces[2+c.rng.IntN(2)]
	}
	x := sp.slots[c.rng.IntN(len(sp.slots))]
	switch op {
	case opPut:
		c.l.at("put")
		return c.put(ctx, sp, x)
	case opDelete:
		c.l.at("delete")
		return c.remove(ctx, sp, x)
	case opPurge:
		c.l.at("purge")
		return c.purge(ctx, sp, x)
	case opFlush:
		c.l.at("flush")
		c.flush(ctx)
		return "flush"
	case opReplace:
		c.l.at("replace")
		c.replace(ctx)
		return "replace"
	case opReopen:
		c.l.at("restart")
		c.reopen(ctx)
		return "restart"
	default:
		c.l.at("read")
		c.read(ctx, sp)
		return "read"
	}
}

// reopen ends the store cleanly and begins it anew.
func (c *crashWriter) reopen(ctx context.Context) {
	c.w.note("restart")
	c.settleAll(ctx)
	c.l.count(ctx, c.s)
	torn := c.w.failed(c.s.Close(), "close")
	c.l.reopen()
	s, err := Open(ctx, c.o)
	if c.s = s; c.w.failed(err, "open again") {
		return
	}
	if torn { // what was not synced may be lost, as in a crash
		c.w.check(ctx, s, c.or, true)
	}
	c.l.begun(s)
	c.w.c.happened("restarts", 1)
}

// replace adds a drive and takes another out, which means that all it holds is moved.
func (c *crashWriter) replace(ctx context.Context) {
	c.w.note("restart with another drive")
	c.settleAll(ctx)
	c.l.count(ctx, c.s)
	c.w.must(c.s.Close(), "close")
	c.l.reopen()
	s, err := AddDevices(ctx, c.o, NewDevice{Path: filepath.Join(c.o.Dir, sprintf("device-%d", len(c.s.members.All())))})
	c.w.must(err, "add a drive")
	c.s = s
	c.l.begun(s)
	var old []int
	for i, d := range s.members.All() {
		if !d.Removed.Load() && i < len(s.members.All())-1 {
			old = append(old, i)
		}
	}
	which := old[c.rng.IntN(len(old))]
	c.w.note("remove drive %d of %d", which, len(s.members.All()))
	within, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	p, err := s.RemoveDevice(within, itoa(which), MoveOptions{})
	c.w.note("  %+v, %v", p, err)
	switch k := skep.KindOf(err); {
	case err == nil:
		c.w.c.happened("drives replaced", 1)
	case k == skep.Full || k == skep.Conflict: // there is no room without it
	case k == skep.Deadline:
		c.w.c.happened("removals given up", 1)
	default:
		c.w.must(err, "remove a drive")
	}
}

// put puts one block or a run of a chain's.
func (c *crashWriter) put(ctx context.Context, sp *crashSpace, x *crashSlot) string {
	w := c.w
	list := c.blocks(sp, x)
	r := &skep.PutRequest{Scope: x.scope()}
	if c.rng.IntN(100) < w.accepted {
		r.Ack = skep.AckAccepted
	}
	if p := list[0].parent; p != nil {
		r.Parent, r.Depth = &p.key, list[0].depth
	}
	versions := make([]int, len(list))
	for i, x := range list {
		versions[i] = c.or.version(x)
		r.Blocks = append(r.Blocks, x.block(versions[i]))
	}
	// The last of a chain's run may replace a sibling, which stays if it is whole.
	var replaces *crashSlot
	if sp.spec.Chained && c.rng.IntN(100) < w.replaces {
		if replaces = c.sibling(sp, list); replaces != nil {
			r.Blocks[len(list)-1].Replaces = &replaces.key
			if !replaces.tail {
				c.w.c.happened("whole blocks named as replaced", 1)
				replaces = nil
			}
		}
	}
	what := sprintf("put %v versions %v ack %d replaces %v", list, versions, r.Ack, replaces)
	w.note("%s", what)
	begun := c.or.begin(list, versions)
	if replaces != nil {
		c.or.mu.Lock()
		c.or.states[replaces.index].drops++
		c.or.mu.Unlock()
	}
	res, err := c.s.Put(ctx, r)
	if w.failed(err, what) {
		return "put"
	}
	w.note("  %v", res)
	c.or.mu.Lock()
	defer c.or.mu.Unlock()
	for i, x := range list {
		c.learnLocked(x, versions[i], res[i].Outcome, begun)
	}
	if replaces != nil {
		st := &c.or.states[replaces.index]
		switch last := res[len(list)-1].Outcome; {
		case last == skep.Accepted: // it is dropped when the commit comes, perhaps after it was put again
		case last == skep.Committed && st.drops == 1: // in the same breath, as synced as the block
			st.drops = 0
			c.or.ackLocked(replaces, 0)
		case last == skep.Committed: // one that was accepted before may come later still
			st.drops--
			st.maybe = append(st.maybe, 0)
		default:
			st.drops--
		}
	}
	return "put"
}

// learnLocked tells the oracle what became of one block of a put.
func (c *crashWriter) learnLocked(x *crashSlot, version int, o skep.Outcome, begun uint64) {
	st := &c.or.states[x.index]
	switch o {
	case skep.Committed:
		if x.space.spec.Chained && x.durable() && st.drops == 0 && st.cur != 0 && len(st.certain()) == 1 && !slices.Contains(st.maybe, 0) {
			c.w.fatal("%v committed although version %d is there", x, st.cur)
		}
		c.or.ackLocked(x, version)
		if x.durable() {
			c.or.syncedLocked(begun)
		}
	case skep.Exists:
		if x.durable() && st.mustBeAbsent(version) {
			c.w.fatal("%v exists although it does not", x)
		}
		st.refuse(version)
	case skep.Declined:
		st.refuse(version)
	}
}

// blocks is what one put puts: x, with ancestors or other keys of its room.
func (c *crashWriter) blocks(sp *crashSpace, x *crashSlot) []*crashSlot {
	list := []*crashSlot{x}
	if sp.spec.Chained {
		for len(list) < 1+c.rng.IntN(4) && list[0].parent != nil {
			list = append([]*crashSlot{list[0].parent}, list...)
		}
		return list
	}
	for range c.rng.IntN(4) { // also the same key twice in one put
		y := sp.slots[c.rng.IntN(len(sp.slots))]
		if c.rng.IntN(4) == 0 {
			y = x
		}
		if y.salt == x.salt {
			list = append(list, y)
		}
	}
	return list
}

// sibling is another child of the last one's parent.
func (c *crashWriter) sibling(sp *crashSpace, list []*crashSlot) (found *crashSlot) {
	last := list[len(list)-1]
	for _, y := range sp.slots {
		if y != last && y.parent == last.parent && y.salt == last.salt && (found == nil || c.rng.IntN(2) == 0) {
			found = y
		}
	}
	return found
}

func (c *crashWriter) remove(ctx context.Context, sp *crashSpace, x *crashSlot) string {
	list := []*crashSlot{x}
	for range c.rng.IntN(3) {
		if y := sp.slots[c.rng.IntN(len(sp.slots))]; y.salt == x.salt && !slices.Contains(list, y) {
			list = append(list, y)
		}
	}
	var keys []skep.Key
	for _, x := range list {
		keys = append(keys, x.key)
	}
	what := sprintf("delete %v", list)
	c.w.note("%s", what)
	// What is accepted only may be declined later, and its deletion needs no sync then.
	certain := true
	c.or.mu.Lock()
	for _, x := range list {
		certain = certain && len(c.or.states[x.index].maybe) == 0
	}
	c.or.mu.Unlock()
	begun := c.or.begin(list, make([]int, len(list)))
	n, err := c.s.Delete(ctx, x.scope(), keys)
	if c.w.failed(err, what) {
		return "delete"
	}
	c.w.note("  %d", n)
	c.or.mu.Lock()
	defer c.or.mu.Unlock()
	for _, x := range list {
		c.or.states[x.index].removed()
	}
	if n > 0 && certain {
		c.or.syncedLocked(begun)
	}
	c.w.c.happened("deletes", int64(n))
	return "delete"
}

func (c *crashWriter) purge(ctx context.Context, sp *crashSpace, x *crashSlot) string {
	var list []*crashSlot
	p := skep.Purge{Namespace: sp.id}
	sc := x.scope()
	if x.salt != "" {
		p = skep.Purge{Salt: &sc}
	}
	for _, y := range sp.slots {
		if p.Salt == nil || y.salt == x.salt {
			list = append(list, y)
		}
	}
	what := sprintf("purge %s salt %q", sp.spec.Name, string(x.salt))
	deletes := p.Salt == nil && c.rng.IntN(2) == 0
	if deletes {
		what = "delete namespace " + sp.spec.Name
	}
	c.w.note("%s", what)
	begun := c.or.begin(list, make([]int, len(list)))
	if deletes {
		if c.w.failed(c.s.DeleteNamespace(ctx, sp.id), what) {
			return "purge"
		}
		n, err := c.s.OpenNamespace(ctx, sp.spec)
		if c.w.failed(err, "open it again") {
			return "purge"
		}
		sp.id = n.ID
	} else if c.w.failed(c.s.Purge(ctx, p), what) {
		return "purge"
	}
	c.or.mu.Lock()
	defer c.or.mu.Unlock()
	for _, y := range list {
		c.or.states[y.index].removed()
	}
	c.or.syncedLocked(begun)
	c.w.c.happened("purges", 1)
	return "purge"
}

func (c *crashWriter) flush(ctx context.Context) {
	c.w.note("flush")
	c.settleAll(ctx)
}

// settleAll waits for all accepted blocks and finds out which were committed.
func (c *crashWriter) settleAll(ctx context.Context) {
	if c.w.failed(c.s.Flush(ctx), "flush") {
		return
	}
	for _, sp := range c.own() {
		if !sp.spec.Chained {
			continue
		}
		for _, x := range sp.slots {
			c.or.mu.Lock()
			st := &c.or.states[x.index]
			st.dropped()
			doubt := len(st.maybe) > 0
			c.or.mu.Unlock()
			if !doubt || !x.durable() {
				continue
			}
			there, known := c.w.stored(ctx, c.s, x)
			if !known {
				continue
			}
			c.or.mu.Lock()
			if some := st.certain(); there && len(some) == 1 {
				c.or.ackLocked(x, some[0])
			} else if !there && !c.w.faulty { // a commit that failed may have happened, for the next to open the store
				c.or.ackLocked(x, 0)
			}
			c.or.mu.Unlock()
		}
	}
}

// stored says whether a chained block is there, visible or not.
func (w *crashWorld) stored(ctx context.Context, s *Store, x *crashSlot) (there, known bool) {
	want, err := s.Want(ctx, &skep.WantRequest{Scope: x.scope(), Keys: []skep.Key{x.key}})
	if w.failed(err, "want") {
		return false, false
	}
	return !want[0].Wanted, true
}

// read restores a few blocks and checks them, which also makes some hot.
func (c *crashWriter) read(ctx context.Context, sp *crashSpace) {
	var list []*crashSlot
	for range 4 {
		list = append(list, sp.slots[c.rng.IntN(len(sp.slots))])
	}
	c.w.compare(ctx, c.s, c.or, list, false)
}
