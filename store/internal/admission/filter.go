package admission

import (
	"context"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/internal/locks"
	"github.com/skepkv/skep/store/internal/namespaces"
)

// Policies.
const (
	All         = "all"
	Budget      = "budget"
	SecondTouch = "second-touch"
)

// Block is a put's block, as a filter sees it.
type Block interface {
	comparable
	Waits() index.WaitingBlock // what it is; whether it was used the filter knows
}

// Host is the store that a filter belongs to.
type Host[B Block] interface {
	Now() time.Time
	Written() int64  // bytes that the drives have written since the open: payload, logs, cleaning
	Writable() int64 // drives that are written to now

	// Take says whether a block that was accepted is still what the store holds under its key, and readable in its
	// memory: then it waits. Else the filter withdraws it.
	Take(b B) bool
	// Land ends the puts of blocks.
	Land(list []B)
	// OnDrives says whether a block is stored.
	OnDrives(fp index.Fingerprint) bool
	// Withdraw takes a block out of the store that is not to be written. False: a lease or a pin protects it.
	Withdraw(ns *namespaces.Namespace, b B) bool
	// Write writes blocks of a namespace to the drives.
	Write(ctx context.Context, ns *namespaces.Namespace, list []B)
	// Accept begins something that a Flush waits for, until end is called.
	Accept() (end func())
	// Behind calls f on a goroutine that Close waits for.
	Behind(f func())
}

// Config is how a filter is made.
type Config struct {
	Policy      string // Budget or SecondTouch
	Ghosts      int    // refused keys that are remembered
	CacheBytes  int64  // of the DRAM tier
	WriteBudget int64  // bytes a day and drive; 0: no limit
	BatchBytes  int64  // written at a time, and the least that may be saved up of a budget
	BatchBlocks int
}

// Filter makes the DRAM tier an admission filter for Cache blocks: accepted blocks
// live there until they have been used, or until they must leave, and only then is it
// decided whether they go to the drives (index.Admit, under a wear budget). It is nil
// when everything is admitted. It is safe for any number of goroutines. Make it with New.
//
// A block that waits is in the index at location 0, in the DRAM tier as dirty, and in
// waiting. Deletes and purges need not tell: whoever decides on a block looks whether
// the index still has it at location 0 and the tier still has the version that was
// accepted (Host.Withdraw), and forgets it otherwise.
//
// Room is made by putters, under mu and without I/O: refused blocks go at once. Admitted
// ones are handed to one goroutine, which writes them as any put is written; while it
// does it holds the keys' flights, so that a put of the same key waits, as it would for
// another put.
type Filter[B Block] struct {
	host        Host[B]
	config      Config
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
	blocks  map[index.Fingerprint]*waitingBlock[B]
	queue   []*waitingBlock[B] // admitted, ancestors first
	queued  int64              // bytes of them
	stats   skep.AdmissionStats
	refused [index.Refusals]int64
}

// waitingBlock is a block that waits, or is about to be written.
type waitingBlock[B Block] struct {
	ns       *namespaces.Namespace
	in       B
	fp       index.Fingerprint
	size     int64
	admitted bool
	end      func() // of an acceptance that Flush waits for; nil but for the last of a decision
}

// refusals are blocks that are to be dropped. Until that is done they count as accepted and
// not decided on, so that a Flush waits for it.
type refusals[B Block] struct {
	list []*waitingBlock[B]
	end  func()
}

// waitingShare is how much of the DRAM tier may wait, and leastWaiting the size of a
// block below which their number counts: a record takes some hundred bytes.
const (
	waitingShare = 0.75
	leastWaiting = 16 << 10
)

// MaxWaiting is how many blocks may wait in a DRAM tier of so many bytes.
func MaxWaiting(cacheBytes int64) int { return max(256, int(cacheBytes/leastWaiting)) }

// New makes a filter in which nothing waits.
func New[B Block](host Host[B], c Config) (*Filter[B], error) {
	g, err := index.NewGhosts(c.Ghosts)
	if err != nil {
		return nil, err
	}
	w := &Filter[B]{host: host, config: c, secondTouch: c.Policy == SecondTouch,
		wake: make(chan struct{}, 1), ghosts: g, waiting: index.NewWaiting(),
		maxBytes: int64(waitingShare * float64(c.CacheBytes)), maxBlocks: MaxWaiting(c.CacheBytes),
		blocks: map[index.Fingerprint]*waitingBlock[B]{}}
	w.budget = index.NewWearBudget(w.perDay(), c.BatchBytes, host.Now(), host.Written())
	return w, nil
}

// perDay is the budget of the drives that are written to now.
func (w *Filter[B]) perDay() int64 { return w.config.WriteBudget * w.host.Writable() }

