package store

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
	"github.com/skepkv/skep/store/storetest"
)

// What a cleaned group's log says is promised in one intent, of all namespaces and purges together. Whatever becomes
// of one of them until there is room, the devices are told of the others as it was said.
func TestAnIntentIsOfSeveralNamespaces(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		meanwhile func(t *testing.T, s *Store, other skep.Scope)
		left      []string // namespaces
	}{
		{"nothing happens", func(*testing.T, *Store, skep.Scope) {}, []string{"kept", "other"}},
		{"another namespace is deleted", func(t *testing.T, s *Store, other skep.Scope) {
			require.NoError(t, s.DeleteNamespace(testContext(t), other.Namespace))
		}, []string{"kept"}},
		{"another namespace is purged", func(t *testing.T, s *Store, other skep.Scope) {
			require.NoError(t, s.Purge(testContext(t), skep.Purge{Namespace: other.Namespace}))
		}, []string{"kept", "other"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx := testContext(t)
			s, r, o := openRig(t, func(o *Options) { o.CapacityBytes, o.SpaceTimeout = 2<<20, 50*time.Millisecond })
			// The first group's log names all, and has nothing else that is needed.
			kept, other := openSpace(t, s, "kept", skep.Durable, 2, true), openSpace(t, s, "other", skep.Durable, 2, true)
			require.NoError(t, s.DeleteNamespace(ctx, openSpace(t, s, "deleted", skep.Durable, 2, true).Namespace))
			salted := kept
			salted.Salt = "pepper"
			require.NoError(t, s.Purge(ctx, skep.Purge{Salt: &salted}))
			gone, keys := chainKeys(1, 3), chainKeys(2, 3)
			requireOutcome(t, skep.Committed, putRun(t, s, kept, gone, 5000))
			s.space.SealOpen(space.User)
			requireOutcome(t, skep.Committed, putRun(t, s, kept, keys, 5000))
			requireOutcome(t, skep.Committed, putRun(t, s, salted, keys, 5000))
			s.space.SealOpen(space.User)
			eventually(t, "the spares are made", func() bool { return !s.space.Sparing() })
			taken := takeAll(t, s)
			second := s.space.Numbers(0)[1]
			s.claimed(t, second) // there is no other to clean

			r.each(func(_ int, d *device.Fault) { d.Hold(device.Write) }) // its segments are not free yet
			release := sync.OnceFunc(func() { r.each(func(_ int, d *device.Fault) { d.Release() }) })
			defer release()
			_, err := s.Delete(ctx, kept, gone)
			require.NoError(t, err)
			eventually(t, "the first group is cleaned", func() bool { return len(s.space.Numbers(0)) < 2 })
			tt.meanwhile(t, s, other)
			release()
			eventually(t, "all is on the devices", s.logs.Intents.None)
			s.unwant(taken)
			require.NoError(t, s.Close())

			o.CatalogFS = vfs.NewMem() // the catalog is lost
			_, err = Rebuild(ctx, o, false, nil)
			require.NoError(t, err)
			s, err = Open(ctx, o)
			require.NoError(t, err)
			defer func() { require.NoError(t, s.Close()) }()
			list, err := s.Namespaces(ctx)
			require.NoError(t, err)
			var left []string
			for _, ns := range list {
				left = append(left, ns.Name)
			}
			require.ElementsMatch(t, tt.left, left)
			requireChain(t, s, kept, keys, 5000)
			requireChain(t, s, salted, keys, 5000)
		})
	}
}

// entriesOf are log entries of list.
func entriesOf(t testing.TB, list ...any) []byte {
	var w segment.LogWriter
	for _, e := range list {
		var err error
		switch e := e.(type) {
		case segment.Namespace:
			err = w.Namespace(&e)
		case segment.Purge:
			err = w.Purge(&e)
		case segment.Tombstone:
			err = w.Tombstone(&e)
		}
		require.NoError(t, err)
	}
	return w.Bytes()
}

