package gputest

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/layout/elastic"
)

// prompt is an emulated engine that computes a prompt by gpu.Prefill. Its kernels are copies, so that it runs on every
// back end: what a layer computes is copied from memory that holds it, and what attention reads, every byte of a
// layer of all blocks in order, is copied to where it can be looked at afterwards.
type prompt struct {
	t     testing.TB
	s     *gpu.Store
	sc    skep.Scope
	keys  []skep.Key
	on    gpu.Stream
	fresh gpu.Memory // what is computed: blocks, one after the other
	seen  gpu.Memory // what attention has read: a row of the whole prompt for each layer of each step
	rows  []int      // how many blocks each has
	early early
	lasts [2]time.Duration // of what comes before entries are written, and of attention
}

// early says which of the engine's signs comes too early, or what it does not wait for.
type early uint8

const (
	inOrder early = iota
	notLoaded
	earlyWritten
	earlyRead
)

const layerBytes = BlockBytes / 4

func (e early) String() string { return [...]string{"in order", "loaded", "written", "read"}[e] }

func newPrompt(t testing.TB, d gpu.Device, s *gpu.Store, sc skep.Scope, n, steps int) *prompt {
	e := &prompt{t: t, s: s, sc: sc, on: stream(t, d), fresh: alloc(t, d, int64(n*BlockBytes)), seen: alloc(t, d, int64(steps*n*BlockBytes))}
	for i := range n {
		e.keys = append(e.keys, skep.KeyOf([]byte{byte(i)}))
		e.on.CopyIn(at(e.fresh, int64(i*BlockBytes)), content(i))
	}
	e.on.CopyIn(at(e.seen, 0), make([]byte, steps*n*BlockBytes))
	require.NoError(t, e.on.Sync(Soon(t)))
	return e
}

// step queues one step that computes blocks [from, to).
func (e *prompt) step(p *gpu.Prefill, from, to int) {
	for l := range 4 {
		n := len(e.rows)
		if e.early == notLoaded {
			p.Loaded(n, deaf{e.on})
		} else {
			p.Loaded(n, e.on)
		}
		if e.early == earlyWritten {
			p.Written(n, e.on)
		}
		e.on.Compute(e.lasts[0], nil)
		for b := from; b < to; b++ {
			e.on.Copy(p.Place(b, l), at(e.fresh, int64(b*BlockBytes+l*layerBytes)), layerBytes)
		}
		if e.early != earlyWritten {
			p.Written(n, e.on)
		}
		if e.early == earlyRead {
			p.Read(n, e.on)
		}
		e.on.Compute(e.lasts[1], nil)
		for b := range to {
			e.on.Copy(at(e.seen, int64((n*len(e.keys)+b)*layerBytes)), p.Place(b, l), layerBytes)
		}
		if e.early != earlyRead {
			p.Read(n, e.on)
		}
		e.rows = append(e.rows, to)
	}
}

// deaf is a stream that does not wait.
type deaf struct{ gpu.Stream }

func (deaf) Wait(gpu.Counter, uint64) {}

// run computes a prompt in steps and says what was wrong with what attention read; digest is a checksum of it.
func (e *prompt) run(history int, steps ...int) (p *gpu.Prefill, digest uint64, wrong string) {
	p = e.queue(history, steps...)
	require.NoError(e.t, e.on.Sync(Soon(e.t)))
	digest, wrong = e.look()
	return p, digest, wrong
}

// queue queues all of a prompt.
func (e *prompt) queue(history int, steps ...int) *gpu.Prefill {
	p, err := e.s.Prefill(Soon(e.t), &gpu.PrefillRequest{Scope: e.sc, Keys: e.keys, History: history})
	require.NoError(e.t, err)
	require.Equal(e.t, history, p.History())
	from := history
	for _, to := range steps {
		require.NoError(e.t, p.Step(to))
		e.step(p, from, to)
		from = to
	}
	return p
}

func (e *prompt) look() (digest uint64, wrong string) {
	row := len(e.keys) * layerBytes
	got := make([]byte, len(e.rows)*row)
	e.on.CopyOut(got, at(e.seen, 0))
	require.NoError(e.t, e.on.Sync(Soon(e.t)))
	h := fnv.New64a()
	for n, blocks := range e.rows {
		for b := range blocks {
			l := n % 4
			part := got[n*row+b*layerBytes:][:layerBytes]
			if h.Write(part); wrong == "" && !bytes.Equal(part, content(b)[l*layerBytes:(l+1)*layerBytes]) {
				wrong = fmt.Sprintf("attention %d, of layer %d, reads wrong bytes of block %d", n, l, b)
			}
		}
	}
	return h.Sum64(), wrong
}

