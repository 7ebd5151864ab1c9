package sparse

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index/coact"
	"github.com/skepkv/skep/layout"
)

const (
	// fewestJudges is how few explorative steps may judge a layout.
	fewestJudges = 8
	// tauSteps is how many steps a radius is tried with, at most; the one that is chosen
	// then sees all.
	tauSteps = 512
)

// Recluster implements skep.SparseContext.
func (k *sparseContext) Recluster(ctx context.Context, n int) (skep.ReclusterResult, error) {
	var res skep.ReclusterResult
	y, err := k.layerOf("recluster", n)
	if err != nil {
		return res, err
	}
	if err := k.alive(ctx); err != nil {
		return res, err
	}
	if err := y.hold(ctx, "recluster"); err != nil {
		return res, err
	}
	defer y.free()
	if err := k.ended("recluster"); err != nil {
		return res, err
	}
	a := y.arranged()
	next, err := y.unfinished(ctx, a)
	if err != nil {
		return res, err
	}
	if res.Resumed = next != nil; next == nil {
		if next, err = y.better(ctx, a, &res); err != nil || next == nil {
			return res, err
		}
		// Of records under these keys a resumed recluster takes it that they are this plan's. A
		// store that evicts plans may have kept the records of one before.
		if _, err := k.s.st.Delete(ctx, k.records, next.recordKeys(k, n)); err != nil {
			return res, err
		}
		plan, _ := next.encode()
		if err := k.putMeta(ctx, k.key("plan", uint64(n)), plan); err != nil {
			return res, err
		}
	}
	if res.Moved, err = y.move(ctx, a, next, res.Resumed); err != nil {
		return res, err
	}
	res.Kept = true
	return res, nil
}

// unfinished is the arrangement an interrupted recluster was moving to, if it still fits.
func (y *layer) unfinished(ctx context.Context, a *arrangement) (*arrangement, error) {
	data, err := y.k.getMeta(ctx, y.k.key("plan", uint64(y.n)))
	if err != nil || data == nil {
		return nil, err
	}
	next, err := decodeArrangement(data)
	if err != nil {
		return nil, err
	}
	if next.gen == a.gen+1 && next.entries == a.entries && a.sameEntries(next) {
		return next, nil
	}
	if next.gen == a.gen {
		// It is in force, and the records from before may be there yet.
		err = y.deleteBefore(ctx, a)
	} else {
		// The context has grown since: what it wrote is of no use.
		_, err = y.k.s.st.Delete(ctx, y.k.records, next.recordKeys(y.k, y.n))
	}
	if err != nil {
		return nil, err
	}
	_, err = y.k.s.st.Delete(ctx, y.k.meta, []skep.Key{y.k.key("plan", uint64(y.n))})
	return nil, err
}

// sameEntries reports whether b has a place for the entries that a has one for, and no others.
// Which those are may change while their number does not: an entry may join after one that was
// appended later.
func (a *arrangement) sameEntries(b *arrangement) bool {
	placed := make([]bool, b.entries)
	for _, slots := range b.at {
		for _, e := range slots {
			if e != layout.NoEntry {
				placed[e] = true
			}
		}
	}
	for e, there := range placed {
		if there != (len(a.placement.Spots(uint32(e))) > 0) {
			return false
		}
	}
	return true
}

// deleteBefore deletes the records of the generation before a. Nobody knows any more how
// many there were: of an entry two copies, and on each drive the end of a block twice.
func (y *layer) deleteBefore(ctx context.Context, a *arrangement) error {
	k := y.k
	for d := range max(len(a.at), k.s.devices(), k.head.Devices) {
		var keys []skep.Key
		for b := range 2*a.entries/slotsPerBlock + 3 {
			keys = append(keys, k.recordKey(y.n, a.gen-1, d, b))
		}
		if _, err := k.s.st.Delete(ctx, k.records, keys); err != nil {
			return err
		}
	}
	return nil
}

