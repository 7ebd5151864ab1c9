package gpu_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/gpu/lend"
	"github.com/skepkv/skep/gpu/sim"
	"github.com/skepkv/skep/layout/elastic"
)

// fleet is one random schedule of lenders and borrowers on simulated GPUs of one server: the Store
// itself with its copies, and the machines of package lend over a network that loses, doubles and
// delays. Things happen in mid-copy too: whenever a Store waits for a copy, the schedule may go on.
type fleet struct {
	t         *testing.T
	rng       *rand.Rand
	now       atomic.Int64 // a lend.Time
	world     *sim.World
	lenders   []*fleetLender
	borrowers []*fleetBorrower
	mail      []letter
	owners    []*fleetBorrower // of lives: the process
	device    int              // for the next borrower's process
	depth     int
	count     fleetCount
}

type fleetCount struct {
	Hits, Blocks, Reclaims, MidCopy, Killed, Crashed, Lost, Left int
	Prompts, Relocated, Rescued                                  int
}

type fleetLender struct {
	machine *lend.Lender
	units   int
	floor   int
	shares  int
	offer   int // units from here on may be lent
	memory  gpu.Memory
	stream  gpu.Stream
	marks   []byte // what it wrote into its own units, as long as they are; 0: nothing
	wants   []fleetWant
	gone    bool // its process has ended: its memory is there for who has it mapped
}

type fleetWant struct {
	border int
	by     lend.Time
}

type letter struct {
	at       lend.Time
	m        lend.Message
	lender   *fleetLender
	life     uint64
	toLender bool
	ends     bool // the connection's end
}

var (
	fleetTimes = lend.Config{Lease: 100 * time.Millisecond, Reclaim: 10 * time.Millisecond}
	fleetUnit  = elastic.Unit{Bytes: 1024, LenderBlock: 1024, BorrowerBlock: fleetBlock, Lender: 1, Borrower: 2}
	fleetShape = skep.Shape{Kind: skep.Attention, Layers: 2, KVHeads: 1, HeadDim: 16, Element: skep.BF16, BlockTokens: 4}
)

const (
	fleetBlock = 512
	fleetChain = 10
)

func newFleet(t *testing.T, seed, i uint64) *fleet {
	f := &fleet{t: t, rng: rand.New(rand.NewPCG(seed, i))}
	o := sim.H20()
	o.Devices, o.MemoryBytes, o.Seed = 64, 1<<30, f.rng.Uint64()
	slow := []time.Duration{0, 100 * time.Microsecond, time.Second}[f.rng.IntN(3)] // what nobody waits for comes late
	o.Peer.Latency, o.Host.Latency = slow, slow
	var err error
	f.world, err = sim.New(o)
	require.NoError(t, err)
	borrowers := 1 + f.rng.IntN(3)
	for range 1 + f.rng.IntN(3) {
		f.lenders = append(f.lenders, f.lender(len(f.lenders), borrowers))
	}
	f.device = len(f.lenders)
	for id := range borrowers {
		f.borrowers = append(f.borrowers, f.borrower(id))
	}
	return f
}

func (f *fleet) time() lend.Time { return lend.Time(f.now.Load()) }

func (f *fleet) lender(i, shares int) *fleetLender {
	n := 3 + f.rng.IntN(6)
	x := &fleetLender{units: n, floor: f.rng.IntN(3), shares: shares, offer: n, marks: make([]byte, n)}
	var err error
	x.machine, err = lend.NewLender(n, x.floor, fleetTimes)
	require.NoError(f.t, err)
	x.memory, err = f.world.Device(i).Alloc(int64(n) * fleetUnit.Bytes)
	require.NoError(f.t, err)
	x.stream, err = f.world.Device(i).NewStream()
	require.NoError(f.t, err)
	return x
}

func (f *fleet) fail(what string, args ...any) {
	f.t.Helper()
	require.FailNow(f.t, fmt.Sprintf(what, args...), "at %v", f.time())
}

func (f *fleet) post(d letter) {
	for n := 1 + f.rng.IntN(10)/9 - f.rng.IntN(10)/9; n > 0; n-- {
		d.at = f.time() + lend.Time(f.rng.IntN(3000))*time.Microsecond
		f.mail = append(f.mail, d)
	}
}

// send carries a lender's messages out.
func (f *fleet) send(x *fleetLender, list ...lend.Message) {
	for _, m := range list {
		if m.Kind == lend.Kill {
			f.count.Killed++
			f.kill(f.owners[m.Life])
			continue
		}
		f.post(letter{m: m, lender: x, life: m.Life})
	}
}