func (e *prompt) close() {
	require.NoError(e.t, e.on.Close())
	require.NoError(e.t, e.fresh.Free())
	require.NoError(e.t, e.seen.Free())
}

// lentHalf is a Store with own memory for three blocks of four layers and eight lent blocks: of the twelve single-layer
// blocks eight are for the layer at work, and one block is whole.
func lentHalf(t testing.TB, m Machine, behind skep.Store, lent gpu.Memory, more gpu.Options) *gpu.Store {
	more.Device, more.BlockBytes, more.Layers, more.Timeout = m.Devices[0], BlockBytes, 4, time.Minute
	if more.Local == 0 {
		more.Local = 3
	}
	if lent != nil {
		more.Lenders = []gpu.Lender{{Device: m.Devices[1], Unit: unit, Units: lentUnits, Keep: 1, Memory: lent}}
	}
	s, err := gpu.New(behind, more)
	require.NoError(t, err)
	return s
}

// testPrompts: a prompt three times as long as own memory holds gives what it gives where all of it is local; and
// elastic.Divide says how long it can be.
func testPrompts(t *testing.T, open Open, behind func() skep.Store) {
	stream, regular := elastic.Divide(12, 4, 8)
	longest := stream + regular
	require.Equal(t, []int{9, 3}, []int{longest, 12 / 4})
	digests := map[string]uint64{}
	for name, local := range map[string]int{"lent": 3, "all local": longest} {
		m := open(t, Config{Seed: 31})
		lent := alloc(t, m.Devices[1], lentUnits*unit.Bytes)
		theirs := lent
		if name == "all local" {
			theirs = nil
		}
		b := behind()
		s := lentHalf(t, m, b, theirs, gpu.Options{Local: local})
		sc, _ := Chain(t, s, 5)
		e := newPrompt(t, m.Devices[0], s, sc, longest, 2)
		p, digest, wrong := e.run(5, 7, longest)
		require.Empty(t, wrong)
		digests[name] = digest
		if name == "lent" {
			require.Equal(t, stream, p.Streamed())
			_, err := s.Prefill(Soon(t), &gpu.PrefillRequest{Scope: sc, Keys: e.keys[:2]})
			require.ErrorIs(t, err, skep.Overloaded, "the room is taken")
			_, _, _, err = s.LayerRoom()
			require.ErrorIs(t, err, skep.Overloaded)
		}
		res, err := p.Commit(Soon(t))
		require.NoError(t, err)
		require.Len(t, res, longest-5)
		require.NoError(t, p.Close(Soon(t)))
		require.NoError(t, p.Close(Soon(t)))
		require.Zero(t, s.Usage().Held+int(s.Usage().Uncopied))
		Load(t, s, sc, e.keys)
		Load(t, b, sc, e.keys)

		// What was computed is a history now, of a prompt that is one longer, or too long.
		_, err = s.Prefill(Soon(t), &gpu.PrefillRequest{Scope: sc, Keys: append(e.keys, skep.KeyOf([]byte{200})), History: longest})
		var e2 *skep.Error
		require.ErrorAs(t, err, &e2)
		require.ErrorIs(t, err, skep.NoMemory)
		require.Equal(t, longest, e2.Limit)
		e.rows = nil
		p, _, wrong = e.run(longest, longest)
		require.Empty(t, wrong)
		require.NoError(t, p.Close(Soon(t)))
		e.close()
		require.NoError(t, s.Close())
		require.NoError(t, lent.Free())
		m.close(t)
	}
	require.Equal(t, digests["all local"], digests["lent"])
}

