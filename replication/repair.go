package replication

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/checks"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/flow"
	"github.com/skepkv/skep/replication/keeper"
	"github.com/skepkv/skep/replication/runs"
)

// RepairOptions of Store.Repair.
type RepairOptions struct {
	// Keeper is the node's own Store, which this one was made of.
	Keeper *keeper.Keeper
	// Pace is how fast copies go to other nodes.
	Pace flow.Options
	// Progress is told how far it is, now and then, one call at a time; nil: nobody.
	Progress func(Repaired)
}

// Repaired is what a repair found and did. Copies are counted, each on a node that the map says should have it.
type Repaired struct {
	Blocks   int64  `json:"blocks"`   // of this node, looked at
	Copied   int64  `json:"copied"`   // copies that were missing, and are there now
	Bytes    int64  `json:"bytes"`    // payload of them
	Declined int64  `json:"declined"` // copies that are missing yet: their node has no room, or does not take them
	Away     int64  `json:"away"`     // copies that nobody could ask for: their node was away
	Unread   int64  `json:"unread"`   // copies that are missing yet: this node could not read the block
	Strays   int64  `json:"strays"`   // of Blocks, those that by the map are not this node's
	LeftOut  int64  `json:"left_out"` // of this node, not in Blocks: salted, without their group's first, or alone
	Epoch    uint32 `json:"epoch"`    // of the map it went by, at least 1; 0: that has this node down, or not at all
}

const (
	repairPage   = 1024                   // blocks listed together
	repairCall   = 10 * time.Second       // how long a node may take for one
	repairNodes  = 4                      // nodes sent to at once
	repairRuns   = 2                      // puts under way to each: one is read while the other goes
	behindWait   = 100 * time.Millisecond // until a node that has not heard of the map yet is asked again
	behindTries  = 20
	repairBegins = 3 // how often a newer map has it begin anew
)

// blockLister is what Repair needs of a node's Store.
type blockLister interface {
	ListBlocks(ctx context.Context, space skep.NamespaceID, group int, from uint64, n int) (
		blocks []skep.StoredBlock, next uint64, err error)
}

// Repair looks at each block of a chain that this node has, asks the nodes that should have a copy by the map, and
// sends it to those that have none: what a node missed while it was away, lost with its drives, or is to have since
// the map changed. It ends when all have been looked at once; a newer map has it begin anew.
//
// Left out are salted blocks and keys that stand alone. A salted block is placed, and found at its node, by a hash
// under its salt, of which a node keeps another hash only: who has the salt makes the copies by the next put. Of keys
// that stand alone there is one copy, which is written over. One that their node lacks may have been deleted there, or
// may be on its way from a client: nothing would say that an older value is to stay away. Blocks of class Cache go only
// where there is room to spare: an evicted block is not brought back in place of another.
//
// Errors: Unsupported (the Store cannot list blocks), Closed, Deadline, those of the node's own Store: of a namespace
// that it could not read the first, when the others have been looked at.
func (s *Store) Repair(ctx context.Context, o RepairOptions) (Repaired, error) {
	for try := 0; ; try++ {
		if err := s.begin(ctx, "repair"); err != nil {
			return Repaired{}, err
		}
		v := s.now.Load()
		if !v.mapped() {
			return Repaired{}, nil
		}
		x := &repair{many: many{s, v}, o: o, flow: flow.New(o.Pace), full: map[*node]bool{}}
		err := x.all(v.mark(ctx))
		if try < repairBegins && skep.KindOf(err) == skep.StaleMap && s.learn(ctx, v.of.Epoch) {
			continue
		}
		return x.sum, err
	}
}

// repair is one Repair by one map.
type repair struct {
	many
	o    RepairOptions
	self *node
	flow *flow.Flow

	mu   sync.Mutex
	sum  Repaired
	full map[*node]bool

	telling sync.Mutex // around Progress
}

