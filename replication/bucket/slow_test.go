package bucket

import (
	"context"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
)

// begin begins a restore of chains and gives the session.
func (n *node) begin(chains ...[]skep.Key) skep.Session {
	n.t.Helper()
	r := &skep.RestoreRequest{}
	for _, keys := range chains {
		r.Chains = append(r.Chains, skep.Chain{Scope: n.scope(), Keys: keys})
	}
	ses, err := n.Restore(n.t.Context(), r)
	require.NoError(n.t, err)
	return ses
}

// drain takes all of a session, and says how many blocks came; what is wrong comes as an error.
func drain(ctx context.Context, ses skep.Session) (blocks int, err error) {
	err = skep.Drain(ctx, ses, func(c *skep.Chunk) error {
		if c.Err == nil {
			blocks++
		}
		return nil
	})
	return blocks, err
}

// hold holds Gets back until goOn is closed, but for those of one object.
func (s *shelf) hold(but string, goOn chan struct{}) {
	s.set(func() {
		s.before = func(call, name string) {
			if call == "get" && name != but {
				<-goOn
			}
		}
	})
}

// Two restores of one prefix fetch it once, also where the second one begins when half of it is there.
func TestTwoRestoresFetchOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newShelf()
		n := newNode(t, options(b), 0)
		keys := chain(1, 32)
		n.put(keys)
		n.look()
		n.evict()
		goOn := make(chan struct{})
		b.hold(n.all()[0].name+blocksDir+n.all()[0].blocks[keys[0]].of.id, goOn)
		first := n.begin(keys)
		synctest.Wait()
		require.Len(t, n.keys(), 8)
		second := n.begin(keys)
		synctest.Wait()
		close(goOn)
		for _, ses := range []skep.Session{first, second} {
			blocks, err := drain(t.Context(), ses)
			require.NoError(t, err)
			require.Equal(t, 32, blocks)
			require.NoError(t, ses.Close(t.Context()))
		}
		require.EqualValues(t, 4, n.Usage().LoadedCalls)
	})
}

// Restores that wait for a bucket that hangs wait for one call's time together, and those that come then for none.
func TestABucketThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newShelf()
		n, keys := one(t, b)
		n.evict()
		b.set(func() { b.hangs = true })
		start := time.Now()
		ended := make(chan error, 5)
		for range cap(ended) {
			ses := n.begin(keys)
			go func() {
				blocks, err := drain(context.Background(), ses)
				if blocks > 0 {
					err = fmt.Errorf("%d blocks came", blocks)
				}
				_ = ses.Close(context.Background())
				ended <- err
			}()
		}
		for range cap(ended) {
			require.NoError(t, <-ended)
		}
		require.False(t, time.Now().After(start.Add(n.o.Timeout)))
		require.ErrorContains(t, n.Usage().Err, n.o.Timeout.String())
		start = time.Now()
		require.Zero(t, n.load(keys))
		require.Equal(t, start, time.Now())
	})
}

// Close ends what is being fetched; it does not wait for it.
func TestCloseEndsAFetch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newShelf()
		_, keys := one(t, b)
		s, err := New(memstore.New(memstore.Options{}), options(b))
		require.NoError(t, err)
		late := &node{Store: s, t: t, own: s.Store.(*memstore.Store)}
		_ = late.turn()
		late.open("n")
		b.set(func() { b.hangs = true })
		ses := late.begin(keys)
		synctest.Wait()
		start := time.Now()
		require.NoError(t, s.Close())
		require.Equal(t, start, time.Now())
		require.NoError(t, ses.Close(t.Context()))
	})
}

// Close of a session says that memory is not released yet where its time is over, and can be called again.
func TestASessionIsClosedAgain(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n, keys := one(t, b)
	n.evict()
	goOn := make(chan struct{})
	b.hold("", goOn)
	ses := n.begin(keys)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, ses.Close(ended), skep.NotReleased)
	close(goOn)
	require.NoError(t, ses.Close(t.Context()))
}

// A chain that is stopped before its turn is not fetched.
func TestAStoppedChainIsNotFetched(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n := newNode(t, options(b), 0)
	first, second := chain(1, 8), chain(2, 8)
	n.put(first)
	n.look()
	n.put(second)
	n.look()
	n.evict()
	goOn := make(chan struct{})
	b.hold("", goOn)
	ses := n.begin(first, second)
	require.NoError(t, ses.Stop(t.Context(), 1))
	require.ErrorIs(t, ses.Stop(t.Context(), 2), skep.Invalid)
	close(goOn)
	blocks, err := drain(t.Context(), ses)
	require.NoError(t, err)
	require.Equal(t, 8, blocks)
	_, err = ses.Next(t.Context(), make([]skep.Chunk, 1))
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, ses.Close(t.Context()))
	require.EqualValues(t, 8, n.Usage().LoadedBlocks)
}

// A listing takes as long as it takes, while it goes on.
func TestALongListing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newShelf()
		n := newNode(t, options(b), 0)
		count := 0
		b.set(func() {
			for i := range 3 * namesOfCall {
				b.objects[fmt.Sprintf("x%06d", i)] = nil
			}
			b.listed = func(string) {
				if count++; count%namesOfCall == 0 {
					<-time.After(n.o.Timeout * 2 / 3)
				}
			}
		})
		n.look()
		require.Equal(t, 3*namesOfCall, count)
	})
}

// A bucket that takes no more writes is read all the same.
func TestABucketThatTakesNoWrites(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n, keys := one(t, b)
	n.evict()
	n.put(chain(2, 8))
	b.set(func() { b.before = func(call, _ string) { b.set(func() { b.away = call == "put" }) } })
	require.ErrorIs(t, n.turn(), skep.Unavailable)
	require.ErrorIs(t, n.Usage().Err, skep.Unavailable)
	require.Equal(t, 8, n.find(keys))
	require.Equal(t, 8, n.load(keys))
	require.Error(t, n.Usage().Err, "it takes none yet")
	b.set(func() { b.before, b.away = nil, false })
	n.look()
	require.NoError(t, n.Usage().Err)
}
