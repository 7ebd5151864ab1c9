package bucket

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/skepkv/skep"
)

// What is fetched.
const (
	mostFetch  = 16 << 20  // bytes of one call, unless one block has more
	mostGap    = 256 << 10 // bytes between two blocks that are fetched along
	fetchBytes = 256 << 20 // of all that is under way
)

// speed is what fetches took lately.
type speed struct {
	mu    sync.Mutex
	first time.Duration // until the first byte, about
	rate  float64       // bytes a second after that
}

// What is reckoned with before anything was fetched.
const (
	firstGuess = 100 * time.Millisecond
	rateGuess  = 50e6
)

// took notes a fetch.
func (s *speed) took(n int64, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	const weight = .2
	if s.rate == 0 {
		s.first, s.rate = firstGuess, rateGuess
	}
	if n <= mostGap { // its bytes take no time
		s.first += time.Duration(weight * float64(d-s.first))
		return
	}
	rest := max(d-s.first, d/4, time.Microsecond) // a clock may be coarse
	s.rate += weight * (float64(n)/rest.Seconds() - s.rate)
	s.first = min(s.first, d)
}

// is what is reckoned with.
func (s *speed) is() (first time.Duration, rate float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rate == 0 {
		return firstGuess, rateGuess
	}
	return s.first, s.rate
}

// of is how long fetching so many bytes takes, by calls beside each other.
func (s *speed) of(n int64) time.Duration {
	first, rate := s.is()
	beside := min(max(n/mostFetch, 1), fetchBytes/mostFetch)
	return first + time.Duration(float64(n)/(rate*float64(beside))*float64(time.Second))
}

// fetches are those under way.
type fetches struct {
	bytes *semaphore.Weighted
	all   sync.WaitGroup

	mu    sync.Mutex
	by    map[coming]chan struct{} // closed when who brings a run that has that block is done
	ended bool
}

// fetch is one call of the bucket: blocks of one object that lie beside each other.
type fetch struct {
	places []*place
	done   chan struct{}
	sealed [][]byte // of each place
	err    error
}

// coming is a block that is being brought.
type coming struct {
	sp  *space
	key skep.Key
}

func (f *fetches) init() {
	f.bytes, f.by = semaphore.NewWeighted(fetchBytes), map[coming]chan struct{}{}
}

// wait ends when none is under way, and has none begin.
func (f *fetches) wait() {
	f.mu.Lock()
	f.ended = true
	f.mu.Unlock()
	f.all.Wait()
}

// turn has one caller at a time bring a block. It gives the part of a run up to the first that another one brings;
// where that is none, it says whom to wait for.
func (f *fetches) turn(sp *space, run []*place) (mine []*place, end func(), wait chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, p := range run {
		if wait := f.by[coming{sp, p.key}]; wait != nil {
			if i == 0 {
				return nil, nil, wait
			}
			run = run[:i]
			break
		}
	}
	done := make(chan struct{})
	for _, p := range run {
		f.by[coming{sp, p.key}] = done
	}
	return run, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, p := range run {
			delete(f.by, coming{sp, p.key})
		}
		close(done)
	}, nil
}

// cut cuts a run of blocks into calls of the bucket.
func cut(run []*place) (out [][]*place) {
	from := 0
	for i := 1; i <= len(run); i++ {
		if i < len(run) {
			a, b := run[i-1], run[i]
			gap := b.off - (a.off + int64(a.size))
			if a.of == b.of && gap >= 0 && gap <= mostGap && b.off+int64(b.size)-run[from].off <= mostFetch {
				continue
			}
		}
		out = append(out, run[from:i])
		from = i
	}
	return out
}