func (x *repair) count(f func(sum *Repaired)) {
	x.mu.Lock()
	f(&x.sum)
	x.mu.Unlock()
	if x.o.Progress == nil {
		return
	}
	x.telling.Lock()
	defer x.telling.Unlock()
	x.mu.Lock()
	now := x.sum
	x.mu.Unlock()
	x.o.Progress(now)
}

func (x *repair) all(ctx context.Context) error {
	for i, n := range x.owner {
		if k, ok := skep.As[*keeper.Keeper](n.st); ok && k == x.o.Keeper && x.of.Nodes[i].State != clustermap.Down {
			x.self = n
		}
	}
	if x.self == nil {
		return nil // the map has it no more, or others may have deleted without it what it has
	}
	if x.sum.Epoch = max(x.of.Epoch, 1); len(x.owner) < 2 {
		return nil
	}
	lister, ok := skep.As[blockLister](x.self.st)
	if !ok {
		return &skep.Error{Op: "repair", Kind: skep.Unsupported, Field: "store", Limit: "one that lists its blocks"}
	}
	list, err := x.self.st.Namespaces(ctx)
	if err != nil {
		return err
	}
	var first error
	for _, info := range list {
		if !info.Chained {
			x.leaveOut(ctx, info.ID, 0)
			continue
		}
		err := x.space(ctx, lister, info)
		var own ownError
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return ended(ctx, "repair")
		case !errors.As(err, &own) || errors.Is(err, skep.Closed):
			return err
		default: // of what cannot be read here another node may have a copy; the other namespaces are looked at
			x.log.Warn("not all of a namespace could be read for the nodes that should have it",
				"tenant", info.Tenant, "namespace", info.Name, "error", err)
			if first == nil {
				first = err
			}
		}
	}
	return first
}

// space goes through one namespace.
func (x *repair) space(ctx context.Context, lister blockLister, info skep.NamespaceInfo) error {
	of, err := x.self.life(ctx)
	if err != nil {
		return ownError{err}
	}
	sp, err := x.spaces.heard(x.self, of, info)
	if err != nil {
		return ownError{err}
	}
	r := &spaceRepair{repair: x, sp: sp, local: info.ID, has: map[*node]bool{}}
	seen := int64(0)
	for at := uint64(0); ; {
		blocks, next, err := lister.ListBlocks(ctx, info.ID, sp.group, at, repairPage)
		if skep.KindOf(err) == skep.NotFound {
			return nil // deleted meanwhile
		}
		if err != nil {
			return ownError{err}
		}
		if err := r.page(ctx, blocks); err != nil {
			return err
		}
		seen += int64(len(blocks))
		if at = next; at == 0 {
			x.leaveOut(ctx, info.ID, seen)
			return nil
		}
	}
}

// leaveOut counts the blocks of a namespace that were not looked at. What comes and goes meanwhile makes it inexact.
func (x *repair) leaveOut(ctx context.Context, id skep.NamespaceID, seen int64) {
	if n, err := x.self.st.CountBlocks(ctx, id); err == nil && n > seen {
		x.count(func(sum *Repaired) { sum.LeftOut += n - seen })
	}
}

// spaceRepair is a repair of one namespace.
type spaceRepair struct {
	*repair
	sp    *space
	local skep.NamespaceID // this node's number of it

	mu  sync.Mutex
	has map[*node]bool // nodes that have the namespace, as was seen or seen to
}

// page has each other node that should have some of these blocks asked for them.
func (r *spaceRepair) page(ctx context.Context, blocks []skep.StoredBlock) error {
	of := map[*node][]skep.StoredBlock{}
	strays := int64(0)
	for _, b := range blocks {
		mine := false
		for _, at := range r.holders(r.sp, "", b.First) {
			if n := r.owner[at]; n == r.self {
				mine = true
			} else {
				of[n] = append(of[n], b)
			}
		}
		if !mine {
			strays++
		}
	}
	r.count(func(sum *Repaired) { sum.Blocks += int64(len(blocks)); sum.Strays += strays })
	var wait sync.WaitGroup
	var mu sync.Mutex
	var first error
	turns := make(chan struct{}, repairNodes)
	for n, list := range of {
		turns <- struct{}{}
		wait.Go(func() {
			defer func() { <-turns }()
			if err := r.node(ctx, n, list); err != nil {
				mu.Lock()
				defer mu.Unlock()
				if first == nil {
					first = err
				}
			}
		})
	}
	wait.Wait()
	return first
}

