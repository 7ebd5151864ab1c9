package sparse

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// Fetch implements skep.SparseContext.
func (k *sparseContext) Fetch(ctx context.Context, n int, entries []uint32, dst [][]byte) (skep.FetchResult, error) {
	const op = "fetch"
	var res skep.FetchResult
	y, err := k.layerOf(op, n)
	if err != nil {
		return res, err
	}
	if len(dst) != len(entries) {
		return res, skep.Invalidf(op, "destinations", len(dst), len(entries))
	}
	k.mu.Lock()
	next := k.next
	k.mu.Unlock()
	first := make(map[uint32]int, len(entries))
	for i, e := range entries {
		if e >= next {
			return res, skep.Invalidf(op, "entry", e, fmt.Sprintf("below %d", next))
		}
		if int64(len(dst[i])) < k.entry {
			return res, skep.Invalidf(op, "destination in bytes", len(dst[i]), fmt.Sprintf("at least %d", k.entry))
		}
		if _, twice := first[e]; !twice {
			first[e] = i
		}
	}
	if k.overlap(entries, dst) {
		return res, skep.Invalidf(op, "destinations", "overlapping", "apart from each other")
	}
	if err := k.alive(ctx); err != nil {
		return res, err
	}
	a, from, err := y.sources(first)
	if err != nil {
		return res, err
	}
	defer a.readers.RUnlock()
	missing := map[uint32]bool{}
	var wanted []uint32
	var planes [][]byte
	for i, e := range entries {
		if first[e] != i {
			continue
		}
		switch s := from[e]; {
		case s.rec != nil:
			copy(dst[i][:k.entry], s.rec)
			res.DRAM++
		case s.staged == nil:
			wanted = append(wanted, e)
			planes = append(planes, k.planeIn(dst[i]))
		}
	}
	failed, stats, err := y.read(ctx, a, wanted, planes)
	if err != nil {
		return res, err
	}
	res.Reads, res.Records, res.Balance = stats.reads, stats.records, stats.balance
	for i, e := range wanted {
		to := dst[first[e]]
		if slices.Contains(failed, e) {
			missing[e] = true
		} else if &to[0] != &planes[i][0] {
			copy(to[:k.entry], planes[i])
		}
	}
	if err := y.join(ctx, a, entries, first, from, dst, missing, &res); err != nil {
		return res, err
	}
	for i, e := range entries {
		if f := first[e]; f != i && !missing[e] {
			copy(dst[i][:k.entry], dst[f][:k.entry])
		}
	}
	for e := range missing {
		res.Missing = append(res.Missing, e)
	}
	slices.Sort(res.Missing)
	y.used(a, entries, first, dst, missing, stats)
	return res, nil
}

// source is where an entry comes from: memory, a prefetch, or (neither) the drives.
type source struct {
	rec    []byte
	staged *staged
}

// sources looks entries up in memory and takes the arrangement for reading.
func (y *layer) sources(first map[uint32]int) (*arrangement, map[uint32]source, error) {
	from := make(map[uint32]source, len(first))
	y.mu.Lock()
	defer y.mu.Unlock()
	a, err := y.takeLocked()
	if err != nil {
		return nil, nil, err
	}
	for e := range first {
		switch {
		case y.mu.window[e] != nil:
			from[e] = source{rec: y.mu.window[e]}
		case y.mu.hot[e] != nil:
			from[e] = source{rec: y.mu.hot[e]}
		case y.mu.staged[e] != nil:
			from[e] = source{staged: y.mu.staged[e]}
		}
	}
	return a, from, nil
}

// takeLocked takes the arrangement in force for reading. It does not wait, for others need
// y.mu to be done with reading: whoever holds the one in force whole is about to drop the
// context. REQUIRES: y.mu.
func (y *layer) takeLocked() (*arrangement, error) {
	a := y.mu.arrangement
	if !a.readers.TryRLock() {
		return nil, notFound(y.k.place.last)
	}
	return a, nil
}

// planeIn is the destination itself where a drive may write a record into it, else memory
// of our own. What lies between the destination's length and its capacity is another's.
func (k *sparseContext) planeIn(dst []byte) []byte {
	if int64(len(dst)) >= k.record && addressOf(dst)%layout.PageSize == 0 {
		return dst[:k.record]
	}
	return aligned(k.record)
}

