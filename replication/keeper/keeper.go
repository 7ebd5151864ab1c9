// Package keeper is what a node's own Store is behind while the node sends copies of its blocks to others: it remembers
// where they went, and recalls what is deleted.
package keeper

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/checks"
	"github.com/skepkv/skep/replication/runs"
	"github.com/skepkv/skep/wire/recall"
)

// Keeper is a node's own Store while Repair sends copies of its blocks to other nodes. A deletion goes to all nodes
// at once, and one of them may have carried it out before a copy comes from another one, which has yet to hear of it.
// So what is deleted here is deleted again at the nodes that got it lately, before the call returns. Everything else
// is the Store's.
//
// A deletion that finds what it is of being recalled for another one waits for that, and recalls what is left then: it
// would else be acknowledged while a node has its copy yet. A recall itself waits for no other (package wire/recall):
// of two nodes that have sent each other a block, each would wait for the other one.
//
// What is deleted past it, by who has the Store that it wraps, may come back by a copy.
type Keeper struct {
	skep.Store

	mu      sync.Mutex
	flights map[*Flight]struct{}
	sent    map[sentKey][]sending
	order   []sentAt // of sent, the oldest first
	spaces  map[skep.NamespaceID][]given
	evicted map[uint64]int64 // by node, as it said last

	recalls map[sentKey]recalls // under way; of a namespace by the key 0
	over    chan struct{}       // closed when one of them has ended, and made anew
}

// recalls is how many there are of one block.
type recalls struct {
	n  int
	of *skep.NamespaceInfo
}

// How long a deletion may take from one node to another, and of how many copies is remembered where they went.
const (
	sentFor  = time.Minute
	mostSent = 1 << 17
)

type sentKey struct {
	space skep.NamespaceID // the node's own number
	key   skep.Key
}

type sentBy struct {
	sentKey
	flight *Flight
}

type sentAt struct {
	sentBy
	at time.Time
}

// Target is a namespace at another node, to which copies go. Two that are equal are the same one.
type Target interface {
	// Delete deletes keys there. A node that has not the namespace has nothing to delete.
	Delete(ctx context.Context, op string, keys []skep.Key) error
	// DeleteNamespace deletes all of it there.
	DeleteNamespace(ctx context.Context) error
	// Missing is the error of a call that did not reach the node.
	Missing(op string, err error) error
	// Space is the namespace.
	Space() *skep.NamespaceInfo
}

// sending is where a copy went.
type sending struct {
	flight *Flight
	to     Target
	at     time.Time // when it was noted last: as in order
}

// given is a node that was given a namespace.
type given struct{ sending }

// New wraps a node's own Store, which it closes.
func New(st skep.Store) *Keeper {
	return &Keeper{Store: st, flights: map[*Flight]struct{}{}, sent: map[sentKey][]sending{},
		spaces: map[skep.NamespaceID][]given{}, evicted: map[uint64]int64{}, recalls: map[sentKey]recalls{},
		over: make(chan struct{})}
}

// Unwrap gives the Store.
func (k *Keeper) Unwrap() skep.Store { return k.Store }

// Flight is copies on their way, from before they are read until their node has answered.
type Flight struct {
	k      *Keeper
	space  skep.NamespaceID
	blocks []skep.StoredBlock // none: the namespace itself
	done   chan struct{}
	// Doubt says that the node did not answer: it may store them yet.
	Doubt atomic.Bool
}

// Depart begins a flight: it waits until there is room to remember where copies go.
func (k *Keeper) Depart(ctx context.Context, space skep.NamespaceID, blocks []skep.StoredBlock) (*Flight, error) {
	f := &Flight{k: k, space: space, blocks: blocks, done: make(chan struct{})}
	for {
		wait := k.admit(f)
		if wait == 0 {
			return f, nil
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, checks.Ended(ctx, "repair")
		}
	}
}

