package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/schedule"
)

// TestSchedule leads stores through short lives in which everything happens at once: chains are put, restored into all
// kinds of memory, stopped, cancelled, leased, deleted and put again while drives are late, hang for a while and
// groups are cleaned, and the store is closed at any moment. `make schedule` builds it with a pause at every lock,
// every change of atomic state and every channel (package store/schedule), so that windows of nanoseconds are met, and
// runs it for SCHEDULE_TIME; without that build a few lives are as good a test of what threads do by themselves.
//
// What must hold: every call ends, and so does Close; nobody gets a wrong byte or an error of a kind that nothing
// explains; what is acknowledged as durable is found until it is deleted, before and after a restart; and what was
// deleted is not found.
func TestSchedule(t *testing.T) {
	t.Parallel()
	seed := testSeed(t)
	lives := testNumber(t, "SKEP_SCHEDULE_LIVES", 4)
	var end time.Time
	var places []schedule.Place
	if dir := os.Getenv(schedule.EnvList); dir != "" {
		var err error
		places, err = schedule.Load(filepath.Join(dir, "places.json"))
		require.NoError(t, err)
		defer schedule.Use(nil)
	}
	if v := os.Getenv("SKEP_SCHEDULE_TIME"); v != "" && os.Getenv("SKEP_SCHEDULE_LIVES") == "" {
		d, err := time.ParseDuration(v)
		require.NoError(t, err)
		end, lives = time.Now().Add(d), 1<<30
	}
	total := &schedTotals{}
	n := 0
	for ; n < lives && (end.IsZero() || time.Now().Before(end)) && !t.Failed(); n++ {
		life := newSchedLife(t, seed+uint64(n), places, total)
		life.run()
		if t.Failed() {
			t.Logf("it was life SKEP_SEED=%d SKEP_SCHEDULE_LIVES=1 (hot places: %s)", seed+uint64(n), life.hot())
		}
	}
	t.Logf("%d lives from seed %d: %v; %d of %d places passed", n, seed, total, schedule.Passed(), len(places))
	if len(places) > 0 {
		require.Greater(t, schedule.Passed(), len(places)/4, "this is not the build that tools/schedule wrote")
	}
	for what, x := range map[string]*atomic.Int64{"put": &total.put, "restored": &total.restored, "deleted": &total.deleted, "missed": &total.missed} {
		require.Positive(t, x.Load(), what)
	}
}

// schedTotals count what happened in all lives.
type schedTotals struct{ put, restored, missed, deleted, declined, closedUnder, around atomic.Int64 }

func (c *schedTotals) String() string {
	return fmt.Sprintf("blocks put %d, declined %d, deleted %d, restored %d, missed %d; reads sent elsewhere %d; closed under way %d times",
		c.put.Load(), c.declined.Load(), c.deleted.Load(), c.restored.Load(), c.missed.Load(), c.around.Load(), c.closedUnder.Load())
}

// schedLife is one store's life.
type schedLife struct {
	t     *testing.T
	rng   *rand.Rand
	plan  *schedule.Plan
	list  []schedule.Place
	total *schedTotals

	rig    *rig
	o      Options
	copies int
	size   int
	roots  int // chains in cached: half as many again as there is room for
	s      *Store
	kept   skep.Scope // durable, with room for all of it
	cached skep.Scope // more than there is room for
	ended  atomic.Bool
	lent   atomic.Int64 // puts whose memory drives have
	failed sync.Once

	books [schedOwners]schedBook
}

const (
	schedOwners = 3
	schedRoots  = 4 // chains each owner keeps books of
	schedChain  = 5 // blocks of a chain
)

// schedBook is what one owner knows of its chains: how many blocks, from the first, must be found; less than 0: it is
// in doubt.
type schedBook [schedRoots]int

const inDoubt = -1