// bring fetches a run of a chain's blocks and puts them into the node's Store, in order, up to the first that does not
// come. It says how many are there, and why not more.
func (s *Store) bring(ctx context.Context, sp *space, sc skep.Scope, run []*place) (n int, err error) {
	type part struct {
		*fetch
		n int64
	}
	parts := make(chan part, fetchBytes/mostFetch)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	begun := s.fetching.begin(func() {
		defer close(parts)
		for _, places := range cut(run) {
			last := places[len(places)-1]
			size := last.off + int64(last.size) - places[0].off
			room := min(size, fetchBytes)
			if err := s.fetching.bytes.Acquire(ctx, room); err != nil {
				parts <- part{&fetch{done: shut, err: &skep.Error{Op: "fetch", Kind: skep.Deadline, Err: err}}, 0}
				return
			}
			f := &fetch{places: places, done: make(chan struct{})}
			if !s.fetching.begin(func() { s.fetch(ctx, f, size) }) {
				f.err = &skep.Error{Op: "fetch", Kind: skep.Closed}
				close(f.done)
			}
			parts <- part{f, room}
		}
	})
	if !begun {
		return 0, &skep.Error{Op: "fetch", Kind: skep.Closed}
	}
	for p := range parts {
		<-p.done
		if err == nil {
			err = p.err
		}
		if err == nil {
			var put int
			put, err = s.put(ctx, sp, sc, p.fetch)
			n += put
		}
		if err != nil {
			cancel()
		}
		s.fetching.bytes.Release(p.n)
	}
	return n, err
}

var shut = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// begin runs f beside, unless the Store is being closed.
func (f *fetches) begin(do func()) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return false
	}
	f.all.Go(do)
	return true
}

// fetch makes one call of the bucket.
func (s *Store) fetch(ctx context.Context, f *fetch, size int64) {
	defer close(f.done)
	if !s.budget.mayLoad(size) {
		s.use.refused.Add(int64(len(f.places)))
		f.err = &skep.Error{Op: "fetch", Kind: skep.Quota, Field: "budget of the bucket"}
		return
	}
	o := f.places[0].of
	name := o.in.name + blocksDir + o.id
	var b []byte
	from := time.Now()
	tries := 0
	f.err = s.asked(ctx, &s.why.reads, func(ctx context.Context) (err error) {
		if tries++; tries > 1 {
			s.budget.owe(0, 1, size) // all of it may have come before
		}
		b, err = s.o.Bucket.Get(ctx, name, f.places[0].off, size)
		return err
	})
	kind := skep.KindOf(f.err)
	if kind == skep.Denied || kind == skep.NotFound { // it may be there all the same: the next look says
		o.in.takeOut(o)
	}
	switch {
	case kind == skep.NotFound:
		f.err = &skep.Error{Op: "fetch", Kind: skep.Evicted, Field: "object", Value: name}
	case f.err == nil && int64(len(b)) != size:
		f.err = damaged(name, "bytes that came", len(b), size)
	}
	if f.err != nil {
		return
	}
	o.used.Store(time.Now().UnixMilli())
	s.speed.took(size, time.Since(from))
	s.use.loadedCalls.Add(1)
	s.use.loadedBytes.Add(size)
	for _, p := range f.places {
		at := p.off - f.places[0].off
		f.sealed = append(f.sealed, b[at:at+int64(p.size)])
	}
}

// put puts what was fetched into the node's Store.
func (s *Store) put(ctx context.Context, sp *space, sc skep.Scope, f *fetch) (n int, err error) {
	o := f.places[0].of
	name := o.in.name + blocksDir + o.id
	sealer := newSealer(o.in.key, name, o.salt)
	q := &skep.PutRequest{Scope: sc, Ack: skep.AckAccepted}
	for i, p := range f.places {
		parent, depth, b, err := readBlock(sealer, name, p.number, &p.record, f.sealed[i])
		if err == nil && hashOf(parent) != p.parent {
			err = damaged(name, "parent of a block", parent, "that of the index")
		}
		if err != nil {
			s.use.damaged.Add(1)
			o.in.dropBlock(p)
			return 0, err
		}
		if i == 0 {
			q.Parent, q.Depth = parent, depth
		}
		q.Blocks = append(q.Blocks, b)
	}
	sp.puts.RLock()
	defer sp.puts.RUnlock()
	for i, p := range f.places {
		if !o.in.still(p) { // deleted meanwhile
			q.Blocks = q.Blocks[:i]
			err = &skep.Error{Op: "fetch", Kind: skep.Evicted, Field: "block", Value: p.key.Short()}
			break
		}
	}
	if len(q.Blocks) == 0 {
		return 0, err
	}
	results, err2 := s.Store.Put(ctx, q)
	if err2 != nil {
		return 0, err2
	}
	for _, r := range results {
		if r.Outcome == skep.Declined {
			s.use.declined.Add(int64(len(results) - n))
			return n, &skep.Error{Op: "fetch", Kind: r.Reason, Field: "fetched block", Value: "declined"}
		}
		n++
		s.use.loadedBlocks.Add(1)
	}
	return n, err
}
