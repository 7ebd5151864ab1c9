package restore

import (
	"context"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/internal/locks"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/memory"
)

// prefetcher reads what hints say is needed soon from the drives into the DRAM tier, one job at a
// time, soonest first, after all other reads.
//
//	Hint (NextUse, Steps) ──▶ jobs ──▶ lead before it is due: groups of blocks, tail first,
//	                                   not yet in memory, within the budget ──▶ DRAM tier
//	Restore of the same chain ──▶ its job gives up what is not on its way: the restore reads that
//	                              itself, and joins the reads that are (join.go)
//
// What was read ahead counts against the budget until it is used; what leaves memory unused, or is
// not used in time, is counted as wasted.
type prefetcher struct {
	mu    locks.Mutex[locks.Prefetcher]
	jobs  []*ahead            // waiting and running
	byKey map[aheadKey]*ahead // by first and last key
	keys  int                 // of all jobs
	got   map[index.Fingerprint]fetched
	bytes int64 // of got
	kick  chan struct{}
	runs  bool
	any   atomic.Bool // there are jobs or unused blocks
	stats skep.PrefetchStats
}

// ahead is one hint's blocks, to be read before they are due.
type ahead struct {
	sc         skep.Scope
	ns         *namespaces.Namespace
	tag        namespaces.Tag
	keys       []skep.Key
	start, due time.Time
	over       bool     // the request is here, or the hint was dropped
	ses        *session // reads a group; nil: none
}

// aheadKey is a block that hints name: keys are of what they hash, which tenants and salts may share.
type aheadKey struct {
	instance uint32
	tag      namespaces.Tag
	key      skep.Key
}

func (j *ahead) ends() [2]aheadKey {
	return [2]aheadKey{{j.ns.Instance, j.tag, j.keys[0]}, {j.ns.Instance, j.tag, j.keys[len(j.keys)-1]}}
}

// fetched is a block that was read ahead.
type fetched struct {
	bytes int64
	until time.Time // what is not used by then counts as wasted
}

const (
	maxAhead        = 1024                                   // hints remembered
	MaxPrefetchKeys = 1 << 16                                // of all of them
	PrefetchState   = MaxPrefetchKeys*(32+64) + maxAhead*640 // bytes they take at most
	aheadGroup      = 64                                     // blocks read together
	aheadWindow     = 1 << 20                                // bytes at the drives at once: what a foreground read may find before it
	aheadLead       = 10 * time.Second                       // before what is needed is due
	maxWait         = time.Hour                              // until what is remembered is due
	// stepTime is what a step to execution is reckoned to take. Hints in steps say nothing of time.
	stepTime = time.Second
)

