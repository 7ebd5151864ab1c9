package store

import (
	"context"
	"time"

	"github.com/skepkv/skep/store/internal/locks"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/memory"
)

// Admission policies, of Options.Admission.
const (
	admitAll         = "all"
	admitBudget      = "budget"
	admitSecondTouch = "second-touch"
)

// writeback makes the DRAM tier an admission filter for Cache blocks: accepted blocks
// live there until they have been used, or until they must leave, and only then is it
// decided whether they go to the drives (index.Admit, under a wear budget). It is nil
// when everything is admitted.
//
// A block that waits is in the index at location 0, in the DRAM tier as dirty, and in
// waiting. Deletes and purges need not tell: whoever decides on a block looks whether
// the index still has it at location 0 and the tier still has the version that was
// accepted, and forgets it otherwise.
//
// Room is made by putters, under mu and without I/O: refused blocks go at once. Admitted
// ones are handed to one goroutine, which writes them as any put is written; while it
// does it holds the keys' flights, so that a put of the same key waits, as it would for
// another put.
type writeback struct {
	s           *Store
	secondTouch bool // plain: declined when put for the first time, and nothing waits
	wake        chan struct{}

	// Limits of what waits; the rest of the tier is for what was read and for writes
	// under way. Blocks are counted because each has a record on the heap.
	maxBytes  int64
	maxBlocks int

	mu      locks.Mutex[locks.WriteBack]
	waiting *index.Waiting
	budget  *index.WearBudget
	ghosts  *index.Ghosts
	blocks  map[index.Fingerprint]*waitingBlock
	queue   []*waitingBlock // admitted, ancestors first
	queued  int64           // bytes of them
	stats   skep.AdmissionStats
	refused [index.Refusals]int64
}

// waitingBlock is a block that waits, or is about to be written.
type waitingBlock struct {
	ns       *namespaces.Namespace
	in       *incoming
	admitted bool
	end      func() // of an acceptance that Flush waits for; nil but for the last of a decision
}

// refusals are blocks that are to be dropped. Until that is done they count as accepted and
// not decided on, so that a Flush waits for it.
type refusals struct {
	list []*waitingBlock
	end  func()
}

// waitingShare is how much of the DRAM tier may wait, and leastWaiting the size of a
// block below which their number counts: a record takes some hundred bytes.
const (
	waitingShare = 0.75
	leastWaiting = 16 << 10
	// wearLeast is the least that may be saved up of a budget: an append.
	wearLeast = appendBytes
)

// maxWaiting is how many blocks may wait in a DRAM tier of so many bytes.
func maxWaiting(cacheBytes int64) int { return max(256, int(cacheBytes/leastWaiting)) }

func (s *Store) newWriteback() (*writeback, error) {
	o := &s.options
	if o.Admission == admitAll || o.ReadOnly {
		return nil, nil
	}
	g, err := index.NewGhosts(o.AdmissionGhosts)
	if err != nil {
		return nil, err
	}
	w := &writeback{s: s, secondTouch: o.Admission == admitSecondTouch, wake: make(chan struct{}, 1), ghosts: g, waiting: index.NewWaiting(),
		maxBytes: int64(waitingShare * float64(o.CacheBytes)), maxBlocks: maxWaiting(o.CacheBytes),
		blocks: map[index.Fingerprint]*waitingBlock{}}
	w.budget = index.NewWearBudget(w.perDay(), wearLeast, s.now(), s.bytesWritten())
	return w, nil
}

// perDay is the budget of the drives that are written to now.
func (w *writeback) perDay() int64 {
	n := int64(0)
	for _, d := range w.s.allDrives() {
		if d != nil && !d.removed.Load() && !d.retired.Load() {
			n++
		}
	}
	return w.s.options.WriteBudget * n
}

// bytesWritten is what the devices have written since the open: payload, logs, cleaning.
func (s *Store) bytesWritten() (n int64) {
	for _, d := range s.allDrives() {
		n += int64(d.dev.Stats().Writes.Bytes)
	}
	return n
}

