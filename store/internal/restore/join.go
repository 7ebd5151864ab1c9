package restore

import (
	"container/heap"
	"github.com/skepkv/skep/store/internal/locks"
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/memory"
)

// joins is what is being read from drives, so that a second chunk of the same bytes waits for the first one's reads
// instead of making its own: chains of a batch that share a prefix read it once. Who waits (a follower) gets a copy
// when the first (the leader) was checked, before that one is delivered, and never out of memory that others can write
// (exposed.go); when the leader fails or is stopped, its followers are read on their own.
type joins struct {
	mu locks.Mutex[locks.Joins]
	m  map[joinKey]*leading
}

// joinKey names bytes on drives. A block that moved or was replaced lies elsewhere.
type joinKey struct {
	fp    index.Fingerprint
	loc   layout.Location
	part  string
	first layout.Span
	spans int
}

// leading is a chunk under way and who waits for it.
type leading struct {
	ch      *chunk
	reads   []*read // it was issued with
	waiting []*chunk
}

func (ch *chunk) joinKey() joinKey {
	f := ch.at
	return joinKey{f.FP, f.At, ch.chain.Part, ch.spans[0], len(ch.spans)}
}

// join has ch wait for a chunk of the same bytes that is under way, or end where nobody wants it any more. False: it
// has to be read.
func (j *joins) join(ch *chunk) bool {
	if len(ch.spans) == 0 {
		return false
	}
	j.mu.Lock()
	if ch.cancelled.Load() { // cancelQueued may have looked already, and would not find it here
		j.mu.Unlock()
		ch.ses.rs.workers.add(ch)
		return true
	}
	l := j.m[ch.joinKey()]
	if l == nil || l.ch.cancelled.Load() || !slices.Equal(l.ch.spans, ch.spans) {
		j.mu.Unlock()
		return false
	}
	l.waiting = append(l.waiting, ch)
	reads := l.reads
	j.mu.Unlock()
	for _, r := range reads {
		r.drive.Queue().raise(r, ch.priority)
	}
	return true
}

// lead lets others join ch, whose reads are about to be queued.
func (j *joins) lead(ch *chunk) {
	if len(ch.spans) == 0 {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.m == nil {
		j.m = map[joinKey]*leading{}
	}
	if k := ch.joinKey(); j.m[k] == nil {
		j.m[k] = &leading{ch: ch, reads: slices.Clone(ch.reads)}
		ch.leads = true
	}
}

// over ends ch's lead and gives who waited for it.
func (j *joins) over(ch *chunk) []*chunk {
	if !ch.leads {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	ch.leads = false
	k := ch.joinKey()
	l := j.m[k]
	delete(j.m, k)
	return l.waiting
}

// cancelled takes out the followers that nobody wants any more.
func (j *joins) cancelled() (out []*chunk) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, l := range j.m {
		l.waiting = slices.DeleteFunc(l.waiting, func(ch *chunk) bool {
			gone := ch.cancelled.Load()
			if gone {
				out = append(out, ch)
			}
			return gone
		})
	}
	return out
}

// raise gives a read that waits the priority of who joined it, if that is higher.
func (q *Queue) raise(r *read, priority int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if r.priority >= priority {
		return
	}
	r.priority = priority
	if i := slices.Index(q.waits, r); i >= 0 {
		heap.Fix(&q.waits, i)
	}
}

// share gives followers, and the DRAM tier where others want it, what ch has read and checked.
func (ch *chunk) share() {
	rs := ch.ses.rs
	with := rs.joins.over(ch)
	budget := memory.BudgetIO
	keep := rs.keeps(ch, with)
	if keep {
		budget = memory.BudgetCache
	}
	if len(with) == 0 && !keep {
		return
	}
	from, ok := ch.aside(budget)
	if !ok {
		if len(with) > 0 {
			go rs.issue(with) // it may wait for memory, which workers give back
		}
		return
	}
	defer from.release()
	if keep {
		if bufs := ch.inOrder(from.pieces, from.bufs); bufs != nil {
			rs.admit(ch.at.FP, ch.at.At.Pack(), ch.chain.Part, ch.at.Size, bufs)
			rs.Count.Kept.Add(ch.at.Size)
		}
	}
	for _, w := range with {
		switch done, err := w.take(&from); {
		case done:
			rs.Count.Joined.Add(w.out.Bytes)
			ch.wanted = ch.wanted || err == nil && w.ses.ahead == nil
			w.finish(err)
		default:
			go rs.issue([]*chunk{w})
		}
	}
}

// disband has the followers of a chunk that will not come read on their own.
func (ch *chunk) disband() {
	if list := ch.ses.rs.joins.over(ch); len(list) > 0 {
		go ch.ses.rs.issue(list) // it may wait for memory, which workers give back
	}
}

// take copies what another chunk has read, or shares its memory where bytes are lent. False: it
// cannot be shared, and has to be read.
func (ch *chunk) take(from *aside) (done bool, err error) {
	if ch.cancelled.Load() {
		return true, errCancelled
	}
	var bufs []*memory.Buffer
	if ch.lends() {
		for _, b := range from.bufs {
			if b.Retain() != nil {
				memory.ReleaseAll(bufs)
				return false, nil
			}
			bufs = append(bufs, b)
		}
	}
	ch.temp, ch.joined = bufs, true
	ch.pieces = slices.Clone(from.pieces)
	ch.out.Tier = skep.TierDevice
	ch.attachSums()
	err = ch.deliver()
	ch.pieces = nil
	return true, err
}