// Hint takes a hint about blocks of a chain. Hints beyond what is remembered, and of what is due later than maxWait,
// are dropped and counted.
func (rs *Restorer) Hint(ns *namespaces.Namespace, t namespaces.Tag, sc skep.Scope, keys []skep.Key, h skep.Hint) {
	p := &rs.prefetch
	if rs.PrefetchBytes <= 0 || rs.Cache == nil || len(keys) == 0 {
		return
	}
	wait := h.NextUse
	if h.Steps > 0 && (wait == 0 || time.Duration(h.Steps)*stepTime < wait) {
		wait = time.Duration(h.Steps) * stepTime
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.byKey[aheadKey{ns.Instance, t, keys[len(keys)-1]}]; old != nil {
		p.endLocked(old) // what is said last counts
	}
	if wait <= 0 || h.Drop {
		return
	}
	if wait > maxWait {
		p.stats.Dropped++
		return
	}
	due := rs.Clock().Add(wait)
	if !p.makeRoomLocked(ns.Tenant, len(keys), due) {
		p.stats.Dropped++
		return
	}
	j := &ahead{sc: skep.Scope{Namespace: sc.Namespace, Salt: sc.Salt}, ns: ns, tag: t, keys: slices.Clone(keys), start: due.Add(-aheadLead), due: due}
	if p.byKey == nil {
		p.byKey, p.got, p.kick = map[aheadKey]*ahead{}, map[index.Fingerprint]fetched{}, make(chan struct{}, 1)
	}
	p.jobs = append(p.jobs, j)
	for _, k := range j.ends() {
		p.byKey[k] = j
	}
	p.keys += len(keys)
	p.any.Store(true)
	if !p.runs {
		p.runs = true
		rs.Background.Go(rs.runPrefetch)
	}
	p.wake()
}

// makeRoomLocked drops what has to give way to a hint of a tenant, the furthest first, of whoever has most: where that
// is the tenant itself, only what is due later than the hint. False: there is no room, and nothing is dropped.
// REQUIRES: p.mu.
func (p *prefetcher) makeRoomLocked(tenant uint16, keys int, due time.Time) bool {
	weight := func(keys int) int { return keys + MaxPrefetchKeys/maxAhead } // a hint's, of both that are bounded
	jobs, all := len(p.jobs)+1, p.keys+keys
	has := map[uint16]int{tenant: weight(keys)}
	if jobs > maxAhead || all > MaxPrefetchKeys {
		for _, j := range p.jobs {
			has[j.ns.Tenant] += weight(len(j.keys))
		}
	}
	gone := map[*ahead]bool{}
	for jobs > maxAhead || all > MaxPrefetchKeys {
		most := tenant
		for t, n := range has {
			if n > has[most] || n == has[most] && t < most && most != tenant {
				most = t
			}
		}
		var last *ahead
		for _, j := range p.jobs {
			if j.ns.Tenant == most && !gone[j] && (most != tenant || j.due.After(due)) && (last == nil || j.due.After(last.due)) {
				last = j
			}
		}
		if last == nil {
			return false
		}
		gone[last] = true
		has[most] -= weight(len(last.keys))
		jobs, all = jobs-1, all-len(last.keys)
	}
	for j := range gone {
		p.stats.Dropped++
		p.endLocked(j)
	}
	return true
}

func (p *prefetcher) wake() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// endLocked forgets a job. REQUIRES: p.mu.
func (p *prefetcher) endLocked(j *ahead) {
	if i := slices.Index(p.jobs, j); i >= 0 {
		p.jobs = slices.Delete(p.jobs, i, i+1)
		p.keys -= len(j.keys)
		for _, k := range j.ends() {
			if p.byKey[k] == j {
				delete(p.byKey, k)
			}
		}
	}
	j.over = true
	p.any.Store(len(p.jobs)+len(p.got) > 0)
}

// runPrefetch reads ahead until the store closes.
func (rs *Restorer) runPrefetch() {
	p := &rs.prefetch
	for {
		j, wait := rs.nextAhead()
		if j != nil {
			rs.readAhead(j)
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-rs.Context.Done():
		case <-p.kick:
		case <-timer.C:
		}
		timer.Stop()
		if rs.Context.Err() != nil {
			return
		}
	}
}

// nextAhead is the job that is due first of those that may begin, or how long to wait.
func (rs *Restorer) nextAhead() (*ahead, time.Duration) {
	p := &rs.prefetch
	now := rs.Clock()
	p.mu.Lock()
	defer p.mu.Unlock()
	for fp, f := range p.got {
		if now.After(f.until) || !rs.Cache.Has(memory.IDOf(fp, skep.PartKV)) {
			p.stats.WastedBytes += f.bytes
			p.forgetLocked(fp, f)
		}
	}
	wait := time.Hour
	if len(p.got) > 0 {
		wait = time.Second
	}
	var best *ahead
	for _, j := range p.jobs {
		if d := j.start.Sub(now); d > 0 {
			wait = min(wait, d)
		} else if best == nil || j.due.Before(best.due) {
			best = j
		}
	}
	if p.bytes >= rs.PrefetchBytes { // until something is used
		return nil, min(wait, time.Second)
	}
	return best, wait
}

func (p *prefetcher) forgetLocked(fp index.Fingerprint, f fetched) {
	delete(p.got, fp)
	p.bytes -= f.bytes
	p.any.Store(len(p.jobs)+len(p.got) > 0)
}

// readAhead reads a job's blocks, last first, until it is over or the budget is.
func (rs *Restorer) readAhead(j *ahead) {
	p := &rs.prefetch
	for to := len(j.keys); to > 0; to -= min(to, aheadGroup) {
		p.mu.Lock()
		room := rs.PrefetchBytes - p.bytes
		over := j.over || room <= 0 || rs.Context.Err() != nil
		p.mu.Unlock()
		if over {
			break
		}
		if !rs.readGroup(j, max(to-aheadGroup, 0), to, room) {
			break
		}
	}
	p.mu.Lock()
	p.endLocked(j)
	p.mu.Unlock()
}

// readGroup reads what of blocks [from, to) is not in memory, as far as room allows. False: no
// more can be read.
func (rs *Restorer) readGroup(j *ahead, from, to int, room int64) bool {
	p := &rs.prefetch
	r := &skep.RestoreRequest{Window: aheadWindow}
	for b := to - 1; b >= from && room > 0; b-- {
		fp := rs.Names.Fingerprint(j.ns.Instance, j.tag, j.keys[b])
		e, ok := rs.Index.Resolve(fp)
		if !ok || e.Location == 0 || rs.Cache.Has(memory.IDOf(fp, skep.PartKV)) {
			continue
		}
		if room -= rs.Source.PayloadOf(j.ns, fp, e); room < 0 {
			break
		}
		if n := len(r.Chains); n > 0 {
			last := &r.Chains[n-1]
			if some, _ := last.Blocks.Bounds(); some.From == b+1 {
				last.Blocks = skep.Only(b, some.To)
				continue
			}
		}
		r.Chains = append(r.Chains, skep.Chain{Scope: j.sc, Keys: j.keys, Blocks: skep.Only(b, b+1), Direction: skep.TailFirst, Priority: math.MinInt32})
	}
	if len(r.Chains) == 0 {
		return room > 0
	}
	ctx, cancel := context.WithTimeout(rs.Context, rs.OpTimeout)
	defer cancel()
	ses, err := rs.restore(ctx, r, j)
	if err != nil {
		return false
	}
	p.mu.Lock()
	j.ses = ses
	over := j.over
	p.mu.Unlock()
	if over {
		ses.overtake()
	}
	err = skep.Drain(ctx, ses, nil)
	p.mu.Lock()
	j.ses = nil
	p.mu.Unlock()
	closing, done := context.WithTimeout(context.Background(), rs.CloseTimeout)
	defer done()
	closed := ses.Close(closing)
	return err == nil && closed == nil && room > 0
}

// overtake gives up what a session that reads ahead has not on its way.
func (ses *session) overtake() {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if !ses.ending {
		for _, c := range ses.chains {
			ses.dropWaitingLocked(c, errOvertaken)
		}
	}
}

var errOvertaken = &skep.Error{Op: "prefetch", Kind: skep.Stopped}

// arrived tells that chains are being restored now: their jobs are over.
func (p *prefetcher) arrived(chains []*chain) {
	if !p.any.Load() {
		return
	}
	var reading []*session
	p.mu.Lock()
	for _, c := range chains {
		for i := c.Blocks.From; i < c.Blocks.To && len(p.jobs) > 0; i++ {
			j := p.byKey[aheadKey{c.NS.Instance, c.Tag, c.Keys[i]}]
			if j == nil {
				continue
			}
			p.stats.Promoted++
			p.endLocked(j)
			if j.ses != nil {
				reading = append(reading, j.ses)
			}
		}
	}
	p.mu.Unlock()
	for _, ses := range reading {
		ses.overtake()
	}
}

// prefetched takes a chunk that was read ahead. It is in memory now, if there was room.
func (rs *Restorer) prefetched(ch *chunk, j *ahead) {
	p := &rs.prefetch
	bytes := ch.out.Bytes
	there := rs.Cache.Has(memory.IDOf(ch.at.FP, ch.chain.Part))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.ReadBytes += bytes
	switch {
	case ch.wanted: // by a restore that joined it
		p.stats.UsedBytes += bytes
	case !there:
		p.stats.WastedBytes += bytes
	default:
		if old, again := p.got[ch.at.FP]; again { // it left memory unused meanwhile
			p.stats.WastedBytes += old.bytes
			p.forgetLocked(ch.at.FP, old)
		}
		p.got[ch.at.FP] = fetched{bytes, j.due.Add(max(2*aheadLead, j.due.Sub(j.start)))}
		p.bytes += bytes
		p.any.Store(true)
	}
}

// nowInMemory says that a chunk's block was read, ahead or by another restore, since it was found, and takes it from
// there.
func (rs *Restorer) nowInMemory(ch *chunk) bool {
	f := ch.at
	if !rs.prefetch.any.Load() && ch.chain.wants == nil || ch.chain.Direction.ByLayer() || ch.ses.ahead != nil || rs.Cache == nil { // chunks of a layer share f
		return false
	}
	h := rs.Cache.Part(f.FP, ch.chain.Part)
	if h == nil {
		return false
	}
	if h.Len() != f.Size {
		h.Release()
		return false
	}
	f.Memory = h
	return true
}

// used notes that a block came from memory for a restore.
func (p *prefetcher) used(fp index.Fingerprint) {
	if !p.any.Load() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if f, ok := p.got[fp]; ok {
		p.stats.UsedBytes += f.bytes
		p.forgetLocked(fp, f)
		p.wake()
	}
}

// snapshot is what Stats says.
func (p *prefetcher) snapshot() skep.PrefetchStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := p.stats
	st.Waiting, st.UnusedBytes = int64(len(p.jobs)), p.bytes
	return st
}