// admit begins a flight, or says how long to wait.
func (k *Keeper) admit(f *Flight) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.forget()
	if len(k.order) >= mostSent {
		return max(sentFor-now.Sub(k.order[0].at), time.Millisecond)
	}
	k.flights[f] = struct{}{}
	return 0
}

// forget forgets where copies went long ago, but for those under way. mu is held.
func (k *Keeper) forget() (now time.Time) {
	now = skep.Steady()
	old := 0
	for old < len(k.order) && now.Sub(k.order[old].at) >= sentFor && k.order[old].flight.ended() {
		o := k.order[old]
		k.keep(o.sentKey, slices.DeleteFunc(k.sent[o.sentKey], func(s sending) bool {
			return s.flight == o.flight
		}))
		old++
	}
	k.order = k.order[old:]
	for id, list := range k.spaces {
		k.gave(id, slices.DeleteFunc(list, func(g given) bool { return now.Sub(g.at) >= sentFor && g.flight.ended() }))
	}
	return now
}

// keep remembers of a key that its copies went where list says. mu is held.
func (k *Keeper) keep(at sentKey, list []sending) {
	if len(list) == 0 {
		delete(k.sent, at)
		return
	}
	k.sent[at] = list
}

// gave is keep of nodes that were given a namespace. mu is held.
func (k *Keeper) gave(id skep.NamespaceID, list []given) {
	if len(list) == 0 {
		delete(k.spaces, id)
		return
	}
	k.spaces[id] = list
}

// ended says whether a flight has.
func (f *Flight) ended() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// End ends a flight.
func (f *Flight) End() {
	f.k.mu.Lock()
	defer f.k.mu.Unlock()
	delete(f.k.flights, f)
	close(f.done)
}

// Sends notes that the blocks go to a node.
func (f *Flight) Sends(to Target) {
	now := skep.Steady()
	f.k.mu.Lock()
	defer f.k.mu.Unlock()
	for i := range f.blocks {
		k := sentKey{f.space, f.blocks[i].Key}
		f.k.sent[k] = append(f.k.sent[k], sending{f, to, now})
		f.k.order = append(f.k.order, sentAt{sentBy{k, f}, now})
	}
}

// Opened notes that a node is given the namespace.
func (f *Flight) Opened(to Target) {
	now := skep.Steady()
	f.k.mu.Lock()
	defer f.k.mu.Unlock()
	f.k.spaces[f.space] = append(f.k.spaces[f.space], given{sending{f, to, now}})
}

// landed waits for the flights under way that which says.
func (k *Keeper) landed(ctx context.Context, op string, which func(f *Flight) bool) error {
	k.mu.Lock()
	k.forget()
	var under []*Flight
	for f := range k.flights {
		if which(f) {
			under = append(under, f)
		}
	}
	k.mu.Unlock()
	for _, f := range under {
		select {
		case <-f.done:
		case <-ctx.Done():
			return checks.Ended(ctx, op)
		}
	}
	return nil
}

// Spared says whether a node has room for copies, and notes what it has evicted.
func (k *Keeper) Spared(node uint64, st *skep.Stats) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	before, known := k.evicted[node]
	k.evicted[node] = st.Evicted
	return runs.Spares(st) && (!known || st.Evicted <= before)
}

// Delete implements skep.Deleter. Where a node that a copy went to does not answer, the error names it: the deletion
// is to be made again.
func (k *Keeper) Delete(ctx context.Context, sc skep.Scope, keys []skep.Key) (int, error) {
	const op = "delete"
	n, err := k.Store.Delete(ctx, sc, keys)
	if err != nil || sc.Salt != "" || k.Idle() {
		return n, err
	}
	of := make(map[skep.Key]struct{}, len(keys))
	for _, key := range keys {
		of[key] = struct{}{}
	}
	if err := k.landed(ctx, op, func(f *Flight) bool {
		return f.space == sc.Namespace && slices.ContainsFunc(f.blocks, func(b skep.StoredBlock) bool {
			_, ok := of[b.Key]
			return ok
		})
	}); err != nil {
		return n, err
	}
	return n, k.recall(ctx, op, func(take func(sentKey)) {
		for key := range of {
			take(sentKey{sc.Namespace, key})
		}
	})
}