// Filters says whether puts into ns wait to be decided on.
func (w *Filter[B]) Filters(ns *namespaces.Namespace) bool {
	return w != nil && ns.Info.Class == skep.Cache
}

// Keeps says whether blocks wait in memory at all, and how many bytes of them at most; a larger one never does.
func (w *Filter[B]) Keeps() (bytes int64, ok bool) { return w.maxBytes, !w.secondTouch }

// Judge declines what is not to be stored at once: blocks put for the first time under
// plain second touch, and, with a budget, blocks that cannot wait in DRAM (unchained
// ones, and those there is no room for) unless the budget has something to spare.
func (w *Filter[B]) Judge(blocks []B) (stored, declined []B) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.budget.Update(w.host.Now(), w.host.Written())
	for _, in := range blocks {
		b := in.Waits()
		again := w.askedLocked(&b)
		why := index.Admitted
		if w.secondTouch {
			if !again {
				why = index.RefusedFirst
			}
		} else {
			l := index.Leaving{Bytes: b.Bytes, Used: again, Partial: b.Partial}
			why = index.Admit([]index.Leaving{l}, w.budget.Level(), w.budget.Burst(), nil)[0]
		}
		if why == index.Admitted {
			w.admittedLocked(b.Bytes)
			stored = append(stored, in)
			continue
		}
		w.refuseLocked(b.FP, why)
		declined = append(declined, in)
	}
	return stored, declined
}

// askedLocked says whether a block was refused before: then that has cost a hit, and it
// counts as used. REQUIRES: w.mu.
func (w *Filter[B]) askedLocked(b *index.WaitingBlock) bool {
	if !w.ghosts.Take(b.FP) {
		return false
	}
	w.stats.RefusedHits++
	w.stats.RefusedHitBytes += b.Bytes
	return true
}

func (w *Filter[B]) admittedLocked(bytes int64) {
	w.stats.AdmittedBlocks++
	w.stats.AdmittedBytes += bytes
}

func (w *Filter[B]) refuseLocked(fp index.Fingerprint, why index.Refusal) {
	w.refused[why]++
	w.ghosts.Add(fp)
}

// Add lets accepted blocks wait, ends their puts, and decides on others where that takes room. In this order, under
// the lock: a put of their keys that comes next takes their place, and not they its; and whoever decides, as a Flush
// does, meets no flight of theirs, which would pass for a rival's.
func (w *Filter[B]) Add(ns *namespaces.Namespace, blocks []B) {
	var gone []B
	var displaced []*waitingBlock[B]
	w.mu.Lock()
	for _, in := range blocks {
		if !w.host.Take(in) { // deleted, or purged: no sweep may come for it any more
			gone = append(gone, in)
			continue
		}
		b := in.Waits()
		b.Used = w.askedLocked(&b)
		if old := w.blocks[b.FP]; old != nil && !old.admitted { // it was deleted, and may have parts that this one lacks
			displaced = append(displaced, old)
		}
		w.blocks[b.FP] = &waitingBlock[B]{ns: ns, in: in, fp: b.FP, size: b.Bytes}
		w.waiting.Add(b)
	}
	w.host.Land(blocks)
	drop := w.decideLocked(w.maxBytes, w.maxBlocks)
	w.mu.Unlock()
	for _, in := range gone {
		w.host.Withdraw(ns, in)
	}
	for _, old := range displaced {
		w.host.Withdraw(old.ns, old.in)
	}
	w.drop(drop)
}

// MakeRoom decides on blocks until bytes fewer wait.
func (w *Filter[B]) MakeRoom(bytes int64) {
	w.mu.Lock()
	drop := w.decideLocked(max(0, w.waiting.Bytes()-bytes), w.maxBlocks)
	w.mu.Unlock()
	w.drop(drop)
}

// Use notes that a block was restored from memory, or put again.
func (w *Filter[B]) Use(fp index.Fingerprint) {
	if w == nil || w.secondTouch {
		return
	}
	w.mu.Lock()
	var drop refusals[B]
	if w.waiting.Use(fp) {
		drop = w.decideLocked(w.maxBytes, w.maxBlocks)
	}
	w.mu.Unlock()
	if len(drop.list) > 0 { // the caller may hold a session's lock
		w.host.Behind(func() { w.drop(drop) })
	}
}

// decide writes what is proven as far as the budget allows.
func (w *Filter[B]) decide() {
	w.mu.Lock()
	drop := w.decideLocked(w.maxBytes, w.maxBlocks)
	w.mu.Unlock()
	w.drop(drop)
}

// decideAll decides on everything, for a Flush or a Close.
func (w *Filter[B]) decideAll() {
	w.mu.Lock()
	drop := w.decideLocked(0, 0)
	w.mu.Unlock()
	w.drop(drop)
}

// maxRun is how many blocks of a chain are decided on together.
const maxRun = 512