// planned are the record keys of a plan that is stored, for dropping. One that is damaged names
// none; one that cannot be read now is an error, as it names them yet.
func (y *layer) planned(ctx context.Context) ([]skep.Key, error) {
	data, err := y.k.getMeta(ctx, y.k.key("plan", uint64(y.n)))
	if err == nil && data != nil {
		var next *arrangement
		if next, err = decodeArrangement(data); err == nil {
			return next.recordKeys(y.k, y.n), nil
		}
	}
	if errors.Is(err, skep.Damaged) {
		err = nil
	}
	return nil, err
}

// better makes a new arrangement from what was observed and judges both on explorative
// steps that the new one was not made from. nil: the old one stays, res.Reason says why.
// (The old one was made from steps observed before it, by keys if none were; a judge may
// be among those only if it was observed then, so judges are drawn from the newest half.)
func (y *layer) better(ctx context.Context, a *arrangement, res *skep.ReclusterResult) (*arrangement, error) {
	k := y.k
	y.mu.Lock()
	profile := y.mu.profile
	var explorative []int
	for t := y.mu.madeAt; t < profile.Steps(); t++ {
		if profile.Explorative(t) {
			explorative = append(explorative, t)
		}
	}
	rng := rand.New(rand.NewPCG(k.head.Seed, a.gen))
	rng.Shuffle(len(explorative), func(i, j int) { explorative[i], explorative[j] = explorative[j], explorative[i] })
	// Half of them judge; radii are compared on a quarter of what is left; the rest, and all
	// that is not explorative, is learned from.
	const learned, tried, tuning, judging = 0, 1, 2, 3
	role := make([]byte, profile.Steps())
	judges := (len(explorative) + 1) / 2
	for i, t := range explorative {
		switch rest := i - judges; {
		case rest < 0:
			role[t] = judging
		case rest < (len(explorative)-judges+3)/4:
			role[t] = tuning
		}
	}
	every := (profile.Steps() + tauSteps - 1) / tauSteps
	for t := 0; t < len(role); t += every {
		if role[t] == learned {
			role[t] = tried
		}
	}
	var try, tune, learn, judge *coact.Bits
	var err error
	if judges >= fewestJudges {
		bits := func(of func(t int) bool) (b *coact.Bits) {
			if err == nil {
				b, err = profile.Bits(of)
			}
			return b
		}
		learn = bits(func(t int) bool { return role[t] != judging })
		judge = bits(func(t int) bool { return role[t] == judging })
		tune = bits(func(t int) bool { return role[t] == tuning })
		try = bits(func(t int) bool { return role[t] == tried })
	}
	y.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if res.Judged = judges; learn == nil {
		res.Reason = fmt.Sprintf("%d explorative steps, %d needed", len(explorative), 2*fewestJudges)
		return nil, nil
	}
	// Entries that nothing activated have no row yet, and those of the window, which may have one, are left out.
	for _, b := range []**coact.Bits{&try, &tune, &learn, &judge} {
		if *b, err = (*b).Resize(a.entries); err != nil {
			return nil, err
		}
	}
	sinks := map[int]bool{}
	for _, e := range learn.Sinks() {
		sinks[int(e)] = true
	}
	// Entries that wait in the window have no place in either.
	placed := func(e uint32) bool { return len(a.placement.Spots(e)) > 0 }
	pages := int(k.record / layout.PageSize)
	time := func(p *layout.Placement, steps *coact.Bits) (sum float64) {
		as := layout.NewAssigner(p, k.cost(), pages, slotsPerBlock*pages, layout.Balanced)
		for t := range steps.Steps() {
			var wanted []uint32
			for _, e := range steps.Activated(t) {
				if placed(e) && !sinks[int(e)] {
					wanted = append(wanted, e)
				}
			}
			sum += as.Plan(wanted).Time()
		}
		return sum / float64(max(steps.Steps(), 1))
	}
	lay := func(c coact.Compacted) (*arrangement, *layout.Placement, error) {
		next, err := k.deal(a.gen+1, a.entries, only(c.Clusters, placed), only(c.Second, placed))
		if err != nil {
			return nil, nil, err
		}
		for _, slots := range next.at {
			for s, e := range slots {
				if !placed(e) {
					slots[s] = layout.NoEntry
				}
			}
		}
		p, err := layout.PlacementOf(next.entries, next.at)
		return next, p, err
	}
	goesOn := func() error { return k.goesOn(ctx, "recluster") }
	options := coact.CompactOptions{Seed: k.head.Seed, Workers: k.s.o.Workers}
	isSink := func(e int) bool { return sinks[e] }
	if options.Tau, err = coact.BestRadius(try.Without(isSink), options, nil, func(c coact.Compacted) (float64, error) {
		_, p, err := lay(c)
		if err := cmp.Or(err, goesOn()); err != nil {
			return 0, err
		}
		return time(p, tune), goesOn()
	}); err != nil {
		return nil, err
	}
	compact, err := coact.Compact(learn.Without(isSink), options)
	if err != nil {
		return nil, err
	}
	next, placement, err := lay(compact)
	if err := cmp.Or(err, goesOn()); err != nil {
		return nil, err
	}
	next.tau, res.Tau = options.Tau, options.Tau
	res.Before, res.After = time(a.placement, judge), time(placement, judge)
	if res.After >= res.Before*0.98 {
		res.Reason = "not better on the judged steps"
		return nil, nil
	}
	return next, nil
}

