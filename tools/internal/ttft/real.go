package ttft

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout/twopointer"
	"github.com/skepkv/skep/layout/twopointer/sim"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/tools/internal/engine"
)

// run is one point of the grid in real time: one loop that is the engine, and a reader for
// each request's session.
//
//	arrive ─▶ Restore ─▶ session ── chunks ─▶ reader ── notes ─▶ loop
//	               ▲ claims (by words), Computed ─────────────────────── steps that only take time
type run struct {
	ctx    context.Context
	bed    *bed
	w      *Workload
	p      Point
	st     skep.Store
	scope  skep.Scope
	emu    *engine.Emulated
	cost   twopointer.Cost // what the engine says of itself
	eng    *sim.Engine
	jobs   []*job
	notes  chan note
	step   []sim.Item
	ended  chan struct{} // a step is over
	steps  sync.WaitGroup
	start  time.Time
	next   int // of the closed loop
	over   int
	busy   float64
	closes sync.WaitGroup
	closed chan error
	out    []sim.Outcome
	lines  []sim.Stroke
}

// job is a request under way.
type job struct {
	ses     skep.Session
	claims  *skep.Claimer
	mode    twopointer.Mode
	pos     int // where to claim next
	end     int
	granted int // tokens or layers granted and not computed
	missed  []int
	eof     bool
	done    bool // restored
}

// note is what a reader has seen.
type note struct {
	req    int
	bytes  int64
	missed []int // positions to compute that were expected to be loaded
	eof    bool
	err    error
	from   int // first position of a landed piece, for the timeline
	to     int
}

// Real runs one point on the bed's devices.
func Real(ctx context.Context, b *bed, w *Workload, g twopointer.GPU, m twopointer.Model, p Point) (_ *Row, err error) {
	bps := p.Bandwidth / 8 * 1e9
	st, scope, err := b.open(ctx, int64(bps/b.factor), p.Policy, p.Engine)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	if err := b.warm(ctx, st, scope, w); err != nil {
		return nil, err
	}
	before, err := st.Stats(ctx)
	if err != nil {
		return nil, err
	}
	r := &run{ctx: ctx, bed: b, w: w, p: p, st: st, scope: scope, emu: p.engine(g, m, p.Seed), notes: make(chan note, 1024),
		jobs: make([]*job, len(w.Requests)), out: make([]sim.Outcome, len(w.Requests)), ended: make(chan struct{}, 1), closed: make(chan error, len(w.Requests))}
	r.cost = r.emu.Stated()
	r.eng = &sim.Engine{Kind: p.Engine, Chunk: 512, Budget: budget, Ask: r.ask}
	err = r.loop()
	r.steps.Wait()
	r.closes.Wait()
	close(r.closed)
	for cerr := range r.closed {
		err = errors.Join(err, cerr)
	}
	if err != nil {
		return nil, err
	}
	took := r.now()
	after, err := st.Stats(ctx)
	if err != nil {
		return nil, err
	}
	row := &Row{Policy: p.Policy.String(), Bandwidth: p.Bandwidth, Batch: p.Loop, Load: p.Load, Engine: p.Engine.String(), Trace: w.Name,
		Emulated: true, Factor: b.factor, timeline: r.lines}
	row.fill(w, r.out)
	var read int64
	for i := range after.Devices {
		read += after.Devices[i].BytesRead - before.Devices[i].BytesRead
	}
	row.IOUtil, row.ComputeUtil = float64(read)/(bps/b.factor*took), r.busy/took
	row.bounds(w, [][]sim.Outcome{r.out}, r.emu, m, p)
	return row, nil
}

func (r *run) now() float64 { return time.Since(r.start).Seconds() }