// testPromptWaits: without the engine's wait for a load, or with a sign of its that comes too early, which is what the
// Store's own wait for it being left out would be, attention reads wrong bytes or wrong ones are stored.
func testPromptWaits(t *testing.T, open Open, behind func() skep.Store) {
	if !open(t, Config{}).Deferred {
		t.Skip("nothing is put off here")
	}
	once := func(early early, seed uint64) (wrong string) {
		m := open(t, Config{Seed: seed})
		lent := alloc(t, m.Devices[1], lentUnits*unit.Bytes)
		b := behind()
		s := lentHalf(t, m, b, lent, gpu.Options{})
		sc, _ := Chain(t, s, 4)
		e := newPrompt(t, m.Devices[0], s, sc, 9, 2)
		e.early = early
		for i := range e.lasts {
			e.lasts[i] = []time.Duration{0, 5, 20, 60}[seed>>(2*i)%4] * time.Microsecond
		}
		p := e.queue(4, 7, 9)
		_, err := p.Commit(Soon(t)) // first: who waits for the engine's stream has it go on
		require.NoError(t, err)
		_, wrong = e.look()
		require.NoError(t, p.Close(Soon(t)))
		if wrong == "" && !whole(t, b, sc, e.keys) {
			wrong = "wrong bytes are stored"
		}
		e.close()
		require.NoError(t, s.Close())
		require.NoError(t, lent.Free())
		m.close(t)
		return wrong
	}
	for _, early := range []early{inOrder, notLoaded, earlyWritten, earlyRead} {
		found, most := -1, uint64(200)
		if early == inOrder {
			most = 12
		}
		for seed := uint64(0); found < 0 && seed < most; seed++ {
			if wrong := once(early, seed); wrong != "" {
				require.NotEqual(t, inOrder, early, "seed %d: %s", seed, wrong)
				found = int(seed)
			}
		}
		require.True(t, early == inOrder || found >= 0, "nobody misses: %v", early)
		t.Logf("%v: missed with seed %d", early, found)
	}
}

// whole says whether the blocks behind are what they are to be.
func whole(t testing.TB, s skep.Store, sc skep.Scope, keys []skep.Key) bool {
	mem := make([]byte, len(keys)*BlockBytes)
	ses, err := s.Restore(Soon(t), &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys, Dest: skep.Destination{Memory: mem}}}})
	require.NoError(t, err)
	for into := make([]skep.Chunk, 4); ; {
		if _, err = ses.Next(Soon(t), into); err != nil {
			break
		}
	}
	require.NoError(t, ses.Close(Soon(t)))
	for i := range keys {
		if !bytes.Equal(content(i), mem[i*BlockBytes:(i+1)*BlockBytes]) {
			return false
		}
	}
	return true
}

// testPromptMoves: the lender's border moves while a prompt is computed, over its blocks too. What attention reads and what
// is stored stays right, and nothing writes to what the lender has back.
func testPromptMoves(t *testing.T, open Open, behind func() skep.Store) {
	rounds := uint64(30)
	if testing.Short() {
		rounds = 4
	}
	var relocated, rescued int64
	for seed := range rounds {
		m := open(t, Config{Seed: seed})
		lent := alloc(t, m.Devices[1], lentUnits*unit.Bytes)
		b := behind()
		most := []int64{64 << 20, 1, 2 * BlockBytes}[seed%3] // 1: nothing stays on the host, each layer is read from behind
		s := lentHalf(t, m, b, lent, gpu.Options{RereadBytes: most})
		rng := rand.New(rand.NewPCG(seed, 7))
		sc, _ := Chain(t, s, 4)
		others, names := chainNamed(t, s, "others", 8)
		n := 5 + rng.IntN(5)
		e := newPrompt(t, m.Devices[0], s, sc, n, 3)
		theirs := stream(t, m.Devices[1])
		stop, stopped := make(chan struct{}), make(chan error, 1)
		go func() { stopped <- moves(s, theirs, lent, rng.Uint64(), stop, t) }()
		for turn := range 3 {
			e.rows = nil
			history := []int{4, 4, n}[turn] // the first is not kept
			Load(t, s, others, names)       // of nobody who computes now: they make way, for blocks that are moved too
			p, err := e.s.Prefill(Soon(t), &gpu.PrefillRequest{Scope: sc, Keys: e.keys, History: history, Unchecked: turn == 1})
			if errors.Is(err, skep.NoMemory) || errors.Is(err, skep.Overloaded) { // while less is lent
				continue
			}
			require.NoError(t, err)
			for from, to := p.History(), 0; from < n || to == 0; from = to {
				to = min(n, from+2)
				require.NoError(t, p.Step(to))
				e.step(p, from, to)
			}
			require.NoError(t, e.on.Sync(Soon(t)))
			_, wrong := e.look()
			require.Empty(t, wrong, "seed %d: %v %+v", seed, p.Err(), s.Usage())
			require.LessOrEqual(t, s.Usage().Reread, most, "seed %d", seed)
			if turn > 0 {
				_, err = p.Commit(Soon(t))
				require.NoError(t, err)
			}
			require.NoError(t, p.Close(Soon(t)))
		}
		close(stop)
		require.NoError(t, <-stopped, "seed %d", seed)
		if found, err := b.Lookup(Soon(t), &skep.LookupRequest{Scope: sc, Keys: e.keys, Lease: skep.NoLease}); err == nil {
			require.True(t, whole(t, b, sc, e.keys[:found.Blocks]), "seed %d", seed)
		}
		u := s.Usage()
		require.Zero(t, u.Held)
		require.Zero(t, u.Uncopied+u.Reread)
		relocated += u.Relocated
		rescued += u.Rescued
		e.close()
		require.NoError(t, theirs.Close())
		require.NoError(t, s.Close())
		require.NoError(t, lent.Free())
		m.close(t)
	}
	t.Logf("%d blocks relocated, %d to host memory", relocated, rescued)
}

