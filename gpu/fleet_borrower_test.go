package gpu_test

import (
	"bytes"
	"context"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/gpu/lend"
	"github.com/skepkv/skep/gpu/sim"
	"github.com/skepkv/skep/layout/elastic"
	"github.com/skepkv/skep/store/memstore"
)

// The borrowers of a fleet (fleet_test.go).

type fleetBorrower struct {
	f      *fleet
	id     int
	device *sim.Device
	store  *gpu.Store
	local  int // blocks of its own
	layers int
	scope  skep.Scope
	keys   []skep.Key
	loans  []*fleetLoan // by lender
	stuck  lend.Time    // until then the process does nothing
	busy   bool         // in a restore
	lost   atomic.Bool  // its GPU failed
	apart  atomic.Bool  // a prompt is computed: its copies are a goroutine's own
	asked  int          // prompts
	dead   bool
}

type fleetLoan struct {
	of      *fleetLender
	machine *lend.Borrower
	life    uint64
	until   atomic.Int64
	pool    int
	leaves  bool
	failed  bool // something may still touch what it has no more
	pending chan error
	answers []lend.Message // when pending is done
}

// midCopy is a borrower's GPU: whoever waits for it has the schedule go on first.
type midCopy struct {
	*sim.Device
	b *fleetBorrower
}

func (d midCopy) NewStream() (gpu.Stream, error) {
	s, err := d.Device.NewStream()
	return midCopyStream{s, d.b}, err
}

type midCopyStream struct {
	gpu.Stream
	b *fleetBorrower
}

func (s midCopyStream) Sync(ctx context.Context) error {
	if !s.b.lost.Load() && !s.b.apart.Load() { // else another goroutine may ask
		s.b.f.during(s.b)
	}
	err := s.Stream.Sync(ctx)
	if err != nil {
		s.b.lost.Store(true)
	}
	return err
}

// borrower begins a process, on a GPU that no process had before.
func (f *fleet) borrower(id int) *fleetBorrower {
	b := &fleetBorrower{f: f, id: id, loans: make([]*fleetLoan, len(f.lenders)), local: f.rng.IntN(4), layers: 2 * f.rng.IntN(2)}
	if f.device == 64 {
		b.dead = true
		return b
	}
	b.device = f.world.Device(f.device)
	f.device++
	var err error
	b.store, err = gpu.New(memstore.New(memstore.Options{}), gpu.Options{Device: midCopy{b.device, b}, Local: b.local, Layers: b.layers, BlockBytes: fleetBlock, Timeout: time.Minute})
	require.NoError(f.t, err)
	ns, err := b.store.OpenNamespace(f.t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "n", Model: "m", Shape: fleetShape, Copies: 1, Chained: true})
	require.NoError(f.t, err)
	b.scope = skep.Scope{Namespace: ns.ID}
	r := &skep.PutRequest{Scope: b.scope}
	for i := range fleetChain {
		b.keys = append(b.keys, skep.KeyOf([]byte{byte(i)}))
		r.Blocks = append(r.Blocks, skep.Block{Key: b.keys[i], Parts: []skep.Part{{Bytes: b.content(i)}}})
	}
	_, err = b.store.Put(f.t.Context(), r)
	require.NoError(f.t, err)
	return b
}

func (b *fleetBorrower) content(i int) []byte {
	out := make([]byte, fleetBlock)
	for j := range out {
		out[j] = byte(j*7 + i*31 + b.id*101 + 1)
	}
	return out
}

// hears has a borrower take a letter, as package loan does.
func (f *fleet) hears(b *fleetBorrower, d letter) {
	i := slices.IndexFunc(b.loans, func(k *fleetLoan) bool { return k != nil && k.life == d.life })
	if i < 0 {
		return
	}
	k := b.loans[i]
	// It reads its mail later. What has to wait for copies itself does not go on beside a restore here.
	if k.pending != nil || f.time() < b.stuck || b.busy && b.layers > 0 && d.m.Kind == lend.Grant {
		d.at = max(b.stuck, f.time()+time.Millisecond)
		f.mail = append(f.mail, d)
		return
	}
	before := k.machine.Has()
	var out []lend.Message
	if d.ends {
		k.machine.Return()
		k.leaves = true
	} else {
		out = k.machine.Receive(d.m)
	}
	k.until.Store(int64(k.machine.Until()))
	f.follow(b, k, before, out)
}

