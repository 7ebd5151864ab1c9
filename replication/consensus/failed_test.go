package consensus

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
)

// within has f return within a minute.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		require.Fail(t, "it never returned", what)
	}
}

// others wait until one of the others leads, and agree on a change.
func (w *world) others(t *testing.T, lost int, name string) {
	t.Helper()
	eventually(t, "another one leads", func() bool { id := w.leader(); return id != 0 && id != lost })
	epoch, err := w.nodes[1+lost%3].m.Propose(t.Context(), open1(name))
	require.NoError(t, err)
	require.Equal(t, epoch, w.nodes[1+lost%3].m.Map().Epoch)
}

// A leader whose log cannot be read takes no part any more, the others go on, and Close returns.
func TestALeaderWhoseLogIsDamaged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := three(t)
		defer w.end(t)
		lost := w.awaitLeader(t)
		h := w.nodes[lost]
		last, err := h.m.logs.LastIndex()
		require.NoError(t, err)
		require.NoError(t, h.m.logs.db.Set(entryKey(last), []byte("no entry"), nil))
		<-h.m.Failed() // it reads what it sends to the others
		_, err = h.m.Propose(t.Context(), open1("lost"))
		require.Error(t, err)
		require.Contains(t, h.m.Status(t.Context()).Error, "size of entry")
		w.others(t, lost, "kept")
		within(t, "Close", func() { err = h.m.Close() })
		require.ErrorIs(t, err, skep.Failed)
		require.NoError(t, h.m.logs.db.Close(), "what a member leaves to the end of its process")
		h.m = nil
	})
}

// A leader whose drive fails steps down, also amid changes; the others go on, and Close returns.
func TestALeaderWhoseDriveFails(t *testing.T) {
	t.Parallel()
	if !inChild(t) {
		return
	}
	rounds := 2
	if n := os.Getenv("SKEP_TEST_ROUNDS"); n != "" {
		_, err := fmt.Sscan(n, &rounds)
		require.NoError(t, err)
	}
	for round := range rounds {
		w := newWorld()
		drives := map[int]*failing{}
		for id := 1; id <= 3; id++ {
			o := w.options(id)
			drives[id] = newFailing(o.FS)
			o.FS = drives[id]
			if id == 1 {
				o.Found = mapOf(3)
			}
			m, err := Open(o)
			require.NoError(t, err)
			w.nodes[id].m = m
		}
		w.awaitVoters(t, 1, 2, 3)
		lost := w.awaitLeader(t)
		h := w.nodes[lost]
		ctx, stop := context.WithCancel(t.Context())
		var wait sync.WaitGroup
		var done atomic.Int64
		for id := 1; id <= 3; id++ {
			for i := range 4 {
				wait.Go(func() {
					for n := 0; ctx.Err() == nil; n++ {
						if _, err := w.nodes[id].m.Propose(ctx, open1(fmt.Sprint("s", id, i, n))); err == nil {
							done.Add(1)
						}
					}
				})
			}
		}
		eventually(t, "changes are made", func() bool { return done.Load() > 20 })
		drives[lost].broken.Store(true)
		eventually(t, "it fails", func() bool {
			select {
			case <-h.m.Failed():
				return true
			default:
				return false
			}
		})
		if round%2 == 0 { // else it is closed while the changes come
			stop()
			wait.Wait()
		}
		var err error
		within(t, "Close", func() { err = h.m.Close() })
		require.ErrorIs(t, err, skep.Failed)
		stop()
		wait.Wait()
		h.m = nil
		w.others(t, lost, "kept")
		w.end(t)
	}
}

// Close returns amid changes that are proposed, with every one answered.
func TestCloseAmidProposals(t *testing.T) {
	t.Parallel()
	for range 10 {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			m := w.start(t, 1, mapOf(1))
			eventually(t, "it leads", func() bool { return m.Map() != nil })
			var wait sync.WaitGroup
			began := make(chan struct{}, maxProposals)
			for i := range maxProposals {
				wait.Go(func() {
					for n := 0; ; n++ {
						c := &clustermap.Command{Do: clustermap.SetWeight, Name: "n1", Weight: 1 + (i+n)%1000}
						_, err := m.Propose(t.Context(), c)
						if err != nil {
							return
						}
						select {
						case began <- struct{}{}:
						default:
						}
					}
				})
			}
			for range 10 * maxProposals {
				<-began
			}
			var err error
			within(t, "Close", func() { err = m.Close() })
			require.NoError(t, err)
			wait.Wait()
		})
	}
}