// testPromptRelocated: blocks of a prompt that lie where the lender's border goes, with others beyond that nobody
// computes with, take the places of those; no block that could stay is copied.
func testPromptRelocated(t *testing.T, open Open, behind func() skep.Store) {
	m := open(t, Config{Seed: 5})
	lent := alloc(t, m.Devices[1], lentUnits*unit.Bytes)
	s := lentHalf(t, m, behind(), lent, gpu.Options{})
	sc, _ := Chain(t, s, 2)
	others, names := chainNamed(t, s, "others", 9)
	Load(t, s, others, names)     // the first ones lie farthest from the border
	Load(t, s, others, names[:4]) // and are not the first to make way
	e := newPrompt(t, m.Devices[0], s, sc, 4, 1)
	p, err := s.Prefill(Soon(t), &gpu.PrefillRequest{Scope: sc, Keys: e.keys, History: 2})
	require.NoError(t, err)
	require.Equal(t, 3, p.Streamed())
	require.Zero(t, s.Usage().Relocated)
	require.NoError(t, s.Reclaim(0, 2))
	require.Positive(t, s.Usage().Relocated)
	require.Zero(t, s.Usage().Rescued)
	moved := s.Usage().Relocated
	require.NoError(t, s.Reclaim(0, -2))
	require.Equal(t, moved, s.Usage().Relocated, "what may stay stays")
	require.NoError(t, p.Step(4))
	e.step(p, 2, 4)
	require.NoError(t, e.on.Sync(Soon(t)))
	_, wrong := e.look()
	require.Empty(t, wrong)
	_, err = p.Commit(Soon(t))
	require.NoError(t, err)
	require.NoError(t, p.Close(Soon(t)))
	Load(t, s, sc, e.keys)
	e.close()
	require.NoError(t, s.Close())
	require.NoError(t, lent.Free())
	m.close(t)
}

// moves takes units back, writes to them as their owner does, sees that they stay as they are, and lends them again.
func moves(s *gpu.Store, on gpu.Stream, lent gpu.Memory, seed uint64, stop chan struct{}, t testing.TB) error {
	rng := rand.New(rand.NewPCG(seed, 9))
	for {
		select {
		case <-stop:
			return nil
		case <-time.After(time.Duration(rng.IntN(200)) * time.Microsecond):
		}
		n := 1 + rng.IntN(lentUnits-1)
		if err := s.Reclaim(0, n); err != nil {
			return err
		}
		mine := pattern((1+n)*int(unit.Bytes), byte(seed))
		got := make([]byte, len(mine))
		on.CopyIn(at(lent, 0), mine)
		if err := on.Sync(Soon(t)); err != nil {
			return err
		}
		time.Sleep(time.Duration(rng.IntN(200)) * time.Microsecond)
		on.CopyOut(got, at(lent, 0))
		if err := on.Sync(Soon(t)); err != nil {
			return err
		}
		if !bytes.Equal(mine, got) {
			return errors.New("something wrote to what the lender had back")
		}
		if err := s.Reclaim(0, -n); err != nil {
			return err
		}
	}
}