// filters says whether puts into ns wait to be decided on.
func (w *writeback) filters(ns *namespaces.Namespace) bool {
	return w != nil && ns.Info.Class == skep.Cache
}

// judge declines what is not to be stored at once: blocks put for the first time under
// plain second touch, and, with a budget, blocks that cannot wait in DRAM (unchained
// ones, and those there is no room for) unless the budget has something to spare.
func (w *writeback) judge(ns *namespaces.Namespace, blocks []*incoming) (stored []*incoming) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.budget.Update(w.s.now(), w.s.bytesWritten())
	for _, in := range blocks {
		again := w.askedLocked(in)
		why := index.Admitted
		if w.secondTouch {
			if !again {
				why = index.RefusedFirst
			}
		} else {
			l := index.Leaving{Bytes: in.size, Used: again, Partial: in.rec.ValidTokens != 0}
			why = index.Admit([]index.Leaving{l}, w.budget.Level(), w.budget.Burst(), nil)[0]
		}
		if why == index.Admitted {
			w.admittedLocked(in)
			stored = append(stored, in)
			continue
		}
		w.refuseLocked(in.fp, why)
		*in.result = skep.PutResult{Outcome: skep.Declined, Reason: skep.Admission}
		w.s.count.Declined.Add(skep.Admission)
	}
	return stored
}

// askedLocked says whether in was refused before: then that has cost a hit, and in
// counts as used. REQUIRES: w.mu.
func (w *writeback) askedLocked(in *incoming) bool {
	if !w.ghosts.Take(in.fp) {
		return false
	}
	w.stats.RefusedHits++
	w.stats.RefusedHitBytes += in.size
	return true
}

func (w *writeback) admittedLocked(in *incoming) {
	w.stats.AdmittedBlocks++
	w.stats.AdmittedBytes += in.size
}

func (w *writeback) refuseLocked(fp index.Fingerprint, why index.Refusal) {
	w.refused[why]++
	w.ghosts.Add(fp)
}

// add lets accepted blocks wait, ends their puts, and decides on others where that takes room. In this order, under
// the lock: a put of their keys that comes next takes their place, and not they its; and whoever decides, as a Flush
// does, meets no flight of theirs, which would pass for a rival's.
func (w *writeback) add(ns *namespaces.Namespace, blocks []*incoming) {
	var gone []*incoming
	w.mu.Lock()
	for _, in := range blocks {
		if !w.s.holds(in) { // deleted, or purged: no sweep may come for it any more
			gone = append(gone, in)
			continue
		}
		in.parts = nil // they are in the DRAM tier, and looked for there
		w.blocks[in.fp] = &waitingBlock{ns: ns, in: in}
		w.waiting.Add(index.WaitingBlock{FP: in.fp, Parent: in.parentFP, HasParent: in.hasParent, Bytes: in.size,
			Partial: in.rec.ValidTokens != 0, Used: w.askedLocked(in)})
	}
	w.s.land(blocks)
	drop := w.decideLocked(w.maxBytes, w.maxBlocks)
	w.mu.Unlock()
	for _, in := range gone {
		w.s.withdraw(ns, in, skep.Admission)
	}
	w.drop(drop)
}

// makeRoom decides on blocks until bytes fewer wait.
func (w *writeback) makeRoom(bytes int64) {
	w.mu.Lock()
	drop := w.decideLocked(max(0, w.waiting.Bytes()-bytes), w.maxBlocks)
	w.mu.Unlock()
	w.drop(drop)
}

// use notes that a block was restored from memory, or put again.
func (w *writeback) use(fp index.Fingerprint) {
	if w == nil || w.secondTouch {
		return
	}
	w.mu.Lock()
	var drop refusals
	if w.waiting.Use(fp) {
		drop = w.decideLocked(w.maxBytes, w.maxBlocks)
	}
	w.mu.Unlock()
	if len(drop.list) > 0 { // the caller may hold a session's lock
		w.s.background.Go(func() { w.drop(drop) })
	}
}

