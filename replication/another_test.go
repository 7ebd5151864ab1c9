package replication

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/whose"
)

// notTaken puts a chain, and requires that nothing of it reached the two first nodes' Stores, which had so many blocks.
func (f *fleet) notTaken(r *rig, keys []skep.Key, had []int64) {
	f.Helper()
	for i, x := range r.put(keys, 0, len(keys)) {
		if x.Outcome == skep.Declined {
			require.Equal(f, skep.Unavailable, x.Reason, "block %d", i)
		}
	}
	require.Equal(f, had[:2], f.blocks()[:2])
}

// Two nodes exchange their addresses, as pods do when each gets what was the other's. Who dials one of them and is
// welcomed by the other counts it as away, and puts nothing there. Once there is a map with the new addresses, which
// even those tell that are at the wrong ones, all is found.
func TestTwoNodesExchangeTheirAddresses(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 3} {
		f := newFleet(t)
		m := f.mapOf(1, n)
		o := patient(host(0))
		o.DialContext = f.hosts(m)
		var stops []func()
		for range n {
			stops = append(stops, f.start(m))
		}
		r := &rig{T: t}
		if n == 2 { // nobody else tells the map
			var err error
			r.Store, err = Open(m, o)
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, r.Close()) })
		} else {
			r = f.connect(o)
		}
		r.openNamespace(skep.Cache)
		keys := chainOf(1, 60)
		r.put(keys, 0, 60)
		r.whole(keys)
		had := f.blocks()

		stops[0]()
		stops[1]()
		f.servers[0], _ = f.serveAt(1, f.stores[0], f.as(m, 0))
		f.servers[1], _ = f.serveAt(0, f.stores[1], f.as(m, 1))
		storetest.Eventually(t, "it is noticed that another node is there", func() bool {
			_, err := r.now.Load().owner[0].st.Stats(t.Context())
			return errors.Is(err, whose.ErrAnother)
		})
		_, err := r.now.Load().owner[0].st.Stats(t.Context())
		require.ErrorIs(t, err, skep.Unavailable)
		require.ErrorContains(t, err, "node b (2) of cluster "+m.Seed.String())
		require.ErrorContains(t, err, "node a (1) of cluster "+m.Seed.String())
		f.notTaken(r, chainOf(2, 60), had)

		next := f.mapOf(2, n)
		_ = f.hosts(next)
		next.Nodes[0].Addr, next.Nodes[1].Addr = host(1), host(0)
		for i := range n {
			f.tell(next, i)
		}
		storetest.Eventually(t, "the new map is known", func() bool {
			r.find(keys, skep.NoLease)
			return r.Map().Epoch == 2
		})
		r.whole(keys)
		r.put(chainOf(3, 60), 0, 60)
		r.whole(chainOf(3, 60))
	}
}

// The address of a node is given to another cluster's node, of the same name and id. It gets nothing, and its map is not
// followed, newer or not. When the node is back at its address all goes on.
func TestAnotherClusterHasTheAddress(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.mapOf(1, 3)
	o := patient(host(0))
	o.DialContext = f.hosts(m)
	stop := f.start(m)
	f.start(m)
	f.start(m)
	r := f.connect(o)
	r.openNamespace(skep.Cache)
	keys := chainOf(1, 60)
	r.put(keys, 0, 60)
	r.whole(keys)

	stop()
	other := f.mapOf(9, 3)
	other.Seed[3]++
	st := memstore.New(memstore.Options{})
	_, err := st.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: shape, Chained: true})
	require.NoError(t, err)
	_, stop = f.serveAt(0, st, f.as(other, 0))
	storetest.Eventually(t, "it is noticed that another node is there", func() bool {
		_, err := r.now.Load().owner[0].st.Stats(t.Context())
		return errors.Is(err, whose.ErrAnother)
	})
	declined := 0
	for _, x := range r.put(chainOf(2, 60), 0, 60) {
		if x.Outcome == skep.Declined {
			declined++
		}
	}
	require.Positive(t, declined, "some are the first node's")
	require.Less(t, r.find(keys, skep.NoLease).Blocks, 60)
	there, err := st.Stats(t.Context())
	require.NoError(t, err)
	require.Zero(t, there.Blocks)
	require.EqualValues(t, 1, r.Map().Epoch)

	stop()
	require.NoError(t, st.Close())
	f.serveAt(0, f.stores[0], f.as(m, 0))
	storetest.Eventually(t, "the node is back", func() bool { return r.find(keys, skep.NoLease).Blocks == 60 })
	r.whole(keys)
}
