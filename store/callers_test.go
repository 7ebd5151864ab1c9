package store

import (
	"bytes"
	"context"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/storetest"
)

// What callers do at the same moment, or ask for too much of.

// An open block that is written in pieces that lie apart counts as what their list takes, too; what closes holes needs
// no more of it.
func TestPiecesOfAnOpenBlockAreCounted(t *testing.T) {
	t.Parallel()
	const size, ranges = 64 << 10, 16
	s, _, _ := openRig(t, func(o *Options) { o.WriterBytes = 4 * size })
	defer func() { require.NoError(t, s.Close()) }()
	ctx := testContext(t)
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	w, err := s.Begin(ctx, &skep.BeginRequest{Scope: sc, Key: keyOf(1), Manifest: skep.Manifest{{Name: skep.PartKV, Size: size}}})
	require.NoError(t, err)
	before := s.ingest.Open.Used()
	data := content(keyOf(1), skep.PartKV, 1, size)
	n := 0
	for ; err == nil && 2*n < size; n++ {
		err = w.Write(ctx, "", int64(2*n), data[2*n:2*n+1])
	}
	requireKind(t, skep.Quota, err)
	n--
	require.GreaterOrEqual(t, s.ingest.Open.Used(), before+int64(n)*ranges)
	for i := range n - 1 {
		require.NoError(t, w.Write(ctx, "", int64(2*i+1), data[2*i+1:2*i+2]))
	}
	require.NoError(t, w.Write(ctx, "", int64(2*n-1), data[2*n-1:]))
	r, err := w.Commit(ctx, skep.AckCommitted)
	require.NoError(t, err)
	require.Equal(t, skep.Committed, r.Outcome)
	requireChain(t, s, sc, []skep.Key{keyOf(1)}, size)
	eventually(t, "all is given back", func() bool { return s.ingest.Open.Used() == 0 })
}

// Puts of the same keys in opposite orders, which no honest chain has, do not wait for each
// other: all begin with the same key, and who waits for that holds none of the others.
func TestPutsInOppositeOrders(t *testing.T) {
	t.Parallel()
	s, _, _ := openRig(t, nil)
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	instance := s.names.Get(sc.Namespace).Instance
	keys := chainKeys(1, 2)
	fp := func(i int) index.Fingerprint { return s.names.Fingerprint(instance, namespaces.Tag{}, keys[i]) }
	if a, b := fp(0), fp(1); bytes.Compare(a[:], b[:]) > 0 {
		slices.Reverse(keys)
	}
	first, _ := s.puts.Flights.Join(fp(0)) // another's put of both is under way, and has come to the second
	require.NotNil(t, first)
	done := make(chan error, 1)
	go func() {
		_, err := s.Put(testContext(t), putRequest(sc, nil, 0, []skep.Key{keys[1], keys[0]}, 100))
		done <- err
	}()
	for range 1000 { // for it to come as far as it can
		runtime.Gosched()
	}
	second, _ := s.puts.Flights.Join(fp(1))
	require.NotNil(t, second, "nobody holds it who waits for the first")
	s.puts.Flights.Leave(fp(1), second)
	s.puts.Flights.Leave(fp(0), first)
	require.NoError(t, <-done)
}

// A lease is renewed while its chain is restored.
func TestRenewBesideRestore(t *testing.T) {
	t.Parallel()
	s, _, _ := openRig(t, nil)
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	keys := chainKeys(1, 3)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 5000))
	found, err := s.Lookup(testContext(t), &skep.LookupRequest{Scope: sc, Keys: keys})
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 200 {
			if _, err := s.Renew(testContext(t), found.Lease.ID, time.Minute); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 50 {
		list, err := fetch(testContext(t), s, skep.Chain{Scope: sc, Keys: keys, Lease: found.Lease.ID})
		require.NoError(t, err)
		require.NoError(t, list[0].err)
	}
	wg.Wait()
}