func (f *fleet) reply(k *fleetLoan, list ...lend.Message) {
	for _, m := range list {
		f.post(letter{m: m, lender: k.of, life: k.life, toLender: true})
	}
}

// kill ends a borrower's process: what its GPU was at has no effect any more. Its lenders see it at once.
func (f *fleet) kill(b *fleetBorrower) {
	if b.dead {
		return
	}
	b.dead = true
	b.lost.Store(true)
	b.device.Fail(&skep.Error{Op: "GPU", Kind: skep.DeviceFailed, Field: "process", Value: "ended"})
	for _, x := range f.lenders {
		x.machine.Gone(b.id)
	}
	if !b.busy {
		f.borrowers[b.id] = f.borrower(b.id)
	}
}

// crash ends a lender's process. What it lent stays where it is mapped, or is taken away in mid-copy.
func (f *fleet) crash(i int) {
	f.count.Crashed++
	x := f.lenders[i]
	x.gone = true
	if f.rng.IntN(3) == 0 {
		f.world.Device(i).Revoke(x.memory, f.rng.IntN(6))
	}
	f.lenders[i] = f.lender(i, x.shares)
	for _, b := range f.borrowers {
		if k := b.loans[i]; k != nil {
			f.mail = append(f.mail, letter{at: f.time() + lend.Time(f.rng.IntN(3000))*time.Microsecond, lender: x, life: k.life, ends: true})
		}
	}
}

// during is called in the middle of a borrower's copy.
func (f *fleet) during(b *fleetBorrower) {
	if f.depth >= 2 || !b.busy || f.rng.IntN(20) > 0 {
		return
	}
	f.count.MidCopy++
	f.depth++
	for range 1 + f.rng.IntN(12) {
		f.step()
	}
	f.depth--
}

func (f *fleet) step() {
	f.now.Add(int64(f.rng.IntN(1500)) * 1000)
	f.deliver()
	for i, x := range f.lenders {
		f.send(x, x.machine.Tick(f.time())...)
		f.own(i)
		f.check(i)
	}
	f.happen()
	for _, b := range slices.Clone(f.borrowers) {
		f.work(b)
	}
}

// deliver hands out the mail that is due, in any order.
func (f *fleet) deliver() {
	var due []letter
	f.mail = slices.DeleteFunc(f.mail, func(d letter) bool {
		if d.at <= f.time() {
			due = append(due, d)
		}
		return d.at <= f.time()
	})
	f.rng.Shuffle(len(due), func(i, j int) { due[i], due[j] = due[j], due[i] })
	for _, d := range due {
		b := f.owners[d.life]
		switch {
		case d.toLender && !d.lender.gone:
			f.send(d.lender, d.lender.machine.Receive(f.time(), d.m)...)
		case d.toLender || b.dead:
		default:
			f.hears(b, d)
		}
	}
}

// happen has a border move, or somebody hang, leave, crash or lose a GPU.
func (f *fleet) happen() {
	i := f.rng.IntN(len(f.lenders))
	x, b := f.lenders[i], f.borrowers[f.rng.IntN(len(f.borrowers))]
	switch f.rng.IntN(24) {
	case 0, 1, 2: // it wants memory back
		if to := x.floor + f.rng.IntN(x.units-x.floor+1); to > x.machine.Border() {
			f.want(x, to)
		}
	case 3, 4, 5, 6:
		if to := f.rng.IntN(x.units + 1); to < x.offer && len(x.wants) == 0 {
			x.offer = to
		}
	case 7:
		if f.rng.IntN(3) == 0 {
			f.kill(b)
		}
	case 8:
		if k := b.loans[i]; !b.dead && !b.busy && k != nil && !k.leaves && k.pending == nil && f.time() >= b.stuck {
			k.leaves = true
			before := k.machine.Has()
			f.follow(b, k, before, k.machine.Return())
		}
	case 9:
		if f.rng.IntN(3) == 0 {
			b.stuck = f.time() + lend.Time(f.rng.IntN(40))*time.Millisecond
		}
	case 10:
		if f.rng.IntN(4) == 0 {
			f.crash(i)
		}
	case 11:
		if f.rng.IntN(8) == 0 && !b.dead { // it lives, and cannot know what is still under way
			f.count.Lost++
			b.lost.Store(true)
			b.device.Fail(&skep.Error{Op: "GPU", Kind: skep.DeviceFailed, Field: "device", Value: "gone"})
		}
	}
}

func (f *fleet) want(x *fleetLender, to int) {
	x.offer = to
	x.wants = slices.DeleteFunc(x.wants, func(v fleetWant) bool { return v.border > to })
	x.wants = append(x.wants, fleetWant{to, f.time() + fleetTimes.Reclaim + 2*time.Millisecond})
	f.send(x, x.machine.Reclaim(f.time(), to)...)
}

