package gpu_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/gpu/gputest"
	"github.com/skepkv/skep/layout/elastic"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
)

// gate is a Store that begins its next restore when somebody says so, and tells what it was asked for.
type gate struct {
	skep.Store
	armed          atomic.Bool
	reached, opens chan struct{}
	asked          []skep.RestoreRequest
	priorities     []int        // that its sessions were told
	live           atomic.Int64 // sessions that are not closed
}

type gated struct {
	skep.Session
	of     *gate
	closed atomic.Bool
}

func newGate() *gate {
	return &gate{Store: memstore.New(memstore.Options{}), reached: make(chan struct{}), opens: make(chan struct{})}
}

func (g *gate) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	g.asked = append(g.asked, *r)
	if g.armed.Swap(false) {
		close(g.reached)
		<-g.opens
	}
	ses, err := g.Store.Restore(ctx, r)
	if err == nil {
		g.live.Add(1)
	}
	return &gated{Session: ses, of: g}, err
}

func (s *gated) Reprioritise(ctx context.Context, chain, priority int, deadline time.Time) error {
	s.of.priorities = append(s.of.priorities, priority)
	return s.Session.Reprioritise(ctx, chain, priority, deadline)
}

func (s *gated) Close(ctx context.Context) error {
	err := s.Session.Close(ctx)
	if err == nil && !s.closed.Swap(true) {
		s.of.live.Add(-1)
	}
	return err
}

// lentOnly has all its blocks in the memory of one lender, which can take all of them back.
func lentOnly(t *testing.T, behind skep.Store) *gpu.Store {
	w := world(t)
	unit := elastic.Unit{Bytes: 64 << 10, LenderBlock: 48 << 10, BorrowerBlock: 32 << 10, Lender: 1, Borrower: 2}
	s, err := gpu.New(behind, gpu.Options{Device: w.Device(0), BlockBytes: 32 << 10, Timeout: time.Minute,
		Lenders: []gpu.Lender{{Device: w.Device(1), Unit: unit, Units: 8}}})
	require.NoError(t, err)
	return s
}

func written(b byte) bool { return b != 0 }

// A restore of blocks that left GPU memory may be just about to begin when its chain is stopped, or its session closed:
// the destination is not the caller's before that restore has ended, too.
func TestStopWaitsForARestoreThatBegins(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for name, end := range map[string]func(context.Context, skep.Session) error{
		"a chain":     func(ctx context.Context, ses skep.Session) error { return ses.Stop(ctx, 0) },
		"all chains":  func(ctx context.Context, ses skep.Session) error { return ses.Stop(ctx, -1) },
		"the session": func(ctx context.Context, ses skep.Session) error { return ses.Close(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			g := newGate()
			s := lentOnly(t, g)
			defer func() { require.NoError(t, s.Close()) }()
			sc, keys := chains(t, s, 4)
			load(t, s, sc, keys)
			mem := make([]byte, len(keys)*gputest.BlockBytes)
			dest := skep.Destination{Memory: mem}
			ses, err := s.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys, Dest: dest}}})
			require.NoError(t, err)
			require.NoError(t, s.Reclaim(0, 8))
			g.armed.Store(true)
			crew := storetest.NewCrew(t)
			crew.Go(func(t testing.TB) {
				for into := make([]skep.Chunk, 8); ; {
					if n, err := ses.Next(t.Context(), into); err != nil || n == 0 {
						return
					}
				}
			})
			<-g.reached
			err = end(ended, ses)
			close(g.opens)
			require.ErrorIs(t, err, skep.NotReleased, "what begins may write there")
			crew.Wait()
			require.NoError(t, end(t.Context(), ses))
			require.False(t, slices.ContainsFunc(mem, written), "it wrote nothing")
			require.NoError(t, ses.Close(t.Context()))
			require.Zero(t, g.live.Load(), "sessions behind that nobody closed")
		})
	}
}

// However many chains have blocks that left GPU memory, what restores them has one window, of which what is lent is a
// part.
func TestBlocksThatLeftShareAWindow(t *testing.T) {
	t.Parallel()
	g := newGate()
	s := lentOnly(t, g)
	defer func() { require.NoError(t, s.Close()) }()
	sc, keys := chains(t, s, 12)
	load(t, s, sc, keys)
	r := &skep.RestoreRequest{Window: 4 * gputest.BlockBytes}
	for from := 0; from < 12; from += 4 {
		r.Chains = append(r.Chains, skep.Chain{Scope: sc, Keys: keys, Blocks: skep.Only(from, from+4)})
	}
	ses, err := s.Restore(t.Context(), r)
	require.NoError(t, err)
	var into [1]skep.Chunk
	_, err = ses.Next(t.Context(), into[:])
	require.NoError(t, err)
	require.Equal(t, skep.TierGPU, into[0].Tier)
	held := into[0]
	require.NoError(t, s.Reclaim(0, 8))
	g.asked = nil
	_, err = ses.Next(t.Context(), into[:])
	require.NoError(t, err)
	window := int64(0)
	for _, r := range g.asked {
		window += r.Window
	}
	require.Equal(t, int64(3*gputest.BlockBytes), window)
	held.Release()
	into[0].Release()
	blocks, gpus := drainAll(t, ses)
	require.Equal(t, []int{10, 0}, []int{blocks, gpus})
	require.NoError(t, ses.Close(t.Context()))
}

// watched tells when somebody is about to wait for its end.
type watched struct {
	context.Context
	waits chan struct{}
}