func newSchedLife(t *testing.T, seed uint64, places []schedule.Place, total *schedTotals) *schedLife {
	l := &schedLife{t: t, rng: newRand(seed), list: places, total: total, rig: &rig{seed: seed}}
	if len(places) > 0 {
		l.plan = schedule.NewPlan(seed, places)
	}
	r := l.rng
	l.o = small(tempRoot(t, fmt.Sprintf("store-%d", seed)))
	l.o.OpenDevice, l.o.CatalogFS = l.rig.open, vfs.NewMem()
	l.o.DeviceCount, l.o.SegmentBytes = 2+r.IntN(2), 64<<10
	l.o.CapacityBytes = int64(l.o.DeviceCount) * (int64(14+r.IntN(10))*l.o.SegmentBytes + 16<<10)
	l.o.CacheBytes = []int64{-1, 128 << 10, 4 << 20}[r.IntN(3)]
	l.o.Policy = []string{"cost", "lru", "s3fifo"}[r.IntN(3)]
	l.o.FlushInterval = time.Duration(1+r.IntN(20)) * time.Millisecond
	l.o.SpaceTimeout = 50 * time.Millisecond
	unjudged(&l.o)
	l.o.rules.Tick = time.Duration(1+r.IntN(4)) * time.Millisecond
	l.o.rules.HedgeMin, l.o.rules.HedgeMax = time.Millisecond, 5*time.Millisecond
	l.o.OpTimeout = hangs
	l.copies = 1 + r.IntN(2)
	l.size = []int{1000, 4 << 10, 6000, 8 << 10}[r.IntN(4)]
	l.roots = min(max(8, int(l.o.CapacityBytes)*3/2/(schedChain*l.size*l.copies)), 60)
	return l
}

func (l *schedLife) hot() string {
	if l.plan == nil {
		return "none"
	}
	var b strings.Builder
	slices.Sort(l.plan.Hot)
	for _, i := range l.plan.Hot {
		fmt.Fprintf(&b, " %s:%d", l.list[i].File, l.list[i].Line)
	}
	return b.String()
}

// fail tells of a defect once, with what every goroutine was doing.
func (l *schedLife) fail(format string, args ...any) {
	l.failed.Do(func() {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		l.t.Errorf(format+"\n%s", append(args, stacks)...)
	})
}

// context is for a call that must end by itself.
func (l *schedLife) context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), hangs/2)
}

func (l *schedLife) run() {
	ctx, cancel := l.context()
	defer cancel()
	var err error
	l.s, err = Open(ctx, l.o)
	require.NoError(l.t, err)
	l.kept = openSpace(l.t, l.s, "kept", skep.Durable, l.copies, true)
	l.cached = openSpace(l.t, l.s, "cached", skep.Cache, l.copies, true)
	schedule.Use(l.plan)

	var wg sync.WaitGroup
	stop := make(chan struct{})
	act := func(do func(r *rand.Rand)) {
		r := newRand(l.rng.Uint64())
		wg.Go(func() {
			for !l.ended.Load() && !l.t.Failed() {
				do(r)
			}
		})
	}
	rounds := make(chan struct{}, 1<<10)
	for i := range schedOwners {
		act(func(r *rand.Rand) {
			l.own(r, i)
			select {
			case rounds <- struct{}{}:
			case <-stop:
			}
		})
	}
	act(l.fill)
	for range 3 {
		act(l.restore)
	}
	act(l.disturb)
	act(l.look)

	for range 60 + l.rng.IntN(200) {
		select {
		case <-rounds:
		case <-ctx.Done():
			l.fail("the owners of chains do not get on")
		}
		if l.t.Failed() {
			break
		}
	}
	under := l.rng.IntN(2) == 0
	if under { // the store is closed under everybody's feet
		l.total.closedUnder.Add(1)
		l.ended.Store(true)
	} else {
		l.ended.Store(true)
		close(stop)
		l.wait(&wg, "calls end")
	}
	closed := make(chan error, 1)
	ctx, cancel = l.context()
	defer cancel()
	go func() { closed <- l.s.Close() }()
	for open := true; open && !l.t.Failed(); {
		// Again and again: a completion may be withheld by a rule that was there when its read began.
		l.rig.each(func(_ int, d *device.Fault) { d.Clear(); d.Release() })
		select {
		case err := <-closed:
			if open = false; err != nil {
				l.fail("close: %v", err)
			}
		case <-ctx.Done():
			l.fail("close does not end")
		case <-time.After(time.Millisecond):
		}
	}
	if under {
		close(stop)
		l.wait(&wg, "calls end once the store is closed")
	}
	if n := l.lent.Load(); n != 0 {
		l.fail("%d puts were not told that their memory is released", n)
	}
	schedule.Use(nil)
	l.total.around.Add(l.s.count.ReadAround.Load())
	if !l.t.Failed() {
		l.reopen()
	}
}