// A stride so large that it passes 64 bits is refused like any other that does not fit.
func TestStrideThatOverflows(t *testing.T) {
	t.Parallel()
	s, _, _ := openRig(t, nil)
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	keys := chainKeys(1, 3)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 5000))
	for _, stride := range []int64{1 << 61, 1 << 62, 1<<63 - 1} {
		_, err := s.Restore(testContext(t), &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys,
			Dest: skep.Destination{Memory: make([]byte, 16<<10), Stride: stride}}}})
		requireKind(t, skep.Invalid, err)
	}
}

// A delete whose caller's time runs out while others make changes has deleted nothing, now
// and after a restart; done again it is done for good.
func TestDeleteOutOfTime(t *testing.T) {
	t.Parallel()
	s, _, o := openRig(t, nil)
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	keys := chainKeys(1, 3)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 5000))
	s.rows.Changes().Lock()
	ctx, cancel := context.WithCancel(testContext(t))
	done := make(chan error, 1)
	go func() {
		_, err := s.Delete(ctx, sc, keys[1:])
		done <- err
	}()
	for range 1000 {
		runtime.Gosched()
	}
	cancel()
	s.rows.Changes().Unlock()
	requireKind(t, skep.Deadline, <-done)
	requireChain(t, s, sc, keys, 5000)
	n, err := s.Delete(testContext(t), sc, keys[1:])
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.NoError(t, s.Close())
	s, err = Open(context.Background(), o)
	require.NoError(t, err)
	require.Equal(t, 1, prefix(t, s, sc, keys))
	n, _ = requireRight(t, s, sc, keys, 5000)
	require.Equal(t, 1, n)
	require.NoError(t, s.Close())
}

// A namespace of one tenant too many leaves no row, which would keep the store from opening.
func TestOneTenantTooMany(t *testing.T) {
	t.Parallel()
	s, _, _ := openRig(t, nil)
	defer func() { require.NoError(t, s.Close()) }()
	openSpace(t, s, "n", skep.Cache, 1, true)
	for i := len(s.names.Tenants()); i < namespaces.MaxTenants; i++ {
		s.names.TenantNumber(itoa(i))
	}
	_, err := s.OpenNamespace(testContext(t), skep.NamespaceSpec{Tenant: "another", Name: "n", Shape: anySize})
	requireKind(t, skep.Invalid, err)
	rows, err := s.catalog.Namespaces(testContext(t))
	require.NoError(t, err)
	require.Len(t, rows, 1)
}

// A snapshot says when it has told of everything, while its reader waits for what happens next; a stream without one
// has told of it from the beginning.
func TestASnapshotSaysWhenItHasBeenTold(t *testing.T) {
	t.Parallel()
	s, sc, keys := openCopies(t, 1)
	defer func() { require.NoError(t, s.Close()) }()
	ctx := testContext(t)
	events, err := s.Events(ctx, skep.Cursor{}, true)
	require.NoError(t, err)
	defer events.Close()
	told, err := events.Told()
	require.NoError(t, err)
	into := make([]skep.Event, 64)
	for n := 0; n < len(keys); {
		more, err := events.Next(ctx, into)
		require.NoError(t, err)
		n += more
		select {
		case <-told:
			require.Fail(t, "nobody knows yet that there is no more")
		default:
		}
	}
	crew := storetest.NewCrew(t)
	crew.Go(func(t testing.TB) {
		n, err := events.Next(ctx, into)
		require.NoError(t, err)
		require.Equal(t, skep.EventDeleted, into[:n][0].Kind)
	})
	<-told
	_, err = s.Delete(ctx, sc, keys[7:])
	require.NoError(t, err)
	crew.Wait()
	events, err = s.Events(ctx, skep.Cursor{}, false)
	require.NoError(t, err)
	defer events.Close()
	told, err = events.Told()
	require.NoError(t, err)
	<-told
}