// decide writes what is proven as far as the budget allows.
func (w *writeback) decide() {
	w.mu.Lock()
	drop := w.decideLocked(w.maxBytes, w.maxBlocks)
	w.mu.Unlock()
	w.drop(drop)
}

// decideAll decides on everything, for a Flush or a Close.
func (w *writeback) decideAll() {
	w.mu.Lock()
	drop := w.decideLocked(0, 0)
	w.mu.Unlock()
	w.drop(drop)
}

// maxRun is how many blocks of a chain are decided on together.
const maxRun = 512

// decideLocked writes proven blocks while there is budget, and decides on more until no
// more than so many bytes and blocks wait. It returns what was refused. REQUIRES: w.mu.
func (w *writeback) decideLocked(bytes int64, blocks int) (refused refusals) {
	w.budget.Update(w.s.now(), w.s.bytesWritten())
	w.budget.Allow(w.perDay())
	var run []index.WaitingBlock
	before := len(w.queue)
	for {
		level := w.budget.Level()
		run = run[:0]
		if level > 0 {
			run = w.waiting.Proven(1, 0, run)
		}
		if len(run) == 0 {
			if w.waiting.Bytes() <= bytes && w.waiting.Len() <= blocks {
				break
			}
			if run = w.waiting.Next(maxRun, level < 1, run); len(run) == 0 {
				break
			}
		}
		refused.list = w.decideRunLocked(run, refused.list)
	}
	if len(refused.list) > 0 {
		refused.end = w.s.accepted.begin()
	}
	if n := len(w.queue); n > before {
		w.queue[n-1].end = w.s.accepted.begin()
		w.kick()
	}
	return refused
}

func (w *writeback) kick() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// decideRunLocked decides on blocks that have left waiting. REQUIRES: w.mu.
func (w *writeback) decideRunLocked(run []index.WaitingBlock, refused []*waitingBlock) []*waitingBlock {
	leaving := make([]index.Leaving, len(run))
	for i, b := range run {
		away := b.HasParent && (i == 0 || run[i-1].FP != b.Parent) && !w.storedLocked(b.Parent)
		leaving[i] = index.Leaving{Bytes: b.Bytes, Used: b.Used, Partial: b.Partial, ParentAway: away}
	}
	for i, why := range index.Admit(leaving, w.budget.Level(), w.budget.Burst(), nil) {
		b := w.blocks[run[i].FP]
		if why == index.Admitted {
			w.enqueueLocked(b)
			continue
		}
		delete(w.blocks, run[i].FP)
		w.refuseLocked(run[i].FP, why)
		refused = append(refused, b)
	}
	return refused
}

// storedLocked says whether a block is on the drives or on its way. REQUIRES: w.mu.
func (w *writeback) storedLocked(fp index.Fingerprint) bool {
	if b := w.blocks[fp]; b != nil {
		return b.admitted
	}
	e, ok := w.s.index.Resolve(fp)
	return ok && e.Location != 0
}

func (w *writeback) enqueueLocked(b *waitingBlock) {
	b.admitted = true
	w.admittedLocked(b.in)
	w.queue = append(w.queue, b)
	w.queued += b.in.size
	w.budget.Promise(b.in.size)
}

// drop takes refused blocks out of the store. What a lease or pin protects is written
// after all: promises come before the budget.
func (w *writeback) drop(r refusals) {
	if len(r.list) == 0 {
		return
	}
	defer r.end()
	var keep []*waitingBlock
	for _, b := range r.list {
		if !w.s.withdraw(b.ns, b.in, skep.Admission) {
			keep = append(keep, b)
		}
	}
	if len(keep) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, b := range keep {
		if w.blocks[b.in.fp] == nil { // else a later put of the key waits in its place
			w.blocks[b.in.fp] = b
		}
		w.stats.PromisedBlocks++
		w.enqueueLocked(b)
	}
	keep[len(keep)-1].end = w.s.accepted.begin()
	w.kick()
}

