package routebench

import (
	"cmp"
	"container/heap"
	"math/rand/v2"
	"time"

	"github.com/skepkv/skep/tools/internal/trace"
)

// request is one of a workload.
type request struct {
	chain       []uint64
	blockTokens int
	tokens      int
}

// lane is the requests of a session, each as what it adds to the one before it.
type lane struct {
	ids  []uint64
	recs []record
}

type record struct {
	time                time.Duration
	shared, added       int
	tokens, blockTokens int
}

// workload is a recorded one: sessions, or requests that have none.
type workload struct {
	lanes    []*lane
	sessions bool
	requests int
}

// read reads a workload, limit requests of it; 0: all.
func read(path string, limit int) (*workload, error) {
	r, err := trace.Open(path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	w := &workload{}
	by, last := map[string]*lane{}, map[string][]uint64{}
	for x, err := range r.All() {
		if err != nil {
			return nil, err
		}
		if limit > 0 && w.requests == limit {
			break
		}
		if len(x.Blocks) == 0 {
			continue
		}
		w.requests++
		var before []uint64
		l := by[x.Session]
		if l == nil || x.Session == "" {
			l = &lane{}
			w.lanes = append(w.lanes, l)
		}
		if x.Session != "" {
			w.sessions = true
			by[x.Session], before = l, last[x.Session]
		}
		shared := 0
		for shared < min(len(before), len(x.Blocks)) && before[shared] == x.Blocks[shared] {
			shared++
		}
		l.ids = append(l.ids, x.Blocks[shared:]...)
		l.recs = append(l.recs, record{time: x.Time, shared: shared, added: len(x.Blocks) - shared,
			tokens: x.InputTokens, blockTokens: x.BlockTokens})
		if x.Session != "" {
			last[x.Session] = append(before[:shared], x.Blocks[shared:]...)
		}
	}
	return w, nil
}

// arrivals gives the requests of a workload in the order in which they come.
type arrivals struct {
	w      *workload
	speed  float64
	queue  []*coming
	others []*lane // sessions that have not begun
	serial int
}

// coming is the next request of a lane.
type coming struct {
	*lane
	at         time.Duration
	next, used int
	chain      []uint64
	serial     int
}

func (a *arrivals) Len() int      { return len(a.queue) }
func (a *arrivals) Swap(i, j int) { a.queue[i], a.queue[j] = a.queue[j], a.queue[i] }
func (a *arrivals) Less(i, j int) bool {
	x, y := a.queue[i], a.queue[j]
	return cmp.Or(cmp.Compare(x.at, y.at), cmp.Compare(x.serial, y.serial)) < 0
}
func (a *arrivals) Push(x any) { a.queue = append(a.queue, x.(*coming)) }
func (a *arrivals) Pop() any {
	last := len(a.queue) - 1
	x := a.queue[last]
	a.queue = a.queue[:last]
	return x
}

// begin has so many sessions under way, in an order that is drawn.
func (w *workload) begin(sessions int, speed float64, seed uint64) *arrivals {
	a := &arrivals{w: w, speed: speed}
	if !w.sessions {
		for _, l := range w.lanes {
			a.start(l, a.scaled(l.recs[0].time))
		}
		return a
	}
	order := rand.New(rand.NewPCG(seed, 0)).Perm(len(w.lanes))
	for _, i := range order {
		a.others = append(a.others, w.lanes[i])
	}
	for range min(sessions, len(a.others)) {
		a.startNext(0)
	}
	return a
}

func (a *arrivals) scaled(d time.Duration) time.Duration { return time.Duration(float64(d) / a.speed) }

func (a *arrivals) start(l *lane, at time.Duration) {
	a.serial++
	heap.Push(a, &coming{lane: l, at: at, serial: a.serial})
}

func (a *arrivals) startNext(at time.Duration) {
	if len(a.others) > 0 {
		a.start(a.others[0], at)
		a.others = a.others[1:]
	}
}

// next is the request that comes next; done is to be called with the time of its first token. False: there is none.
func (a *arrivals) next() (now time.Duration, r request, done func(first time.Duration), ok bool) {
	if len(a.queue) == 0 {
		return 0, r, nil, false
	}
	c := heap.Pop(a).(*coming)
	rec := c.recs[c.next]
	c.chain = append(c.chain[:rec.shared], c.ids[c.used:c.used+rec.added]...)
	c.used += rec.added
	c.next++
	r = request{chain: c.chain, blockTokens: rec.blockTokens, tokens: rec.tokens}
	return c.at, r, func(first time.Duration) {
		if c.next == len(c.recs) {
			if a.w.sessions {
				a.startNext(first)
			}
			return
		}
		c.at = max(first, c.at+a.scaled(c.recs[c.next].time-rec.time))
		heap.Push(a, c)
	}, true
}
