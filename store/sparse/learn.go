package sparse

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index/coact"
)

// closeTimeout bounds the wait for drives that still hold memory.
const closeTimeout = 30 * time.Second

// maxPrefetches is how many prefetches of a layer are under way at once, each with memory for what it reads.
const maxPrefetches = 2

// Observe implements skep.SparseContext.
func (k *sparseContext) Observe(ctx context.Context, o skep.Observation) error {
	const op = "observe"
	y, err := k.layerOf(op, o.Layer)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return &skep.Error{Op: op, Kind: skep.Deadline, Err: err}
	}
	k.mu.Lock()
	next, closed := k.next, k.closed
	k.mu.Unlock()
	if closed {
		return &skep.Error{Op: op, Kind: skep.Closed}
	}
	for i, e := range o.Entries {
		if e >= next || i > 0 && e <= o.Entries[i-1] {
			return skep.Invalidf(op, "entry", e, fmt.Sprintf("ascending and below %d", next))
		}
	}
	if len(o.Queries)%k.heads.QueryWidth() != 0 {
		return skep.Invalidf(op, "query numbers", len(o.Queries), fmt.Sprintf("a multiple of %d", k.heads.QueryWidth()))
	}
	if o.Weights != nil && len(o.Weights) != len(o.Entries) {
		return skep.Invalidf(op, "weights", len(o.Weights), len(o.Entries))
	}
	for _, w := range o.Weights {
		if !(w >= 0 && w < 1e30) {
			return skep.Invalidf(op, "weight", w, "0 or more, finite")
		}
	}
	y.mu.Lock()
	taken, err := y.mu.profile.Observe(o.Entries, o.Explorative)
	if err == nil && taken && len(o.Queries) > 0 {
		y.mu.recall.Grow(int(next))
		err = y.mu.recall.Learn(o.Queries, o.Entries, o.Weights, nil)
	}
	if taken {
		y.mu.fresh++
	}
	if y.mu.profile.Steps() > maxProfileSteps {
		y.mu.madeAt = max(y.mu.madeAt-(y.mu.profile.Steps()-maxProfileSteps*3/4), 0)
		y.mu.profile.Forget(maxProfileSteps * 3 / 4)
	}
	if y.mu.joiner != nil {
		y.mu.joiner.Step(o.Entries)
	}
	y.mu.Unlock()
	if err != nil {
		return err
	}
	return y.place(ctx, 0)
}

// maxProfileSteps is how many steps a layer's profile keeps; the oldest quarter goes then.
const maxProfileSteps = 8192

// Select implements skep.SparseContext.
func (k *sparseContext) Select(ctx context.Context, n int, queries []float32, c skep.Choice) (skep.Selection, error) {
	const op = "select"
	y, err := k.layerOf(op, n)
	if err != nil {
		return skep.Selection{}, err
	}
	if len(queries) == 0 || len(queries)%k.heads.QueryWidth() != 0 {
		return skep.Selection{}, skep.Invalidf(op, "query numbers", len(queries), fmt.Sprintf("a multiple of %d", k.heads.QueryWidth()))
	}
	if c.Budget < 0 {
		return skep.Selection{}, skep.Invalidf(op, "budget", c.Budget, "0 or more")
	}
	if err := k.alive(ctx); err != nil {
		return skep.Selection{}, err
	}
	k.mu.Lock()
	next := k.next
	k.mu.Unlock()

	y.mu.Lock()
	defer y.mu.Unlock()
	a := y.mu.arrangement
	inMemory := func(e uint32) bool { return y.mu.hot[e] != nil || y.mu.window[e] != nil }
	var sel skep.Selection
	switch {
	case y.mu.recall.Steps() >= learnedSteps:
		y.mu.recall.Grow(int(next))
		votes := make([]float32, y.mu.recall.Entries()) // more than next where others append
		if _, err := y.mu.recall.Votes(queries, coact.RecallOptions{}, votes); err != nil {
			return sel, err
		}
		sel.Entries, sel.Learned = coact.TopSet(votes[:next], c.Budget, inMemory), true
	case a.index != nil:
		scores, err := a.index.Scores(queries, nil)
		if err != nil {
			return sel, err
		}
		sizes := a.clusters
		for i := range scores {
			scores[i] /= float32(len(sizes[i]))
		}
		if sel.Clusters, sel.Entries, err = coact.Select(a.clusters, scores, coact.SelectOptions{Budget: c.Budget, Overshoot: c.Overshoot}, inMemory); err != nil {
			return sel, err
		}
	default:
		return sel, &skep.Error{Op: op, Kind: skep.Unsupported, Field: "element", Value: k.head.Shape.Element, Limit: "f32, bf16 or f16, until steps with queries were observed"}
	}
	for e := range y.mu.hot {
		sel.Entries = append(sel.Entries, e)
	}
	for e := range y.mu.window {
		sel.Entries = append(sel.Entries, e)
	}
	slices.Sort(sel.Entries)
	sel.Entries = slices.Compact(sel.Entries)
	return sel, nil
}