// Idle says that nothing went anywhere lately, or is on its way.
func (k *Keeper) Idle() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.forget()
	return len(k.flights) == 0 && len(k.sent) == 0 && len(k.recalls) == 0
}

// Purge implements skep.Deleter, as Delete does.
func (k *Keeper) Purge(ctx context.Context, p skep.Purge) error {
	const op = "purge"
	if err := k.Store.Purge(ctx, p); err != nil || p.Salt != nil || k.Idle() {
		return err
	}
	concerns := func(id skep.NamespaceID, n *skep.NamespaceInfo) bool {
		return p.Namespace != 0 && id == p.Namespace || p.Tenant != "" && n.Tenant == p.Tenant ||
			p.Model != "" && n.Model == p.Model
	}
	list, err := k.Store.Namespaces(ctx)
	if err != nil {
		return err
	}
	its := map[skep.NamespaceID]bool{}
	for i := range list {
		its[list[i].ID] = concerns(list[i].ID, &list[i])
	}
	// Of what is deleted meanwhile it is not known.
	if err := k.landed(ctx, op, func(f *Flight) bool { of, listed := its[f.space]; return of || !listed }); err != nil {
		return err
	}
	return k.recall(ctx, op, func(take func(sentKey)) {
		k.noted(take, func(at sentKey, sp *skep.NamespaceInfo) bool { return concerns(at.space, sp) })
	})
}

// DeleteNamespace implements skep.Namespacer, as Delete does. A node that was given the namespace since loses it, too.
// Where the Store has it no more, an earlier try may have been given up before what was under way had landed: NotFound
// comes once that has, and is gone.
func (k *Keeper) DeleteNamespace(ctx context.Context, id skep.NamespaceID) error {
	const op = "delete namespace"
	own := k.Store.DeleteNamespace(ctx, id)
	if own != nil && skep.KindOf(own) != skep.NotFound {
		return own
	}
	if err := k.landed(ctx, op, func(f *Flight) bool { return f.space == id }); err != nil {
		return err
	}
	if err := k.alone(ctx, op, func() (<-chan struct{}, error) { return k.takeBack(ctx, op, id) }); err != nil {
		return err
	}
	return cmp.Or(k.recall(ctx, op, func(take func(sentKey)) {
		k.noted(take, func(at sentKey, _ *skep.NamespaceInfo) bool { return at.space == id })
	}), own)
}