// loop is the engine.
func (r *run) loop() error {
	r.start = time.Now()
	arrivals := time.NewTimer(0)
	defer arrivals.Stop()
	if r.p.Loop > 0 {
		arrivals.Stop()
		for range min(r.p.Loop, len(r.w.Requests)) {
			if err := r.arrive(); err != nil {
				return err
			}
		}
	}
	for r.over < len(r.w.Requests) {
		if r.step == nil {
			if r.step = r.eng.Form(); len(r.step) > 0 {
				r.begin()
			} else {
				r.step = nil
			}
		}
		// Claims can be refused for want of time alone: ask again before long.
		again := time.After(2 * time.Millisecond)
		select {
		case <-arrivals.C:
			for r.p.Loop == 0 && r.next < len(r.w.Requests) && r.w.Requests[r.next].At <= r.now() {
				if err := r.arrive(); err != nil {
					return err
				}
			}
			if r.next < len(r.w.Requests) {
				arrivals.Reset(time.Duration(max(r.w.Requests[r.next].At-r.now(), 0) * 1e9))
			}
		case n := <-r.notes:
			if err := r.seen(n); err != nil {
				return err
			}
		case <-r.ended:
			if err := r.end(); err != nil {
				return err
			}
		case <-again:
		case <-r.ctx.Done():
			return r.ctx.Err()
		}
	}
	return nil
}

// arrive starts the next request.
func (r *run) arrive() error {
	i := r.next
	r.next++
	q := &r.w.Requests[i]
	if r.p.Loop > 0 {
		r.emu.Progress(float64(i) / float64(len(r.w.Requests)))
	} else if last := r.w.Requests[len(r.w.Requests)-1].At; last > 0 {
		r.emu.Progress(q.At / last)
	}
	j := &job{end: q.Prefix}
	r.jobs[i] = j
	out := &r.out[i]
	out.Arrived = r.now()
	alone := r.eng.Active() == 0
	r.eng.Add(i, q.Prefix, q.Suffix)
	if q.Prefix == 0 {
		out.Restored, j.done = out.Arrived, true
		return nil
	}
	problem := twopointer.Problem{Tokens: q.Prefix, Layers: r.bed.model.Layers, Cost: r.cost.Times(r.emu.Slow()), BytesPerToken: float64(r.bed.model.BytesPerToken()),
		BytesPerSecond: r.p.Bandwidth / 8 * 1e9, Latency: latency}
	c := skep.Chain{Scope: r.scope, Keys: q.keys(), Direction: skep.TailFirst, Compute: &skep.Compute{Cost: r.cost.Recompute(), Suffix: q.Suffix}}
	if r.p.Policy == twopointer.Skep {
		c.Direction = skep.Auto
	} else if r.p.Policy.ModeFor(&problem, alone, 512, 0) == twopointer.ByLayers {
		c.Direction = skep.LayersDown
	}
	ses, err := r.st.Restore(r.ctx, &skep.RestoreRequest{Chains: []skep.Chain{c}})
	if err != nil {
		return err
	}
	if c.Direction, err = ses.Direction(r.ctx, 0); err != nil {
		return errors.Join(err, ses.Close(r.ctx))
	}
	if c.Direction.ByLayer() {
		j.mode, j.end = twopointer.ByLayers, r.bed.model.Layers
	}
	out.Mode = j.mode
	j.ses = ses
	unit, word := storeBlock, new(atomic.Uint64)
	if j.mode == twopointer.ByLayers {
		unit = 1
	}
	word.Store(uint64(skep.ClaimWord(0).Shut()))
	j.claims = skep.NewClaimer(ses, 0, word, unit, j.end)
	if err = ses.ShareClaimWord(r.ctx, 0, word); err != nil && !errors.Is(err, skep.Unsupported) { // then claims go by calls
		return errors.Join(err, ses.Close(r.ctx))
	}
	go r.read(i, j)
	return nil
}