// node sends one node what it has not of these blocks. That it is away, or does not take them, is counted and no error.
func (r *spaceRepair) node(ctx context.Context, n *node, blocks []skep.StoredBlock) error {
	left, err := r.toNode(ctx, n, blocks)
	for try := 0; skep.KindOf(err) == skep.Behind && try < behindTries; try++ {
		select {
		case <-time.After(behindWait):
			left, err = r.toNode(ctx, n, blocks)
		case <-ctx.Done():
		}
	}
	var own ownError
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return ended(ctx, "repair")
	case errors.As(err, &own) && errors.Is(err, skep.NotFound): // the namespace was deleted
	case errors.As(err, &own), skep.KindOf(err) == skep.StaleMap:
		return err
	case r.away(err):
		r.count(func(sum *Repaired) { sum.Away += left })
	default:
		r.count(func(sum *Repaired) { sum.Declined += left })
		r.log.Warn("a node takes no copies of a namespace",
			"node", n.Name, "tenant", r.sp.Tenant, "namespace", r.sp.Name, "error", err)
	}
	return nil
}

// ownError is an error of this node's own Store.
type ownError struct{ error }

func (e ownError) Unwrap() error { return e.error }

// toNode is node, and says how many blocks were not seen to where there is an error.
func (r *spaceRepair) toNode(ctx context.Context, n *node, blocks []skep.StoredBlock) (left int64, err error) {
	left = int64(len(blocks))
	room, err := r.room(ctx, n)
	if err != nil {
		return left, err
	}
	wants, err := r.wants(ctx, n, blocks)
	if err == nil && len(wants) < len(blocks) {
		if err = r.open(ctx, n); err == nil {
			wants, err = r.wants(ctx, n, blocks)
		}
	}
	if err != nil {
		return left, err
	}
	var missing []skep.StoredBlock
	declined := int64(0)
	for i, w := range wants {
		switch {
		case w.Wanted && room:
			missing = append(missing, blocks[i])
		case w.Wanted || w.Outcome == skep.Declined:
			declined++
		}
	}
	left = int64(len(missing))
	var mu sync.Mutex // guards left and err
	turns := make(chan struct{}, repairRuns)
	var wait sync.WaitGroup
	failed := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return err != nil
	}
	for _, run := range runs.Cut(missing) {
		if turns <- struct{}{}; failed() {
			break
		}
		wait.Go(func() {
			defer func() { <-turns }()
			bad := r.send(ctx, n, run)
			mu.Lock()
			defer mu.Unlock()
			if bad == nil {
				left -= int64(len(run))
			} else if err == nil {
				err = bad
			}
		})
	}
	wait.Wait()
	if skep.KindOf(err) != skep.Behind { // else it is asked again
		r.count(func(sum *Repaired) { sum.Declined += declined })
	}
	return left, err
}

// wants asks a node which of these blocks it has not; none where it has not the namespace.
func (r *spaceRepair) wants(ctx context.Context, n *node, blocks []skep.StoredBlock) (wants []skep.Want, err error) {
	q := &skep.WantRequest{Keys: make([]skep.Key, len(blocks))}
	for i := range blocks {
		q.Keys[i] = blocks[i].Key
		q.Bytes += runs.Bytes(&blocks[i])
	}
	call, cancel := context.WithTimeout(ctx, repairCall)
	defer cancel()
	err = r.on(call, "repair", n, r.sp, false, func(ctx context.Context, id skep.NamespaceID) (err error) {
		q.Namespace = id
		wants, err = n.st.Want(ctx, q)
		return err
	})
	return wants, checks.OutOfTime(ctx, "repair", err)
}

