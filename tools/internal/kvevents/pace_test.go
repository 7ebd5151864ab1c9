package kvevents

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
)

// However often somebody has a reason for a snapshot, after the first four they are a minute apart. Meanwhile what
// happens is told of.
func TestSnapshotsRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New(memstore.Options{})
		s := &scripted{Store: st, lives: make(chan []skep.Event, 10)}
		for range 10 {
			s.lives <- []skep.Event{{Kind: skep.EventGap, Lost: 1}}
		}
		p, err := New(s, Options{Node: "n", Namespaces: []string{"*"}, Batches: 10, Room: LeastRoom})
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			p.follow(ctx)
		}()
		time.Sleep(time.Second)
		synctest.Wait()
		require.EqualValues(t, atOnce, p.count.snapshots.Load())
		require.EqualValues(t, atOnce, p.count.gaps.Load(), "the last one's was heard, too")
		time.Sleep(rest)
		synctest.Wait()
		require.EqualValues(t, atOnce+1, p.count.snapshots.Load())
		time.Sleep(2 * rest)
		synctest.Wait()
		require.EqualValues(t, atOnce+3, p.count.snapshots.Load())
		stop()
		<-ended
		require.NoError(t, st.Close())
	})
}

// A snapshot waits for a subscriber who is behind, until he has got on, and for a tenth of a second at most.
func TestASnapshotBreathes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &Publisher{ring: newRing(4, 1<<20, 1)}
		slow := p.ring.follow()
		for range 3 {
			p.ring.add("t", []byte("x"))
		}
		waits := func(meanwhile func()) time.Duration {
			began, done := time.Now(), make(chan struct{})
			go func() {
				defer close(done)
				p.breathe(t.Context())
			}()
			synctest.Wait()
			meanwhile()
			<-done
			return time.Since(began)
		}
		require.Equal(t, paceStep, waits(func() {}))
		require.Zero(t, waits(func() {
			var into [1]batch
			slow.take(into[:])
		}))
		require.Zero(t, waits(func() {}), "nobody is behind")
		p.ring.add("t", []byte("x"))
		require.Zero(t, waits(slow.leave))
	})
}