// overlap reports whether destinations of two entries share memory: what is kept in memory
// of a Fetch is copied from there.
func (k *sparseContext) overlap(entries []uint32, dst [][]byte) bool {
	type span struct {
		from, to int64
		entry    uint32
	}
	spans, sorted := make([]span, len(dst)), true
	for i, b := range dst {
		from := addressOf(b)
		spans[i] = span{from, from + k.entry, entries[i]}
		if int64(len(b)) >= k.record && from%layout.PageSize == 0 {
			spans[i].to = from + k.record
		}
		sorted = sorted && (i == 0 || spans[i-1].from <= from)
	}
	if !sorted {
		slices.SortFunc(spans, func(x, y span) int { return cmp.Compare(x.from, y.from) })
	}
	end := int64(0)
	for i, s := range spans { // one entry twice in one place is the same bytes
		if s.from < end && (s.entry != spans[i-1].entry || s.from != spans[i-1].from) {
			return true
		}
		end = max(end, s.to)
	}
	return false
}

// join waits for prefetched entries; those that did not come are read now.
func (y *layer) join(ctx context.Context, a *arrangement, entries []uint32, first map[uint32]int, from map[uint32]source, dst [][]byte, missing map[uint32]bool, res *skep.FetchResult) error {
	var late []uint32
	var planes [][]byte
	for i, e := range entries {
		s := from[e].staged
		if first[e] != i || s == nil {
			continue
		}
		select {
		case <-s.done:
		case <-ctx.Done():
			return &skep.Error{Op: "fetch", Kind: skep.Deadline, Err: ctx.Err()}
		}
		if s.data == nil {
			late = append(late, e)
			planes = append(planes, aligned(y.k.record))
			continue
		}
		copy(dst[i][:y.k.entry], s.data)
		res.Joined++
	}
	failed, stats, err := y.read(ctx, a, late, planes)
	if err != nil {
		return err
	}
	res.Reads += stats.reads
	res.Records += stats.records
	for i, e := range late {
		if slices.Contains(failed, e) {
			missing[e] = true
			continue
		}
		copy(dst[first[e]][:y.k.entry], planes[i])
	}
	y.mu.Lock()
	y.mu.used += int64(res.Joined)
	y.mu.Unlock()
	return nil
}

// used keeps what a Fetch brought, where it is worth it, and follows how good reads are.
func (y *layer) used(a *arrangement, entries []uint32, first map[uint32]int, dst [][]byte, missing map[uint32]bool, stats readStats) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if stats.share > 0 {
		if y.mu.share == 0 {
			y.mu.share = stats.share
		}
		y.mu.share += (stats.share - y.mu.share) / 32
		y.mu.best = max(y.mu.best, y.mu.share)
	}
	if y.mu.arrangement != a || y.k.head.DRAM < y.k.record {
		return
	}
	seen := map[int]bool{}
	var units []int
	for e := range first {
		if int(e) < len(y.mu.unitOf) && y.mu.unitOf[e] >= 0 && !seen[int(y.mu.unitOf[e])] {
			seen[int(y.mu.unitOf[e])] = true
			units = append(units, int(y.mu.unitOf[e]))
		}
	}
	slices.Sort(units)
	y.mu.heat.Step(units)
	for e := range y.mu.hot {
		if !y.hotLocked(e) {
			delete(y.mu.hot, e)
		}
	}
	for i, e := range entries {
		if first[e] == i && !missing[e] && y.mu.hot[e] == nil && y.hotLocked(e) {
			y.mu.hot[e] = slices.Clone(dst[i][:y.k.entry])
		}
	}
}

type readStats struct {
	reads, records int
	balance, share float64
}