// takeBack deletes a namespace at the nodes that were given it lately. beside is as of recallOnce.
func (k *Keeper) takeBack(ctx context.Context, op string, id skep.NamespaceID) (beside <-chan struct{}, lost error) {
	at := sentKey{space: id}
	k.mu.Lock()
	list := k.spaces[id]
	delete(k.spaces, id)
	if k.recalls[at].n > 0 {
		beside = k.over
	}
	if len(list) == 0 {
		k.mu.Unlock()
		return beside, nil
	}
	k.recalling(at, nil, 1)
	k.mu.Unlock()
	var left []given // this node has the namespace no more: they are told when it is deleted again
	for _, g := range list {
		if err := g.to.DeleteNamespace(recall.Mark(ctx)); err != nil {
			lost = g.to.Missing(op, err)
			left = append(left, g)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range left {
		left[i].at = skep.Steady()
	}
	k.gave(id, append(k.spaces[id], left...))
	k.recalling(at, nil, -1)
	k.recalled()
	return beside, lost
}

// noted has take be called of what which says, of all that went anywhere lately. mu is held.
func (k *Keeper) noted(take func(sentKey), which func(at sentKey, sp *skep.NamespaceInfo) bool) {
	for at, r := range k.recalls {
		if r.of != nil && which(at, r.of) {
			take(at)
		}
	}
	for at, list := range k.sent {
		if which(at, list[0].to.Space()) {
			take(at)
		}
	}
}

// recalling notes that a recall of a block begins, 1, or has ended, -1. mu is held.
func (k *Keeper) recalling(at sentKey, of *skep.NamespaceInfo, by int) {
	if r := (recalls{k.recalls[at].n + by, of}); r.n > 0 {
		k.recalls[at] = r
	} else {
		delete(k.recalls, at)
	}
}

// recalled tells who waits that some have ended. mu is held.
func (k *Keeper) recalled() {
	close(k.over)
	k.over = make(chan struct{})
}

// alone calls f until nobody else was at what it is of. A recall does not wait for others.
func (k *Keeper) alone(ctx context.Context, op string, f func() (beside <-chan struct{}, lost error)) error {
	for {
		beside, lost := f()
		if lost != nil || beside == nil || recall.Is(ctx) {
			return lost
		}
		select {
		case <-beside:
		case <-ctx.Done():
			return checks.Ended(ctx, op)
		}
	}
}

// recall is recallOnce, until nobody else recalls what each takes.
func (k *Keeper) recall(ctx context.Context, op string, each func(take func(sentKey))) error {
	return k.alone(ctx, op, func() (<-chan struct{}, error) { return k.recallOnce(ctx, op, each) })
}

// recallOnce deletes at other nodes what went there lately: of what each takes. Where it does not get there, the
// deletion is to be made again, and what it was of is remembered for another minute. It is to be made again while
// copies may be on their way yet, too: for a minute from when they were sent, however often it is made. beside is
// closed when a recall has ended, where another one was under way of some of it; else it is nil.
func (k *Keeper) recallOnce(
	ctx context.Context, op string, each func(take func(sentKey)),
) (beside <-chan struct{}, lost error) {
	type sent struct {
		at sentKey
		sending
	}
	of := map[Target][]sent{}
	k.mu.Lock()
	each(func(at sentKey) {
		if k.recalls[at].n > 0 {
			beside = k.over
		}
		var under []sending // whoever deletes what they were read from waits for them, and takes them then
		for _, s := range k.sent[at] {
			if !s.flight.ended() {
				under = append(under, s)
				continue
			}
			of[s.to] = append(of[s.to], sent{at, s})
		}
		k.keep(at, under) // made from here on, a deletion that this one causes finds no more
	})
	for to, list := range of {
		for _, s := range list {
			k.recalling(s.at, to.Space(), 1)
		}
	}
	k.mu.Unlock()
	var wait sync.WaitGroup
	var mu sync.Mutex // guards lost and what follows
	var missed, doubt []sent
	for p, list := range of {
		wait.Go(func() {
			keys := make([]skep.Key, len(list))
			for i := range list {
				keys[i] = list[i].at.key
			}
			err := p.Delete(recall.Mark(ctx), op, keys)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				lost = p.Missing(op, err)
				missed = append(missed, list...)
				return
			}
			for _, s := range list {
				if s.flight.Doubt.Load() {
					lost = p.Missing(op, &skep.Error{Op: "repair", Kind: skep.Unavailable})
					doubt = append(doubt, s)
				}
			}
		})
	}
	wait.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	now := skep.Steady()
	anew := map[sentBy]bool{}
	for i := range missed {
		missed[i].sending.at = now
		anew[sentBy{missed[i].at, missed[i].flight}] = true
	}
	if len(anew) > 0 {
		k.order = slices.DeleteFunc(k.order, func(o sentAt) bool { return anew[o.sentBy] })
	}
	for by := range anew {
		k.order = append(k.order, sentAt{by, now})
	}
	for _, s := range append(missed, doubt...) {
		if now.Sub(s.sending.at) < sentFor { // else nothing would forget it
			k.keep(s.at, append(k.sent[s.at], s.sending))
		}
	}
	for to, list := range of {
		for _, s := range list {
			k.recalling(s.at, to.Space(), -1)
		}
	}
	if len(of) > 0 {
		k.recalled()
	}
	return beside, lost
}