// wait waits for all actors. The drives let go again and again: a completion may be withheld by a rule that was there
// when its operation began.
func (l *schedLife) wait(wg *sync.WaitGroup, what string) {
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	late := time.After(hangs)
	for {
		l.rig.each(func(_ int, d *device.Fault) { d.Clear(); d.Release() })
		select {
		case <-done:
			return
		case <-late:
			l.fail("it never happened: %s", what)
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// explained says whether an error is one that the life explains: the store was being closed, there was no room, or the
// caller gave up.
func (l *schedLife) explained(err error, also ...skep.Kind) bool {
	switch k := skep.KindOf(err); k {
	case skep.Closed:
		return l.ended.Load()
	case skep.Full, skep.Overloaded, skep.NoMemory:
		return true
	default:
		return slices.Contains(also, k)
	}
}

func (l *schedLife) root(owner, chain int) []skep.Key {
	return chainKeys(1000*(owner+1)+chain, schedChain)
}

// put puts, and counts memory that drives have yet when the call ends.
func (l *schedLife) put(ctx context.Context, q *skep.PutRequest) ([]skep.PutResult, error) {
	q.Released = func() { l.lent.Add(-1) }
	res, err := l.s.Put(ctx, q)
	err, held := skep.Held(err)
	if held {
		l.lent.Add(1)
	}
	return res, err
}

// own does one thing with one of the owner's chains, and compares it with the book.
func (l *schedLife) own(r *rand.Rand, owner int) {
	ctx, cancel := l.context()
	defer cancel()
	chain := r.IntN(schedRoots)
	keys, has := l.root(owner, chain), &l.books[owner][chain]
	switch k := r.IntN(5); {
	case k < 2 && *has <= 0:
		was := *has
		*has = inDoubt
		res, err := l.put(ctx, putRequest(l.kept, nil, 0, keys, l.size))
		if err != nil {
			if !l.explained(err) {
				l.fail("put: %v", err)
			}
			return
		}
		n := 0
		for ; n < len(res) && (res[n].Outcome == skep.Committed || res[n].Outcome == skep.Exists && was == inDoubt); n++ {
			l.total.put.Add(1)
		}
		if n < len(res) {
			l.total.declined.Add(1)
			if res[n].Outcome != skep.Declined || !l.explained(res[n].Reason) {
				l.fail("put of block %d, with %d before: %v, %v", n, was, res[n].Outcome, res[n].Reason)
			}
			return // what lies behind the first that was declined is in doubt
		}
		*has = n
	case k == 2 && *has != 0:
		was := *has
		*has = inDoubt
		n, err := l.s.Delete(ctx, l.kept, keys)
		if err != nil {
			if !l.explained(err) {
				l.fail("delete: %v", err)
			}
			return
		}
		if was > 0 && n != was {
			l.fail("of %d blocks that were acknowledged %d were deleted", was, n)
		}
		l.total.deleted.Add(int64(n))
		*has = 0
	default:
		found, err := l.s.Lookup(ctx, &skep.LookupRequest{Scope: l.kept, Keys: keys, Lease: skep.NoLease})
		if err != nil {
			if !l.explained(err) {
				l.fail("lookup: %v", err)
			}
			return
		}
		if *has >= 0 && found.Blocks != *has {
			l.fail("chain %d of owner %d: %d blocks are found, not %d", chain, owner, found.Blocks, *has)
		}
	}
}

// fill puts chains for which there is no room, so that groups are cleaned all the time.
func (l *schedLife) fill(r *rand.Rand) {
	ctx, cancel := l.context()
	defer cancel()
	if r.IntN(8) == 0 { // an impatient one
		cancel()
		ctx, cancel = context.WithTimeout(context.Background(), time.Duration(r.IntN(2000))*time.Microsecond)
		defer cancel()
	}
	q := putRequest(l.cached, nil, 0, chainKeys(r.IntN(l.roots), schedChain), l.size)
	if r.IntN(3) == 0 {
		q.Ack = skep.AckAccepted
	}
	res, err := l.put(ctx, q)
	if err != nil {
		if !l.explained(err, skep.Deadline) {
			l.fail("put: %v", err)
		}
		return
	}
	for _, x := range res {
		if x.Outcome == skep.Declined && !l.explained(x.Reason, skep.Admission, skep.Deadline) {
			l.fail("put: declined, %v", x.Reason)
		}
		l.total.put.Add(1)
	}
	if r.IntN(10) == 0 {
		if err := l.s.Flush(ctx); err != nil && !l.explained(err, skep.Deadline) {
			l.fail("flush: %v", err)
		}
	}
}

// anyChain is a chain that may be there.
func (l *schedLife) anyChain(r *rand.Rand) skep.Chain {
	c := skep.Chain{Scope: l.cached, Keys: chainKeys(r.IntN(l.roots), schedChain)}
	if r.IntN(2) == 0 {
		c.Scope, c.Keys = l.kept, l.root(r.IntN(schedOwners), r.IntN(schedRoots))
	}
	c.Direction = []skep.Direction{skep.HeadFirst, skep.TailFirst}[r.IntN(2)]
	c.Priority = r.IntN(3)
	stride := (l.size + 4095) &^ 4095
	switch r.IntN(4) {
	case 0: // lent by the store
	case 1:
		c.Dest = skep.Destination{Memory: device.AlignedBuffer(schedChain * stride), Stride: int64(stride)}
	default:
		c.Dest = skep.Destination{Memory: device.AlignedBuffer(schedChain*stride + 4096)[100 : 100+schedChain*stride], Stride: int64(stride)}
	}
	if r.IntN(4) == 0 {
		c.Deadline = time.Now().Add(time.Duration(r.IntN(8000)) * time.Microsecond)
	}
	return c
}

// restore restores a chain or two, to the end or not.
func (l *schedLife) restore(r *rand.Rand) {
	ctx, cancel := l.context()
	defer cancel()
	q := &skep.RestoreRequest{}
	for range 1 + r.IntN(3) {
		q.Chains = append(q.Chains, l.anyChain(r))
	}
	if r.IntN(3) == 0 && len(q.Chains) > 1 { // who restores the same joins who came first
		q.Chains[1].Scope, q.Chains[1].Keys = q.Chains[0].Scope, q.Chains[0].Keys
	}
	if r.IntN(3) == 0 {
		q.Window = int64(1 + r.IntN(3*l.size))
	}
	ses, err := l.s.Restore(ctx, q)
	if err != nil {
		if !l.explained(err) {
			l.fail("restore: %v", err)
		}
		return
	}
	patience := 1 << 20
	if r.IntN(3) == 0 {
		patience = r.IntN(8)
	}
	l.drain(ctx, r, q, ses, patience)
	if err := ses.Close(ctx); err != nil && !l.explained(err) {
		l.fail("a session does not end: %v", err)
	}
}

// drain reads a session until it ends, or until patience chunks have come.
func (l *schedLife) drain(ctx context.Context, r *rand.Rand, q *skep.RestoreRequest, ses skep.Session, patience int) {
	into := make([]skep.Chunk, 1+r.IntN(4))
	for patience > 0 {
		n, err := ses.Next(ctx, into)
		for i := range into[:n] {
			l.compare(q, &into[i])
			into[i].Release()
		}
		patience -= n
		switch {
		case errors.Is(err, io.EOF):
			return
		case err != nil:
			if !l.explained(err) {
				l.fail("a session does not get on: %v", err)
			}
			return
		}
	}
	if chain := r.IntN(len(q.Chains)+1) - 1; r.IntN(2) == 0 {
		if err := ses.Stop(ctx, chain); err != nil && !l.explained(err, skep.Stopped) {
			l.fail("a chain does not stop: %v", err)
		}
	}
}

// compare looks at one chunk.
func (l *schedLife) compare(q *skep.RestoreRequest, c *skep.Chunk) {
	if c.Err != nil {
		l.total.missed.Add(1)
		if !l.explained(c.Err, skep.NotFound, skep.Evicted, skep.Deadline, skep.Stopped) {
			l.fail("a block is missed: %v", c.Err)
		}
		return
	}
	l.total.restored.Add(1)
	ch := &q.Chains[c.Chain]
	data := bytes.Join(c.Data, nil)
	if ch.Dest.Memory != nil {
		data = ch.Dest.Memory[int64(c.Block)*ch.Dest.Stride:][:c.Bytes]
	}
	if !bytes.Equal(content(ch.Keys[c.Block], skep.PartKV, 1, l.size), data) {
		l.fail("WRONG BYTES: block %d of a chain in namespace %d, from %v", c.Block, ch.Namespace, c.Tier)
	}
}

// disturb makes a drive late for a while, or hang for a moment.
func (l *schedLife) disturb(r *rand.Rand) {
	which, n := r.IntN(64), 0
	l.rig.each(func(int, *device.Fault) { n++ })
	rule := device.Rule{Action: device.Delay, Delay: time.Duration(500+r.IntN(8000)) * time.Microsecond, Probability: 0.5}
	if r.IntN(3) == 0 {
		rule = device.Rule{Action: []device.Action{device.Hold, device.Withhold}[r.IntN(2)], Kinds: device.Reads, Probability: 0.5}
		if r.IntN(3) == 0 {
			rule.Kinds = device.Writes
		}
	}
	l.rig.each(func(i int, d *device.Fault) {
		if i == which%n && !l.ended.Load() {
			d.MustInject(rule)
		}
	})
	time.Sleep(time.Duration(r.IntN(10000)) * time.Microsecond) // the drive's time, which nobody waits for
	l.rig.each(func(_ int, d *device.Fault) { d.Clear(); d.Release() })
}

// look asks for what others may ask for at any time.
func (l *schedLife) look(r *rand.Rand) {
	ctx, cancel := l.context()
	defer cancel()
	c := l.anyChain(r)
	var err error
	switch r.IntN(5) {
	case 0:
		_, err = l.s.Stats(ctx)
	case 1:
		var found skep.LookupResult
		if found, err = l.s.Lookup(ctx, &skep.LookupRequest{Scope: c.Scope, Keys: c.Keys, Lease: time.Minute}); err == nil && found.Lease.ID != 0 {
			err = l.s.Release(ctx, found.Lease.ID)
		}
	case 2:
		_, err = l.s.Hint(ctx, c.Scope, c.Keys, skep.Hint{NextUse: time.Second, Pin: time.Duration(r.IntN(3)) * time.Millisecond})
	case 3:
		_, err = l.s.Delete(ctx, l.cached, chainKeys(r.IntN(l.roots), schedChain))
	case 4:
		_, err = l.s.Want(ctx, &skep.WantRequest{Scope: c.Scope, Keys: c.Keys, Bytes: int64(schedChain * l.size)})
	}
	if err != nil && !l.explained(err, skep.Quota) {
		l.fail("look: %v", err)
	}
}

// reopen opens the store again and compares it with the books.
func (l *schedLife) reopen() {
	ctx, cancel := l.context()
	defer cancel()
	s, err := Open(ctx, l.o)
	require.NoError(l.t, err)
	defer func() { require.NoError(l.t, s.Close()) }()
	for owner := range l.books {
		for chain, has := range l.books[owner] {
			keys := l.root(owner, chain)
			found, err := s.Lookup(ctx, &skep.LookupRequest{Scope: l.kept, Keys: keys, Lease: skep.NoLease})
			require.NoError(l.t, err)
			if has != inDoubt {
				require.Equal(l.t, has, found.Blocks, "blocks of chain %d of owner %d after a restart", chain, owner)
			}
			if found.Blocks > 0 {
				requireChain(l.t, s, l.kept, keys[:found.Blocks], l.size)
			}
		}
	}
}