// follow has the Store use what the machine has, and then answers. In mid-copy of the same Store that
// takes a goroutine of its own, as it has in a process, and waits for the copy.
func (f *fleet) follow(b *fleetBorrower, k *fleetLoan, before lend.Units, out []lend.Message) {
	after := k.machine.Has()
	var do func() error
	switch lender := slices.Index(b.loans, k); {
	case before == after || k.failed:
	case before.Len() == 0:
		do = func() (err error) {
			usable := func() bool { return f.now.Load() < k.until.Load() }
			k.pool, err = b.store.Attach(gpu.Lender{Device: f.world.Device(lender), Unit: fleetUnit, Units: after.To, Keep: after.From, Memory: k.of.memory, Usable: usable})
			return err
		}
	case after.Len() == 0:
		do = func() error { return b.store.Detach(k.pool) }
	default:
		do = func() error { return b.store.Reclaim(k.pool, after.From-before.From) }
	}
	switch {
	case do == nil:
		f.followed(b, k, nil, out)
	case !b.busy:
		f.followed(b, k, do(), out)
	default:
		k.pending, k.answers = make(chan error, 1), out
		go func() { k.pending <- do() }()
	}
}

func (f *fleet) followed(b *fleetBorrower, k *fleetLoan, err error, out []lend.Message) {
	if k.failed = k.failed || err != nil; k.failed {
		return // it is not acknowledged: the process will be ended
	}
	f.reply(k, out...)
	if k.leaves && k.machine.Has().Len() == 0 && (k.of.gone || k.of.machine.Lent(b.id).Len() == 0) {
		f.count.Left++
		b.loans[slices.Index(b.loans, k)] = nil
	}
}

// join takes what goroutines have done; after a restore it waits for them.
func (f *fleet) join(b *fleetBorrower) {
	for _, k := range b.loans {
		if k == nil || k.pending == nil {
			continue
		}
		if runtime.Gosched(); b.busy && len(k.pending) == 0 {
			continue
		}
		err := <-k.pending
		k.pending = nil
		f.followed(b, k, err, k.answers)
	}
}

// work has a borrower connect, renew and restore.
func (f *fleet) work(b *fleetBorrower) {
	f.join(b)
	if b.dead || b.busy || f.time() < b.stuck {
		return
	}
	for i, x := range f.lenders {
		switch k := b.loans[i]; {
		case k == nil:
			if f.rng.IntN(3) == 0 && x.machine.Lent(b.id).Len() == 0 {
				life := uint64(len(f.owners))
				f.owners = append(f.owners, b)
				b.loans[i] = &fleetLoan{of: x, life: life, machine: lend.NewBorrower(b.id, life)}
			}
		case !k.failed && f.rng.IntN(3) == 0:
			if f.reply(k, k.machine.Renew()); k.leaves { // until the lender has heard it
				before := k.machine.Has()
				f.follow(b, k, before, k.machine.Return())
			}
		}
	}
	if f.rng.IntN(2) == 0 {
		f.restore(b)
	} else if b.layers > 0 && b.local > 0 && f.depth == 0 && f.rng.IntN(3) == 0 {
		f.prompt(b)
	}
	if b.dead && f.borrowers[b.id] == b { // it was ended in mid-copy
		f.borrowers[b.id] = f.borrower(b.id)
	}
}

// restore restores a chain.
func (f *fleet) restore(b *fleetBorrower) {
	b.busy = true
	f.restored(b, b.keys[:1+f.rng.IntN(fleetChain)])
	b.busy = false
	f.join(b)
	f.divided(b)
}