// only leaves entries out of clusters, and clusters that are empty then.
func only(cs coact.Clusters, keep func(uint32) bool) coact.Clusters {
	var out coact.Clusters
	for _, c := range cs {
		c = slices.DeleteFunc(slices.Clone(c), func(e uint32) bool { return !keep(e) })
		if len(c) > 0 {
			out = append(out, c)
		}
	}
	return out
}

// move stores the records of next, puts it in force, and deletes those of a once nobody
// reads them. Reads of a go on meanwhile.
func (y *layer) move(ctx context.Context, a, next *arrangement, resumed bool) (int, error) {
	k := y.k
	all := make([]uint32, 0, a.entries)
	for e := range uint32(a.entries) {
		if len(a.placement.Spots(e)) > 0 {
			all = append(all, e)
		}
	}
	mem := aligned(int64(len(all)) * k.record)
	planes, of := make([][]byte, len(all)), make(map[uint32]int, len(all))
	for i, e := range all {
		planes[i], of[e] = mem[int64(i)*k.record:][:k.record:k.record], i
	}
	a.readers.RLock()
	var missing []uint32
	for from := 0; from < len(all); from += 4096 {
		to := min(from+4096, len(all))
		failed, _, err := y.read(ctx, a, all[from:to], planes[from:to])
		if err = cmp.Or(err, k.goesOn(ctx, "recluster")); err != nil {
			a.readers.RUnlock()
			return 0, err
		}
		missing = append(missing, failed...)
	}
	a.readers.RUnlock()
	if len(missing) > 0 {
		return 0, &skep.Error{Op: "recluster", Kind: skep.Damaged, Field: "entries that cannot be read", Value: len(missing)}
	}
	at := func(e uint32) []byte { return planes[of[e]][:k.entry] }
	keys := k.keysOf(func(e uint32) []byte {
		if i, ok := of[e]; ok {
			return planes[i][:k.entry]
		}
		return make([]byte, k.entry) // in the window: no key is needed of it
	}, a.entries)
	next.keys = medoidKeys(keys, k.heads.KeyWidth(), next.clusters)
	var have func(skep.Key) bool
	if resumed {
		have = func(key skep.Key) bool {
			r, err := k.s.st.Lookup(skep.Uncounted(ctx), &skep.LookupRequest{Scope: k.records, Keys: []skep.Key{key}, Lease: skep.NoLease})
			return err == nil && r.Blocks == 1 // else it is written again, which does no harm
		}
	}
	written, err := k.writeRecords(ctx, y.n, next, at, have)
	if err != nil {
		return written, err
	}
	if err := y.put(ctx, next); err != nil {
		return written, err
	}
	if err := y.adopt(next); err != nil {
		return written, err
	}
	a.readers.Lock() // nobody reads the old ones any more, and nobody will
	_, err = k.s.st.Delete(ctx, k.records, a.recordKeys(k, y.n))
	a.readers.Unlock()
	if err != nil {
		return written, err
	}
	// The plan goes last: while it is there, the old records are looked for (unfinished).
	_, err = k.s.st.Delete(ctx, k.meta, []skep.Key{k.key("plan", uint64(y.n))})
	return written, err
}