func (w *watched) Done() <-chan struct{} {
	select {
	case w.waits <- struct{}{}:
	default:
	}
	return w.Context.Done()
}

// Who waits for room in the window hears that the chain was stopped, or the session closed.
func TestStopEndsTheWaitForTheWindow(t *testing.T) {
	t.Parallel()
	for _, closes := range []bool{false, true} {
		s := lentOnly(t, memstore.New(memstore.Options{}))
		sc, keys := chains(t, s, 2)
		load(t, s, sc, keys)
		r := &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys}}, Window: gputest.BlockBytes}
		ses, err := s.Restore(t.Context(), r)
		require.NoError(t, err)
		var into [1]skep.Chunk
		_, err = ses.Next(t.Context(), into[:])
		require.NoError(t, err)
		crew := storetest.NewCrew(t)
		soon, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		ctx := &watched{soon, make(chan struct{}, 1)}
		crew.Go(func(t testing.TB) {
			var next [1]skep.Chunk
			_, err := ses.Next(ctx, next[:])
			if closes {
				require.ErrorIs(t, err, skep.Closed)
			} else {
				require.NoError(t, err)
				require.ErrorIs(t, next[0].Err, skep.Stopped)
			}
		})
		<-ctx.waits
		if closes {
			require.NoError(t, ses.Close(t.Context()))
		} else {
			require.NoError(t, ses.Stop(t.Context(), 0))
		}
		crew.Wait()
		into[0].Release()
		require.NoError(t, ses.Close(t.Context()))
		require.NoError(t, s.Close())
	}
}

// A request is the caller's again when Restore returned: what it says then is of another restore.
func TestARequestIsUsedAgain(t *testing.T) {
	t.Parallel()
	s := lentOnly(t, memstore.New(memstore.Options{}))
	defer func() { require.NoError(t, s.Close()) }()
	sc, keys := chains(t, s, 2)
	load(t, s, sc, keys)
	first, second := make([]byte, 2*gputest.BlockBytes), make([]byte, 2*gputest.BlockBytes)
	r := &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys, Dest: skep.Destination{Memory: first}}}}
	ses, err := s.Restore(t.Context(), r)
	require.NoError(t, err)
	r.Chains[0].Dest.Memory = second
	drainAll(t, ses)
	require.NoError(t, ses.Close(t.Context()))
	require.False(t, slices.ContainsFunc(second, written), "nobody restored anything there")
	require.True(t, slices.ContainsFunc(first, written))
}

// A restore of blocks that left GPU memory may fail to begin and yet write to the destination: it is not begun again, and
// whoever stops the chain or closes the session hears that the destination is not the caller's.
func TestARestoreThatMayWriteIsNotBegunAgain(t *testing.T) {
	t.Parallel()
	u := &unsure{Store: memstore.New(memstore.Options{})}
	g := &gate{Store: u}
	s := lentOnly(t, g)
	defer func() { require.NoError(t, s.Close()) }()
	sc, keys := chains(t, s, 4)
	load(t, s, sc, keys)
	dest := skep.Destination{Memory: make([]byte, len(keys)*gputest.BlockBytes)}
	ses, err := s.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys, Dest: dest}}})
	require.NoError(t, err)
	require.NoError(t, s.Reclaim(0, 8))
	u.on.Store(true)
	g.asked = nil
	for range 2 {
		var into [4]skep.Chunk
		_, err = ses.Next(t.Context(), into[:])
		require.ErrorIs(t, err, skep.NotReleased)
	}
	require.Equal(t, 1, len(g.asked))
	require.ErrorIs(t, ses.Stop(t.Context(), 0), skep.NotReleased)
	require.ErrorIs(t, ses.Close(t.Context()), skep.NotReleased)
}

// What is said of a chain's priority and deadline holds for its blocks in GPU memory, and for those that left it.
func TestReprioritiseReachesAllBlocks(t *testing.T) {
	t.Parallel()
	g := newGate()
	s := lentOnly(t, g)
	defer func() { require.NoError(t, s.Close()) }()
	sc, keys := chains(t, s, 4)
	load(t, s, sc, keys)
	begin := func() skep.Session {
		ses, err := s.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys}}})
		require.NoError(t, err)
		return ses
	}
	var into [1]skep.Chunk
	next := func(ses skep.Session) error {
		_, err := ses.Next(t.Context(), into[:])
		require.NoError(t, err)
		defer into[0].Release()
		return into[0].Err
	}

	ses := begin()
	require.NoError(t, next(ses))
	require.NoError(t, ses.Reprioritise(t.Context(), 0, 0, time.Unix(1, 0)))
	for range keys[1:] {
		require.ErrorIs(t, next(ses), skep.Deadline)
	}
	require.NoError(t, ses.Close(t.Context()))

	ses = begin()
	later := time.Now().Add(time.Hour)
	require.NoError(t, ses.Reprioritise(t.Context(), 0, 3, later))
	require.NoError(t, s.Reclaim(0, 8))
	g.asked = nil
	require.NoError(t, next(ses))
	require.Equal(t, 1, len(g.asked))
	require.Equal(t, 3, g.asked[0].Chains[0].Priority)
	require.True(t, later.Equal(g.asked[0].Chains[0].Deadline))
	require.NoError(t, ses.Reprioritise(t.Context(), 0, 5, later))
	require.Equal(t, []int{5}, g.priorities, "and the restore behind hears it")
	require.NoError(t, ses.Close(t.Context()))
}