// decideLocked writes proven blocks while there is budget, and decides on more until no
// more than so many bytes and blocks wait. It returns what was refused. REQUIRES: w.mu.
func (w *Filter[B]) decideLocked(bytes int64, blocks int) (refused refusals[B]) {
	w.budget.Update(w.host.Now(), w.host.Written())
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
		refused.end = w.host.Accept()
	}
	if n := len(w.queue); n > before {
		w.queue[n-1].end = w.host.Accept()
		w.kick()
	}
	return refused
}

func (w *Filter[B]) kick() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// decideRunLocked decides on blocks that have left waiting. REQUIRES: w.mu.
func (w *Filter[B]) decideRunLocked(run []index.WaitingBlock, refused []*waitingBlock[B]) []*waitingBlock[B] {
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
func (w *Filter[B]) storedLocked(fp index.Fingerprint) bool {
	if b := w.blocks[fp]; b != nil {
		return b.admitted
	}
	return w.host.OnDrives(fp)
}

func (w *Filter[B]) enqueueLocked(b *waitingBlock[B]) {
	b.admitted = true
	w.admittedLocked(b.size)
	w.queue = append(w.queue, b)
	w.queued += b.size
	w.budget.Promise(b.size)
}

// drop takes refused blocks out of the store. What a lease or pin protects is written
// after all: promises come before the budget.
func (w *Filter[B]) drop(r refusals[B]) {
	if len(r.list) == 0 {
		return
	}
	defer r.end()
	var keep []*waitingBlock[B]
	for _, b := range r.list {
		if !w.host.Withdraw(b.ns, b.in) {
			keep = append(keep, b)
		}
	}
	if len(keep) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, b := range keep {
		if w.blocks[b.fp] == nil { // else a later put of the key waits in its place
			w.blocks[b.fp] = b
		}
		w.stats.PromisedBlocks++
		w.enqueueLocked(b)
	}
	keep[len(keep)-1].end = w.host.Accept()
	w.kick()
}

// Run writes what was admitted until ctx ends, and looks now and then whether the budget allows more of what is
// proven.
func (w *Filter[B]) Run(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-tick.C:
			w.decide()
		}
		for ctx.Err() == nil {
			batch := w.next()
			if len(batch) == 0 {
				break
			}
			w.write(ctx, batch)
		}
	}
}

// next takes what is to be written together: of one namespace, an append at most.
func (w *Filter[B]) next() (batch []*waitingBlock[B]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var bytes int64
	for _, b := range w.queue {
		full := bytes+b.size > w.config.BatchBytes || len(batch) == w.config.BatchBlocks
		if len(batch) > 0 && (full || b.ns != batch[0].ns) {
			break
		}
		bytes += b.size
		batch = append(batch, b)
	}
	w.queue = w.queue[len(batch):]
	if len(w.queue) == 0 {
		w.queue = nil // its array goes with it
	}
	return batch
}

// write puts admitted blocks on the drives and lets go of them.
func (w *Filter[B]) write(ctx context.Context, batch []*waitingBlock[B]) {
	list := make([]B, len(batch))
	for i, b := range batch {
		list[i] = b.in
	}
	w.host.Write(ctx, batch[0].ns, list)
	w.mu.Lock()
	for _, b := range batch {
		if w.blocks[b.fp] == b {
			delete(w.blocks, b.fp)
		}
		w.queued -= b.size
		w.budget.Done(b.size)
	}
	w.budget.Update(w.host.Now(), w.host.Written())
	w.mu.Unlock()
	for _, b := range batch {
		if b.end != nil {
			b.end()
		}
	}
}

// Stats is the filter in numbers.
func (w *Filter[B]) Stats() skep.AdmissionStats {
	if w == nil {
		return skep.AdmissionStats{Policy: All}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	st := w.stats
	st.Policy = w.config.Policy
	st.BudgetPerDay = w.config.WriteBudget
	w.budget.Update(w.host.Now(), w.host.Written())
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

// Cap is the memory that a filter may take beside the DRAM tier, in bytes.
func Cap(ghosts int, cacheBytes int64) int64 {
	return int64(ghosts)*8*2 + int64(MaxWaiting(cacheBytes))*waitingRecord
}

// Memory is what the filter takes beside the DRAM tier, in bytes.
func (w *Filter[B]) Memory() int64 {
	if w == nil {
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.ghosts.Bytes()
	if w.secondTouch {
		return g
	}
	return g + int64(len(w.blocks))*waitingRecord
}

// Len is how many blocks wait, or are about to be written.
func (w *Filter[B]) Len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.blocks)
}

// Flush decides on all that waits. What it admits counts as accepted until it is written: Host.Accept.
func (w *Filter[B]) Flush() {
	if w != nil && !w.secondTouch {
		w.decideAll()
	}
}