// room says whether a node may be sent blocks of the namespace. It is asked until it has none, or has evicted since
// it was asked last: the next repair asks again.
func (r *spaceRepair) room(ctx context.Context, n *node) (bool, error) {
	if r.sp.Class == skep.Durable {
		return true, nil
	}
	r.repair.mu.Lock()
	full := r.full[n]
	r.repair.mu.Unlock()
	if full {
		return false, nil
	}
	call, cancel := context.WithTimeout(ctx, repairCall)
	defer cancel()
	st, err := n.st.Stats(call)
	if err != nil {
		return false, checks.OutOfTime(ctx, "repair", err)
	}
	ok := r.o.Keeper.Spared(n.ID, &st)
	if !ok {
		r.repair.mu.Lock()
		r.full[n] = true
		r.repair.mu.Unlock()
	}
	return ok, nil
}

// open has a node have the namespace, as long as this one has it. One goroutine does so for a node.
func (r *spaceRepair) open(ctx context.Context, n *node) error {
	r.mu.Lock()
	has := r.has[n]
	r.mu.Unlock()
	if has {
		return nil
	}
	f, err := r.o.Keeper.Depart(ctx, r.local, nil)
	if err != nil {
		return err
	}
	defer f.End()
	if _, err := r.self.st.FindNamespace(ctx, r.local); err != nil {
		return ownError{err}
	}
	call, cancel := context.WithTimeout(ctx, repairCall)
	defer cancel()
	v, err := r.numberOn(call, n, r.sp, false)
	if err == nil && v == nil {
		f.Opened(target{r.many, r.sp, n, r.self})
		_, err = r.numberOn(call, n, r.sp, true)
	}
	if err == nil {
		r.mu.Lock()
		r.has[n] = true
		r.mu.Unlock()
	}
	return checks.OutOfTime(ctx, "repair", err)
}

// send copies a run of blocks, which follow one another, to a node: but for those that cannot be read.
func (r *spaceRepair) send(ctx context.Context, n *node, run []skep.StoredBlock) error {
	for len(run) > 0 {
		done, err := r.sendSome(ctx, n, run)
		if err != nil {
			return err
		}
		run = run[done:]
	}
	return nil
}

// sendSome is send up to the first block that cannot be read. It says how many were seen to, that one among them.
func (r *spaceRepair) sendSome(ctx context.Context, n *node, run []skep.StoredBlock) (done int, err error) {
	size := int64(0)
	for i := range run {
		size += runs.Bytes(&run[i])
	}
	if err := r.flow.Wait(ctx, n.ID, n.st, size); err != nil {
		return 0, ended(ctx, "repair")
	}
	f, err := r.o.Keeper.Depart(ctx, r.local, run)
	if err != nil {
		return 0, err
	}
	defer f.End()
	mem, err := r.memory(ctx, run)
	if err != nil || mem == nil {
		return len(run), err
	}
	blocks, err := runs.Read(ctx, r.self.st, r.local, run, mem.Bytes(), nil)
	held := errors.Is(err, skep.NotReleased)
	defer func() {
		if !held { // else a drive, or the node, has it yet
			mem.Release()
		}
	}()
	if err != nil {
		return 0, ownError{err}
	}
	if done = len(blocks); done < len(run) {
		done++
		r.count(func(sum *Repaired) { sum.Unread++ })
	}
	if len(blocks) == 0 {
		return done, nil
	}
	q := &skep.PutRequest{Blocks: blocks, Depth: run[0].Depth % r.sp.group, Released: mem.Release}
	if q.Depth > 0 {
		q.Parent = run[0].Parent
	}
	f.Sends(target{r.many, r.sp, n, r.self})
	call, cancel := context.WithTimeout(ctx, repairCall)
	defer cancel()
	var results []skep.PutResult
	began := time.Now()
	err = r.on(call, "repair", n, r.sp, false, func(ctx context.Context, id skep.NamespaceID) (err error) {
		q.Namespace = id
		results, err = n.st.Put(ctx, q)
		err, held = skep.Held(err)
		return err
	})
	r.flow.Took(n.ID, time.Since(began))
	if err != nil {
		f.Doubt.Store(ctx.Err() != nil || r.away(checks.OutOfTime(ctx, "repair", err)))
		return 0, checks.OutOfTime(ctx, "repair", err)
	}
	r.count(func(sum *Repaired) {
		for i, x := range results {
			switch x.Outcome {
			case skep.Committed, skep.Accepted:
				sum.Copied++
				sum.Bytes += runs.Bytes(&run[i])
			case skep.Declined:
				sum.Declined++
			}
		}
	})
	return done, nil
}