// own has a lender lend what it offers, and write to all that is its own, where it finds what it wrote.
func (f *fleet) own(i int) {
	x := f.lenders[i]
	if x.machine.Border() >= x.offer {
		var wants []lend.Want
		for id, b := range f.borrowers {
			if k := b.loans[i]; k != nil && k.of == x && !k.leaves && !k.failed && !b.dead {
				wants = append(wants, lend.Want{Borrower: id, Life: k.life})
			}
		}
		f.send(x, x.machine.Share(f.time(), x.offer, x.shares, wants)...)
	}
	border, wrong := min(x.offer, x.machine.Border()), -1
	x.stream.Compute(0, func() { // a kernel of its own: no copy of others is done for it
		for u := range x.marks {
			mine := sim.Bytes(gpu.Place{Memory: x.memory, Offset: int64(u) * fleetUnit.Bytes}, fleetUnit.Bytes)
			if m := x.marks[u]; m != 0 && bytes.Count(mine, []byte{m}) != len(mine) {
				wrong = u
			}
			if x.marks[u] = 0; u < border { // it takes what it has got back
				x.marks[u] = byte(1 + f.rng.IntN(255))
				copy(mine, bytes.Repeat(x.marks[u:u+1], len(mine)))
			}
		}
	})
	require.NoError(f.t, x.stream.Sync(f.t.Context()))
	if wrong >= 0 {
		f.fail("somebody wrote into unit %d, which is the lender's", wrong)
	}
	x.wants = slices.DeleteFunc(x.wants, func(v fleetWant) bool {
		if x.machine.Border() >= v.border {
			f.count.Reclaims++
			return true
		}
		if f.time() > v.by+2*time.Millisecond {
			f.fail("memory is back within its deadline, %v", v.by)
		}
		return false
	})
}

// check looks at what a lender has given.
func (f *fleet) check(i int) {
	x := f.lenders[i]
	if x.machine.Border() < x.floor {
		f.fail("the floor")
	}
	to := x.units
	lent := []lend.Units{}
	for id := range f.borrowers {
		u := x.machine.Lent(id)
		if u.Len() > max(1, (x.units-x.floor)/x.shares) {
			f.fail("borrower %d has more than its share: %v", id, u)
		}
		if u.Len() > 0 {
			lent = append(lent, u)
		}
	}
	slices.SortFunc(lent, func(a, b lend.Units) int { return b.From - a.From })
	for _, u := range lent {
		if u.To > to {
			f.fail("units %v are lent twice", u)
		}
		to = u.From
	}
}

// end has every lender take all of it back, closes what lives, and sees that nothing is left of it.
func (f *fleet) end() {
	for _, x := range f.lenders {
		if x.machine.Border() < x.units {
			f.want(x, x.units)
		}
		x.offer = x.units
	}
	for range 100 {
		f.now.Add(500_000)
		f.deliver()
		for i, x := range f.lenders {
			f.send(x, x.machine.Tick(f.time())...)
			f.own(i)
		}
	}
	for _, x := range f.lenders {
		require.Equal(f.t, x.units, x.machine.Border())
	}
	for _, b := range f.borrowers {
		if !b.dead {
			err := b.store.Close()
			if b.store.Usage().Failed == nil {
				require.NoError(f.t, err)
			}
		}
	}
}

// No byte that a Store gives is wrong, none of a lender's own is written by anybody else, and memory is
// back within its deadline, whatever happens among several lenders and borrowers, in mid-copy too.
func TestFleets(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	schedules := uint64(1000)
	if testing.Short() {
		schedules = 150
	}
	var all fleetCount
	for i := range schedules {
		f := newFleet(t, seed, i)
		for range 40 {
			f.step()
		}
		f.end()
		c := f.count
		all = fleetCount{all.Hits + c.Hits, all.Blocks + c.Blocks, all.Reclaims + c.Reclaims, all.MidCopy + c.MidCopy, all.Killed + c.Killed, all.Crashed + c.Crashed, all.Lost + c.Lost, all.Left + c.Left,
			all.Prompts + c.Prompts, all.Relocated + c.Relocated, all.Rescued + c.Rescued}
	}
	t.Logf("%d schedules: %+v", schedules, all)
	for _, n := range []int{all.Hits, all.Reclaims, all.MidCopy, all.Killed, all.Crashed, all.Lost, all.Left, all.Prompts} {
		require.Positive(t, n, "%+v", all)
	}
}
