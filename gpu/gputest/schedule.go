package gputest

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/gpu"
)

// prefill is a model of a few layers whose KV is in lent memory: each step adds entries to
// every layer, and attention reads all there are. Its kernels are copies, so that it runs on
// every back end: what a layer computes is copied from memory that holds it, and what
// attention reads is copied to where it can be looked at afterwards.
type prefill struct {
	layers              int
	schedule            gpu.Schedule
	entry, block, total int // bytes of an entry, entries of a block and of the whole context
	from, to            int // entries of this step: [from, to) are new

	// lasts is what a kernel takes: of projection, attention and feed-forward, shorter and
	// longer than transfers.
	lasts                    [3]time.Duration
	local, lent, fresh, seen gpu.Memory
	reads                    []read
}

// read is what an attention had before it.
type read struct{ layer, entries int }

// content is the KV of a layer.
func (p *prefill) content(l int) []byte {
	b := make([]byte, p.layerBytes())
	for i := range b {
		b[i] = byte(l*37 + i/p.entry*11 + i%p.entry + 1)
	}
	return b
}

func (p *prefill) layerBytes() int { return p.total * p.entry }

// loaded is how many entries a load brings: whole blocks.
func (p *prefill) loaded() int { return min((p.from+p.block-1)/p.block*p.block, p.total) }

// place is entry e of the i-th layer's room in a memory.
func (p *prefill) place(m gpu.Memory, i, e int) gpu.Place {
	return at(m, int64(i*p.layerBytes()+e*p.entry))
}

func (p *prefill) Do(t gpu.Task, n int, on gpu.Stream) {
	l := n % p.layers
	span := func(entries int) int64 { return int64(entries * p.entry) }
	i, streamed := p.schedule.Buffer(n, p.layers)
	if !streamed {
		i = p.schedule.Buffers + l
	}
	buffer := func(e int) gpu.Place { return p.place(p.local, i, e) }
	switch t {
	case gpu.TaskLoad:
		if p.from > 0 {
			on.Copy(buffer(0), p.place(p.lent, l, 0), span(p.loaded()))
		}
	case gpu.TaskQKV:
		on.Compute(p.lasts[0], nil)
	case gpu.TaskWrite:
		on.Copy(buffer(p.from), p.place(p.fresh, l, p.from), span(p.to-p.from))
	case gpu.TaskAttention:
		on.Compute(p.lasts[1], nil)
		on.Copy(p.place(p.seen, len(p.reads), 0), buffer(0), span(p.to))
		p.reads = append(p.reads, read{l, p.to})
	case gpu.TaskFFN:
		on.Compute(p.lasts[2], nil)
	case gpu.TaskStore:
		first := p.from / p.block * p.block // whole blocks
		on.Copy(p.place(p.lent, l, first), buffer(first), span(p.to-first))
	}
}

// site is where a wait is queued: on which of the pipeline's streams, for which of its counters.
type site struct {
	stream  int
	counter int // in the order in which they are first waited for
}

// waits are all that a pipeline has its streams wait for, in order; those that skip says are left out.
type waits struct {
	counters map[gpu.Counter]int
	queued   []site
	first    int                          // of queued, those of the first step, which loads nothing
	skip     func(call int, at site) bool // nil: none
}

// waiting is a stream that says so.
type waiting struct {
	gpu.Stream
	number int
	all    *waits
}

func (s waiting) Wait(c gpu.Counter, v uint64) {
	w := s.all
	if _, known := w.counters[c]; !known {
		w.counters[c] = len(w.counters)
	}
	at := site{s.number, w.counters[c]}
	w.queued = append(w.queued, at)
	if w.skip == nil || !w.skip(len(w.queued)-1, at) {
		s.Stream.Wait(c, v)
	}
}