// memory lends what the blocks of a run take, each part from a page's beginning on, out of this node's budget for
// what is under way. Where there is none in time, or the run is larger than all of it, its copies are declined and
// memory is nil.
func (r *spaceRepair) memory(ctx context.Context, run []skep.StoredBlock) (skep.Memory, error) {
	call, cancel := context.WithTimeout(ctx, repairCall)
	defer cancel()
	mem, err := r.self.st.Alloc(call, runs.Memory(run))
	switch {
	case err == nil:
		return mem, nil
	case ctx.Err() != nil:
		return nil, ended(ctx, "repair")
	case skep.KindOf(err) == skep.NoMemory || skep.KindOf(err) == skep.Deadline:
		r.count(func(sum *Repaired) { sum.Declined += int64(len(run)) })
		return nil, nil
	}
	return nil, ownError{err}
}

// target is a namespace at a node that copies go to.
type target struct {
	by   many
	sp   *space
	n    *node
	self *node // that sends them
}

// recallKeys is how many keys one call deletes.
const recallKeys = 4096

// Delete implements keeper.Target.
func (t target) Delete(ctx context.Context, op string, keys []skep.Key) error {
	return t.tell(func(s many, n *node) error { return s.deleteAt(ctx, op, n, t.sp, keys) })
}

// DeleteNamespace implements keeper.Target.
func (t target) DeleteNamespace(ctx context.Context) error {
	return t.tell(func(s many, n *node) error { return s.deleteOn(ctx, n, t.sp, nil) })
}

// tell calls f for the node as the map has it now. A node that is in no map is not told, nor one that is down and, as
// is agreed, loses the namespace before it serves again (package fence).
func (t target) tell(f func(s many, n *node) error) error {
	fence, ok := skep.As[interface {
		Missed(node uint64, spec *skep.NamespaceSpec) bool
	}](t.self.st)
	now := many{t.by.Store, t.by.now.Load()}
	i := slices.IndexFunc(now.owner, func(n *node) bool { return n.ID == t.n.ID })
	if i < 0 || ok && fence.Missed(t.n.ID, &t.sp.NamespaceSpec) {
		return nil
	}
	return f(now, now.owner[i])
}

// Missing implements keeper.Target.
func (t target) Missing(op string, err error) error { return t.n.missing(op, err) }

// Space implements keeper.Target.
func (t target) Space() *skep.NamespaceInfo { return &t.sp.NamespaceInfo }

// deleteAt deletes keys at one node.
func (s many) deleteAt(ctx context.Context, op string, n *node, sp *space, keys []skep.Key) (first error) {
	for part := range slices.Chunk(keys, recallKeys) {
		err := s.on(ctx, op, n, sp, false, func(ctx context.Context, id skep.NamespaceID) error {
			_, err := n.st.Delete(ctx, skep.Scope{Namespace: id}, part)
			return err
		})
		if err != nil && skep.KindOf(err) != skep.NotFound && first == nil {
			first = err
		}
	}
	return first
}
