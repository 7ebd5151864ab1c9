package gputest

import (
	"bytes"
	"fmt"
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
	layers, buffers     int
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
	buffer := func(e int) gpu.Place { return p.place(p.local, n%p.buffers, e) }
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

// runPrefill streams four steps over five layers and says what was wrong at the end.
func runPrefill(t *testing.T, open Open, s gpu.Schedule, seed uint64) string {
	steps := []int{25, 56, 57, 120}
	m := open(t, Config{Seed: seed})
	mine, lender := m.Devices[0], m.Devices[1]
	require.NoError(t, mine.EnablePeer(lender))
	p := &prefill{layers: 5, buffers: s.Buffers, entry: 64, block: 16, total: 120}
	for i := range p.lasts {
		p.lasts[i] = []time.Duration{5, 1, 60, 20}[seed>>(2*i)%4] * time.Microsecond
	}
	room := func(d gpu.Device, layers int) gpu.Memory { return alloc(t, d, int64(layers*p.layerBytes())) }
	p.local, p.fresh, p.seen = room(mine, p.buffers), room(mine, p.layers), room(mine, p.layers*len(steps))
	p.lent = room(lender, p.layers)
	streams := [3]gpu.Stream{stream(t, mine), stream(t, mine), stream(t, mine)}
	for l := range p.layers {
		streams[0].CopyIn(p.place(p.fresh, l, 0), p.content(l))
	}
	require.NoError(t, streams[0].Sync(Soon(t)))
	pipe, err := gpu.NewPipeline(mine, s, streams[0], streams[1], streams[2])
	require.NoError(t, err)
	for _, to := range steps {
		p.from, p.to = p.to, to
		pipe.Step(p.layers, p)
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

// With all its waits the schedule never shows a wrong byte; without any one of them it does,
// where work is put off.
func testSchedule(t *testing.T, open Open) {
	whole, most, tried := uint64(12), uint64(200), []int{1, 2, 3}
	if testing.Short() {
		whole, tried = 3, tried[:1]
	}
	for _, buffers := range tried {
		s, err := gpu.NewSchedule(buffers)
		require.NoError(t, err)
		for seed := range whole {
			require.Empty(t, runPrefill(t, open, s, seed), "%d buffers, seed %d", buffers, seed)
		}
		if !open(t, Config{}).Deferred {
			continue
		}
		for i, w := range s.Waits {
			broken := s
			broken.Waits = append(append([]gpu.Dependency{}, s.Waits[:i]...), s.Waits[i+1:]...)
			seed := uint64(0)
			for seed < most && runPrefill(t, open, broken, seed) == "" {
				seed++
			}
			require.Less(t, seed, most, "%d buffers: nobody misses the wait of %v for %v", buffers, w.Task, w.On)
			t.Logf("%d buffers: the wait of %v for %v is missed with seed %d", buffers, w.Task, w.On, seed)
		}
	}
}