// run writes what was admitted until the store closes, and looks now and then whether
// the budget allows more of what is proven.
func (w *writeback) run() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-w.s.ctx.Done():
			return
		case <-w.wake:
		case <-tick.C:
			w.decide()
		}
		for w.s.ctx.Err() == nil {
			batch := w.next()
			if len(batch) == 0 {
				break
			}
			w.write(w.s.ctx, batch)
		}
	}
}

// next takes what is to be written together: of one namespace, an append at most.
func (w *writeback) next() (batch []*waitingBlock) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var bytes int64
	for _, b := range w.queue {
		if len(batch) > 0 && (b.ns != batch[0].ns || bytes+b.in.size > appendBytes || len(batch) == appendBlocks) {
			break
		}
		bytes += b.in.size
		batch = append(batch, b)
	}
	w.queue = w.queue[len(batch):]
	if len(w.queue) == 0 {
		w.queue = nil // its array goes with it
	}
	return batch
}

// write puts admitted blocks on the drives and lets go of them.
func (w *writeback) write(ctx context.Context, batch []*waitingBlock) {
	s, ns := w.s, batch[0].ns
	list := make([]*incoming, len(batch))
	for i, b := range batch {
		list[i] = b.in
	}
	s.keepPromised(ns, s.commitHeld(ctx, ns, list))
	w.mu.Lock()
	for _, b := range batch {
		if w.blocks[b.in.fp] == b {
			delete(w.blocks, b.in.fp)
		}
		w.queued -= b.in.size
		w.budget.Done(b.in.size)
	}
	w.budget.Update(s.now(), s.bytesWritten())
	w.mu.Unlock()
	for _, b := range batch {
		if b.end != nil {
			b.end()
		}
	}
}

// share points in's parts at its copy in the DRAM tier, and keeps that in place until
// what it appends to bufs is released.
func (s *Store) share(in *incoming, bufs *[]*memory.Buffer) bool {
	in.parts = make([]skep.Part, len(in.held))
	for i, h := range in.held {
		b, ok := s.cache.Share(h.id, h.v)
		*bufs = append(*bufs, b...)
		if !ok || len(b) != 1 {
			return false
		}
		p := &in.rec.Parts[i]
		in.parts[i] = skep.Part{Name: p.Name, Bytes: b[0].Bytes()[:p.Size]}
	}
	return true
}

// snapshot is the filter in numbers.
func (w *writeback) snapshot() skep.AdmissionStats {
	if w == nil {
		return skep.AdmissionStats{Policy: admitAll}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	st := w.stats
	st.Policy = w.s.options.Admission
	st.BudgetPerDay = w.s.options.WriteBudget
	w.budget.Update(w.s.now(), w.s.bytesWritten())
	st.BudgetLeft = w.budget.Left()
	st.WaitingBlocks, st.WaitingBytes = int64(w.waiting.Len()), w.waiting.Bytes()
	st.QueuedBytes = w.queued
	st.Refused = map[string]int64{}
	for why, n := range w.refused {
		if n > 0 {
			st.Refused[index.Refusal(why).String()] = n
		}
	}
	return st
}

// waitingRecord is what a waiting block is reckoned to take on the heap.
const waitingRecord = 1 << 10

// memory is what the filter takes beside the DRAM tier, and its cap.
func (w *writeback) memory() (used, most int64) {
	if w == nil {
		return 0, 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.ghosts.Bytes()
	if w.secondTouch {
		return g, g
	}
	return g + int64(len(w.blocks))*waitingRecord, g + int64(w.maxBlocks)*waitingRecord
}

// flush decides on all that waits and returns when it is written or dropped.
func (w *writeback) flush() {
	if w != nil && !w.secondTouch {
		w.decideAll()
	}
}