// An intent of a namespace is pending. From the moment that the namespace is gone the catalog refuses every commit:
// the deletion holds all the same, those who follow events hear of it, and the devices are told.
func TestADeletionIsToldThoughTheNextCommitIsRefused(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	var refused func() bool
	var armed atomic.Bool
	s, _, _ := openRig(t, func(o *Options) {
		o.refuseCommits = func() error {
			if armed.Load() && refused() {
				return &skep.Error{Op: "commit", Kind: skep.Full, Field: "catalog filesystem"}
			}
			return nil
		}
	})
	sc := openSpace(t, s, "gone", skep.Durable, 1, true)
	ns := s.names.Get(sc.Namespace)
	refused = func() bool { return s.names.Get(sc.Namespace) == nil }
	events, err := s.Events(ctx, skep.Cursor{}, false)
	require.NoError(t, err)
	defer events.Close()
	b := s.catalog.NewBatch()
	var w segment.LogWriter
	require.NoError(t, w.Namespace(ns.Entry(s.root.Next())))
	pending := s.logs.Intents.Put(b, &w)
	require.NoError(t, s.catalog.Commit(ctx, b, true))
	s.logs.Intents.Add(pending)

	armed.Store(true)
	require.NoError(t, s.DeleteNamespace(ctx, sc.Namespace))
	into := make([]skep.Event, 64)
	for purged := false; !purged; {
		n, err := events.Next(ctx, into)
		require.NoError(t, err)
		for _, e := range into[:n] {
			purged = purged || e.Kind == skep.EventPurged && e.Namespace == sc.Namespace
		}
	}
	armed.Store(false)
	require.True(t, saidDeleted(t, s, ns), "no log says that the namespace is deleted")
	require.NoError(t, s.Close())
}

// saidDeleted says whether a log has it that a namespace is deleted.
func saidDeleted(t testing.TB, s *Store, ns *namespaces.Namespace) (said bool) {
	for _, g := range s.space.Groups() {
		require.NoError(t, s.space.ScanGroupLogs(testContext(t), g, func(_ *segment.Append, e segment.Entry) error {
			if e.Kind != segment.KindNamespace {
				return nil
			}
			v, err := segment.DecodeNamespace(e.Body)
			said = said || v.Deleted && v.Instance == ns.Instance
			return err
		}))
	}
	return said
}

// Who deletes a namespace waits no longer than its context for those who may write the namespace's own entry again.
// The devices are told when these have ended, and not before.
func TestADeletionIsToldAfterThoseWhoMayNameIt(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, _, _ := openRig(t, nil)
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "gone", skep.Durable, 1, true)
	ns := s.names.Get(sc.Namespace)
	end := s.logs.Entering.Begin()
	ended, cancel := context.WithCancel(ctx)
	crew := storetest.NewCrew(t)
	crew.Go(func(t testing.TB) { require.NoError(t, s.DeleteNamespace(ended, sc.Namespace)) })
	eventually(t, "it is gone", func() bool { return s.names.Get(sc.Namespace) == nil })
	cancel()
	crew.Wait()
	s.logs.Retry()
	require.False(t, saidDeleted(t, s, ns))
	require.False(t, s.logs.Intents.None())
	end()
	eventually(t, "the devices are told", func() bool { s.logs.Retry(); return s.logs.Intents.None() })
	require.True(t, saidDeleted(t, s, ns))
}

// A scrub waits for room to write an entry of a log again, and meanwhile a namespace is deleted. Cleaning, which is to
// make the room, goes on.
func TestAScrubADeletionAndCleaningDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, _, _ := openRig(t, func(o *Options) { o.OpTimeout = hangs / 12 })
	defer func() { require.NoError(t, s.Close()) }()
	gone, kept := openSpace(t, s, "gone", skep.Durable, 1, true), openSpace(t, s, "kept", skep.Durable, 1, true)
	s.space.SealOpen(space.User)
	s.space.SealOpen(space.Kept)
	eventually(t, "the store is at rest", func() bool { return !s.space.Sparing() })
	s.dropSpares()
	s.space.Opening <- struct{}{} // there is no room before cleaning has made some

	asked := &askedContext{Context: ctx, asked: make(chan struct{})}
	crew := storetest.NewCrew(t)
	var needed bool
	var err error
	crew.Go(func(testing.TB) {
		needed, err = s.mends.LogAgain(asked, entriesOf(t, *s.names.Get(kept.Namespace).Entry(s.root.Next())), false)
	})
	<-asked.asked
	crew.Go(func(t testing.TB) { require.NoError(t, s.DeleteNamespace(ctx, gone.Namespace)) })
	eventually(t, "the namespace is gone", func() bool { return s.names.Get(gone.Namespace) == nil })
	s.logs.Retry() // what the cleaner does
	s.space.Opening.Give()
	crew.Wait()
	require.NoError(t, err)
	require.True(t, needed)
}

// askedContext says when it was first asked for its end, as by who begins to wait.
type askedContext struct {
	context.Context
	once  sync.Once
	asked chan struct{}
}

func (c *askedContext) Done() <-chan struct{} {
	c.once.Do(func() { close(c.asked) })
	return c.Context.Done()
}