// learnedSteps is how many observed steps with queries a choice by similar steps needs;
// before, clusters are chosen by their keys (docs/notebook/sparse.md shows both by steps).
const learnedSteps = 64

// staged is a record a prefetch reads: data is set when done is closed, nil when it did
// not come.
type staged struct {
	done chan struct{}
	data []byte
	slab *slab
}

// slab is memory that so many records of a prefetch share: while one is kept, all of it is.
type slab struct{ records int }

// Prefetch implements skep.SparseContext.
func (k *sparseContext) Prefetch(ctx context.Context, n int, foreseen []float32, c skep.Choice) error {
	sel, err := k.Select(ctx, n, foreseen, c)
	if err != nil {
		return err
	}
	y := k.layers[n]
	k.mu.Lock()
	if k.closed {
		k.mu.Unlock()
		return &skep.Error{Op: "prefetch", Kind: skep.Closed}
	}
	k.background.Add(1) // before Close waits
	k.mu.Unlock()
	y.mu.Lock()
	if y.mu.reading >= maxPrefetches {
		y.mu.Unlock()
		k.background.Done()
		return nil
	}
	a, err := y.takeLocked()
	if err != nil {
		y.mu.Unlock()
		k.background.Done()
		return err
	}
	y.mu.reading++
	old := y.mu.staged
	y.mu.staged = map[uint32]*staged{}
	var entries []uint32
	for _, e := range sel.Entries {
		if y.mu.hot[e] != nil || y.mu.window[e] != nil {
			continue
		}
		if s := old[e]; s != nil { // still there from the last one, or on its way
			y.mu.staged[e] = s
			continue
		}
		entries = append(entries, e)
	}
	y.packStagedLocked()
	read := &slab{len(entries)}
	for _, e := range entries {
		y.mu.staged[e] = &staged{done: make(chan struct{}), slab: read}
	}
	mine := make([]*staged, len(entries))
	for i, e := range entries {
		mine[i] = y.mu.staged[e]
	}
	y.mu.read += int64(len(entries))
	y.mu.Unlock()
	go func() { // ends with its reads; Close waits
		defer k.background.Done()
		defer a.readers.RUnlock()
		mem := aligned(int64(max(len(entries), 1)) * k.record)
		planes := make([][]byte, len(entries))
		for i := range planes {
			planes[i] = mem[int64(i)*k.record:][:k.record:k.record]
		}
		away, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		failed, _, err := y.read(away, a, entries, planes)
		for i, e := range entries {
			if err == nil && !slices.Contains(failed, e) {
				mine[i].data = planes[i]
			}
			close(mine[i].done)
		}
		y.mu.Lock()
		y.mu.reading--
		y.mu.Unlock()
	}()
	return nil
}

// packStagedLocked copies what is kept of earlier prefetches most of whose records nobody wants any more, so that what is
// kept in memory is at most twice what is wanted. What is on its way yet waits for the next prefetch. REQUIRES: y.mu.
func (y *layer) packStagedLocked() {
	kept := map[*slab]int{}
	for _, s := range y.mu.staged {
		kept[s.slab]++
	}
	var entries []uint32
	for e, s := range y.mu.staged {
		if 2*kept[s.slab] >= s.slab.records {
			continue
		}
		select {
		case <-s.done:
			if s.data != nil {
				entries = append(entries, e)
			}
		default:
		}
	}
	mem, packed := make([]byte, 0, int64(len(entries))*y.k.record), &slab{len(entries)}
	for _, e := range entries { // readers may have the old one
		s := y.mu.staged[e]
		mem = append(mem, s.data...)
		y.mu.staged[e] = &staged{done: s.done, data: mem[len(mem)-len(s.data) : len(mem) : len(mem)], slab: packed}
	}
}