// restored restores blocks and compares every byte.
func (f *fleet) restored(b *fleetBorrower, keys []skep.Key) {
	n := len(keys)
	mem := make([]byte, n*4096)
	ctx := f.t.Context()
	ses, err := b.store.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: b.scope, Keys: keys, Dest: skep.Destination{Memory: mem}}}})
	require.NoError(f.t, err)
	for into := make([]skep.Chunk, 4); err == nil; {
		var got int
		got, err = ses.Next(ctx, into)
		for _, c := range into[:got] {
			require.NoError(f.t, c.Err)
			if f.count.Blocks++; c.Tier == skep.TierGPU {
				f.count.Hits++
			}
		}
	}
	require.NoError(f.t, ses.Close(ctx))
	for i := range n {
		if !bytes.Equal(b.content(i), mem[i*4096:][:fleetBlock]) {
			f.fail("block %d of borrower %d is wrong", i, b.id)
		}
	}
}

// prompt computes a prompt, of which a part is in lent memory, while the schedule goes on. What attention reads and what is stored
// is right, or the Store says that it is not.
func (f *fleet) prompt(b *fleetBorrower) {
	b.busy = true
	defer func() {
		b.busy = false
		f.join(b)
	}()
	ctx := f.t.Context()
	history := f.rng.IntN(5)
	keys := slices.Clone(b.keys[:history+1+f.rng.IntN(5)])
	b.asked++
	for i := history; i < len(keys); i++ {
		keys[i] = skep.KeyOf([]byte{byte(i), byte(b.asked), byte(b.asked >> 8), 1})
	}
	p, err := b.store.Prefill(ctx, &gpu.PrefillRequest{Scope: b.scope, Keys: keys, History: history, Unchecked: f.rng.IntN(2) == 0})
	if err != nil {
		return // there is not as much room now, or no GPU any more
	}
	before := b.store.Usage()
	on, err := b.device.NewStream()
	if err != nil {
		require.NoError(f.t, p.Close(ctx))
		return
	}
	b.apart.Store(true)
	layer := fleetBlock / b.layers
	fresh, seen := make([][]byte, len(keys)), make([][]byte, b.layers)
	for i := range keys {
		fresh[i] = b.content(i)
	}
	require.NoError(f.t, p.Step(len(keys)))
	for l := range b.layers {
		p.Loaded(l, on)
		for i := history; i < len(keys); i++ {
			on.CopyIn(p.Place(i, l), fresh[i][l*layer:(l+1)*layer])
		}
		p.Written(l, on)
		seen[l] = make([]byte, len(keys)*layer)
		for i := range keys {
			on.CopyOut(seen[l][i*layer:(i+1)*layer], p.Place(i, l))
		}
		p.Read(l, on)
	}
	f.depth++
	for range 1 + f.rng.IntN(12) {
		f.step()
	}
	f.depth--
	synced := on.Sync(ctx)
	_, err = p.Commit(ctx)
	b.apart.Store(false)
	require.NoError(f.t, p.Close(ctx))
	after := b.store.Usage()
	f.count.Relocated += int(after.Relocated - before.Relocated)
	f.count.Rescued += int(after.Rescued - before.Rescued)
	if synced != nil || err != nil || b.dead {
		return
	}
	f.count.Prompts++
	for l := range seen {
		for i := range keys {
			if !bytes.Equal(b.content(i)[l*layer:(l+1)*layer], seen[l][i*layer:(i+1)*layer]) {
				f.fail("attention of layer %d reads wrong bytes of block %d of borrower %d", l, i, b.id)
			}
		}
	}
	f.restored(b, keys)
}

// divided looks at what the Store takes its local memory for.
func (f *fleet) divided(b *fleetBorrower) {
	u := b.store.Usage()
	if u.Failed != nil || b.dead || b.local == 0 || b.layers == 0 {
		return
	}
	var lent []int
	for _, k := range b.loans {
		switch {
		case k == nil:
		case k.failed:
			return
		default:
			lent = append(lent, k.machine.Has().Len()*fleetUnit.Borrower)
		}
	}
	if stream, regular := elastic.Divide(b.local*b.layers, b.layers, lent...); u.LayerRoom != stream || u.LocalRoom != regular || u.Local > regular {
		f.fail("local memory is divided wrongly: %+v, lent %v", u, lent)
	}
}