// read passes on what lands, until all has.
func (r *run) read(i int, j *job) {
	var into [64]skep.Chunk
	for {
		n, err := j.ses.Next(r.ctx, into[:])
		v := note{req: i, from: -1}
		for k := range into[:n] {
			c := &into[k]
			at := c.Block * storeBlock
			if j.mode == twopointer.ByLayers {
				at = c.Layers.From
			}
			switch {
			case c.Err == nil:
				v.bytes += c.Bytes
				if v.from < 0 || at < v.from {
					v.from = at
				}
				v.to = max(v.to, at+storeBlock)
			case skep.KindOf(c.Err) != skep.Claimed:
				v.missed = append(v.missed, at)
			}
			c.Release()
		}
		v.eof = err == io.EOF
		if err != nil && !v.eof {
			v.err = err
		}
		select {
		case r.notes <- v:
		case <-r.ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// ask claims for the engine.
func (r *run) ask(i, _, want int, idle bool) twopointer.Decision {
	j := r.jobs[i]
	if len(j.missed) > 0 && j.eof {
		j.pos, j.missed = j.missed[0], j.missed[1:]
	}
	if j.pos >= j.end || j.ses == nil {
		return twopointer.Decision{}
	}
	if j.mode == twopointer.ByLayers {
		want = layersAtOnce
	}
	load := skep.Busy
	if idle {
		load = skep.Idle
	}
	c, err := j.claims.Claim(r.ctx, skep.Range{From: j.pos, To: min(j.pos+want, j.end)}, load)
	if err != nil {
		return twopointer.Decision{}
	}
	j.pos = c.Next
	if c.Granted.Len() <= 0 {
		return twopointer.Decision{}
	}
	j.granted += c.Granted.Len()
	return twopointer.Decision{What: twopointer.Grant, From: c.Granted.From, To: c.Granted.To, Mode: j.mode}
}

// layersAtOnce is how many layers an engine computes before it claims more.
const layersAtOnce = 8

// begin starts a step: it takes as long as the emulated engine says.
func (r *run) begin() {
	for k := range r.step {
		if it := &r.step[k]; it.LTo > it.LFrom {
			it.Layers = float64(it.LTo-it.LFrom) / float64(r.bed.model.Layers)
		}
	}
	took := r.emu.Step(r.step)
	r.busy += took
	if r.p.Timeline {
		for _, it := range r.step {
			s := sim.Stroke{Req: it.Req, What: "compute", From: it.From, To: it.To, Start: r.now(), End: r.now() + took}
			if it.Suffix {
				s.What = "suffix"
			}
			r.lines = append(r.lines, s)
		}
	}
	r.steps.Go(func() {
		device.Pause(time.Duration(took * 1e9))
		r.ended <- struct{}{}
	})
}

// end is a step's.
func (r *run) end() error {
	took := time.Duration(0)
	other, last := 0.0, -1
	for k, it := range r.step {
		if it.Suffix {
			other += r.cost.Span(it.From, it.To)
		} else {
			last = k
		}
	}
	took = time.Duration(r.emu.LastStep() * 1e9)
	for k, it := range r.step {
		if it.Suffix {
			continue
		}
		j := r.jobs[it.Req]
		rg := skep.Range{From: it.From, To: it.To}
		tokens := it.To - it.From
		if it.LTo > it.LFrom {
			rg = skep.Range{From: it.LFrom, To: it.LTo}
			tokens = int(float64(it.To-it.From) * it.Layers)
		}
		t, o := time.Duration(0), time.Duration(0)
		if k == last {
			t, o = took, time.Duration(other*1e9)
		}
		if err := j.ses.Computed(r.ctx, 0, rg, t, o); err != nil {
			return err
		}
		j.granted -= rg.Len()
		r.out[it.Req].Recomputed += tokens
		r.restored(it.Req)
	}
	items := r.step
	r.step = nil
	return r.finished(r.eng.Done(items))
}

// finished: these requests have their first token.
func (r *run) finished(ids []int) error {
	for _, id := range ids {
		r.out[id].First = r.now()
		r.over++
		if j := r.jobs[id]; j.ses != nil {
			r.closes.Go(func() { r.closed <- j.ses.Close(r.ctx) })
		}
		if r.p.Loop == 1 {
			r.closes.Wait() // who is alone has told the store that the one before is over
		}
		if r.p.Loop > 0 && r.next < len(r.w.Requests) {
			if err := r.arrive(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *run) seen(n note) error {
	if n.err != nil {
		return n.err
	}
	j := r.jobs[n.req]
	r.out[n.req].Loaded += float64(n.bytes)
	j.eof = j.eof || n.eof
	j.missed = append(j.missed, n.missed...)
	slices.Sort(j.missed)
	j.missed = slices.Compact(j.missed)
	if r.p.Timeline && n.from >= 0 {
		r.lines = append(r.lines, sim.Stroke{Req: n.req, What: "load", From: n.from, To: n.to, Start: r.now(), End: r.now()})
	}
	r.restored(n.req)
	return nil
}

// restored notes when all of a request's prefix is there.
func (r *run) restored(i int) {
	j := r.jobs[i]
	if j.done || !j.eof || j.granted > 0 || len(j.missed) > 0 {
		return
	}
	j.done = true
	r.out[i].Restored = r.now()
	r.eng.Restored(i)
}