// runPrefill streams four steps over five layers and says what was wrong at the end. It notes the waits,
// and leaves out those that are to be.
func runPrefill(t *testing.T, open Open, s gpu.Schedule, seed uint64, w *waits) string {
	w.counters, w.queued, w.first = map[gpu.Counter]int{}, nil, 0
	steps := []int{25, 56, 73, 120}
	m := open(t, Config{Seed: seed})
	mine, lender := m.Devices[0], m.Devices[1]
	require.NoError(t, mine.EnablePeer(lender))
	p := &prefill{layers: 5, schedule: s, entry: 64, block: 16, total: 120}
	for i := range p.lasts {
		p.lasts[i] = []time.Duration{5, 1, 60, 20}[seed>>(2*i)%4] * time.Microsecond
	}
	room := func(d gpu.Device, layers int) gpu.Memory { return alloc(t, d, int64(layers*p.layerBytes())) }
	p.local, p.fresh, p.seen = room(mine, s.Buffers+s.Resident), room(mine, p.layers), room(mine, p.layers*len(steps))
	p.lent = room(lender, p.layers)
	streams := [3]gpu.Stream{stream(t, mine), stream(t, mine), stream(t, mine)}
	for l := range p.layers {
		streams[0].CopyIn(p.place(p.fresh, l, 0), p.content(l))
	}
	require.NoError(t, streams[0].Sync(Soon(t)))
	pipe, err := gpu.NewPipeline(mine, s, waiting{streams[0], 0, w}, waiting{streams[1], 1, w}, waiting{streams[2], 2, w})
	require.NoError(t, err)
	for _, to := range steps {
		p.from, p.to = p.to, to
		if pipe.Step(p.layers, p); w.first == 0 {
			w.first = len(w.queued)
		}
	}
	for _, s := range streams {
		require.NoError(t, s.Sync(Soon(t)))
	}
	// rows is what is in the first n layers' rooms of a memory.
	rows := func(m gpu.Memory, n int) []byte {
		b := make([]byte, n*p.layerBytes())
		streams[0].CopyOut(b, at(m, 0))
		require.NoError(t, streams[0].Sync(Soon(t)))
		return b
	}
	wrong := ""
	seen, stored := rows(p.seen, len(p.reads)), rows(p.lent, p.layers)
	for i, r := range p.reads {
		if n := r.entries * p.entry; wrong == "" && !bytes.Equal(seen[i*p.layerBytes():][:n], p.content(r.layer)[:n]) {
			wrong = fmt.Sprintf("attention %d, of layer %d, reads wrong entries among %d", i, r.layer, r.entries)
		}
	}
	for l := range p.layers {
		if wrong == "" && !bytes.Equal(stored[l*p.layerBytes():][:p.layerBytes()], p.content(l)) {
			wrong = fmt.Sprintf("layer %d is wrong in lent memory", l)
		}
	}
	m.close(t)
	return wrong
}

// With all its waits the schedule never shows a wrong byte; without any one of them it does, where work
// is put off. The waits are not those that the schedule lists but all that are queued, so one that
// is queued and not listed would be left out too.
func testSchedule(t *testing.T, open Open) {
	whole, most, tried := uint64(12), uint64(200), []int{1, 2, 3}
	if testing.Short() {
		whole, tried = 3, tried[:1]
	}
	for _, buffers := range append(tried, -1) { // -1: one, and the first layer resident
		s, err := gpu.NewSchedule(max(buffers, 1))
		require.NoError(t, err)
		if buffers < 0 {
			s.Resident = 1
		}
		name := fmt.Sprintf("%d buffers, %d layers resident", s.Buffers, s.Resident)
		var all waits
		for seed := range whole {
			require.Empty(t, runPrefill(t, open, s, seed, &all), "%s, seed %d", name, seed)
		}
		sites := map[site]int{}
		for _, at := range all.queued {
			sites[at]++
		}
		require.Len(t, sites, len(s.Waits), "a place in a stream for each of the schedule's waits: %v", sites)
		if !open(t, Config{}).Deferred {
			continue
		}
		for at, n := range sites {
			missed := missedBy(t, open, s, most, func(_ int, x site) bool { return x == at })
			require.GreaterOrEqual(t, missed, 0, "%s: nobody misses the %d waits of stream %d for counter %d", name, n, at.stream, at.counter)
			t.Logf("%s: the %d waits of stream %d for counter %d are missed with seed %d", name, n, at.stream, at.counter, missed)
		}
		if s.Buffers == 1 && !testing.Short() {
			testSingleWaits(t, open, s, &all)
		}
	}
}

// testSingleWaits leaves out one wait of one layer of one step, each in its turn. The first step loads nothing:
// its loads wait in vain, and so does its first write that waits for one.
func testSingleWaits(t *testing.T, open Open, s gpu.Schedule, all *waits) {
	missed, last := 0, 0
	first := slices.IndexFunc(all.queued, func(at site) bool { return at.stream == 1 })
	for i, at := range all.queued {
		if i < all.first && at.stream == 0 || i == first {
			continue
		}
		seed := missedBy(t, open, s, 3000, func(call int, _ site) bool { return call == i })
		require.GreaterOrEqual(t, seed, 0, "nobody misses wait %d of %d, of stream %d for counter %d", i, len(all.queued), at.stream, at.counter)
		missed, last = missed+1, max(last, seed)
	}
	t.Logf("%d of %d waits, left out one by one, are missed, the last with seed %d", missed, len(all.queued), last)
}

// missedBy is the first seed that shows wrong bytes without some waits; -1: none.
func missedBy(t *testing.T, open Open, s gpu.Schedule, most uint64, skip func(int, site) bool) int {
	for seed := range most {
		if runPrefill(t, open, s, seed, &waits{skip: skip}) != "" {
			return int(seed)
		}
	}
	return -1
}