// read reads entries into planes of a record each: planned over copies and drives, one
// session, and what fails once more from other copies, and alone. It returns what no copy gave.
func (y *layer) read(ctx context.Context, a *arrangement, entries []uint32, planes [][]byte) (failed []uint32, st readStats, err error) {
	if len(entries) == 0 {
		return nil, st, nil
	}
	cost := y.k.cost()
	plan := a.plan(entries, cost)
	at := make(map[layout.Spot]int, len(entries))
	for i, e := range entries {
		if len(a.placement.Spots(e)) == 0 {
			failed = append(failed, e)
			continue
		}
		at[plan.From[i]] = i
	}
	st.balance, st.records = plan.Balance(), plan.Records()
	if t := plan.Time(); t > 0 {
		st.share = float64(len(entries)) * float64(y.k.record/layout.PageSize) * cost.Page / float64(a.placement.Devices()) / t
	}
	var runs []layout.SparseRun
	for _, r := range plan.Runs { // a block's end ends a run
		for r.Slots > 0 {
			n := min(r.Slots, slotsPerBlock-r.Slot%slotsPerBlock)
			runs = append(runs, layout.SparseRun{Device: r.Device, Slot: r.Slot, Slots: n})
			r.Slot, r.Slots = r.Slot+n, r.Slots-n
		}
	}
	st.reads = len(runs)
	begin := time.Now()
	bad, err := y.readRuns(ctx, a, runs, at, planes)
	if err != nil {
		return nil, st, err
	}
	if len(bad) == 0 {
		busiest, mine, slots := plan.Busiest(), 0, 0
		for _, r := range runs {
			if r.Device == busiest {
				mine, slots = mine+1, slots+int(r.Slots)
			}
		}
		y.k.s.drives.learn(mine, slots*int(y.k.record/layout.PageSize), time.Since(begin))
	}
	// Other copies, one by one; then the first once more, without its neighbours, of which one may be bad.
	for try := 0; len(bad) > 0; try++ {
		runs = runs[:0]
		again := map[layout.Spot]int{}
		for _, i := range bad {
			spots := slices.DeleteFunc(slices.Clone(a.placement.Spots(entries[i])), func(s layout.Spot) bool { return s == plan.From[i] })
			if spots = append(spots, plan.From[i]); try >= len(spots) {
				failed = append(failed, entries[i])
				continue
			}
			again[spots[try]] = i
			runs = append(runs, layout.SparseRun{Device: spots[try].Device, Slot: spots[try].Slot, Slots: 1})
		}
		st.reads += len(runs)
		if bad, err = y.readRuns(ctx, a, runs, again, planes); err != nil {
			return nil, st, err
		}
	}
	return failed, st, nil
}

// readRuns reads runs, none of which crosses a block's end, and returns which of the
// entries (by their place in planes) did not come.
func (y *layer) readRuns(ctx context.Context, a *arrangement, runs []layout.SparseRun, at map[layout.Spot]int, planes [][]byte) (bad []int, err error) {
	var trash []byte // a gap's records, each its own: reads of several drives are checked where they land
	for batch := range slices.Chunk(runs, skep.MaxChains) {
		r := &skep.RestoreRequest{Chains: make([]skep.Chain, len(batch))}
		gaps := int64(0)
		for _, run := range batch {
			for s := range run.Slots {
				if _, ok := at[layout.Spot{Device: run.Device, Slot: run.Slot + s}]; !ok {
					gaps++
				}
			}
		}
		if n := gaps * y.k.record; int64(len(trash)) < n {
			trash = aligned(n)
		}
		rest := trash
		for c, run := range batch {
			b := a.where[run.Device][run.Slot/slotsPerBlock]
			from := int(run.Slot % slotsPerBlock)
			to := from + int(run.Slots)
			p := make([][2][]byte, slotsPerBlock)
			for s := from; s < to; s++ {
				if i, ok := at[layout.Spot{Device: run.Device, Slot: run.Slot + uint32(s-from)}]; ok {
					p[s][0] = planes[i]
					continue
				}
				p[s][0], rest = rest[:y.k.record:y.k.record], rest[y.k.record:]
			}
			r.Chains[c] = skep.Chain{Scope: y.k.records, Keys: []skep.Key{y.k.recordKey(y.n, a.gen, b.device, b.block)}, Layers: skep.Only(from, to),
				Dest: skep.Destination{Paged: &skep.Paged{Planes: p, PageStride: y.k.record, Pages: []int{0}}}}
		}
		failed, err := y.k.restore(ctx, r)
		if err != nil {
			return nil, err
		}
		for _, c := range failed {
			for s := range batch[c].Slots {
				if i, ok := at[layout.Spot{Device: batch[c].Device, Slot: batch[c].Slot + s}]; ok {
					bad = append(bad, i)
				}
			}
		}
	}
	return bad, nil
}

// restore runs a session to its end and returns which chains failed.
func (k *sparseContext) restore(ctx context.Context, r *skep.RestoreRequest) (failed []int, err error) {
	missed := map[int]bool{}
	err = skep.Load(ctx, k.s.st, r, func(c *skep.Chunk) error {
		if c.Err != nil && !missed[c.Chain] {
			missed[c.Chain] = true
			failed = append(failed, c.Chain)
		}
		return nil
	})
	return failed, err
}
