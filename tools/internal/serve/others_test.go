package serve

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/wire"
)

// mapOf is a map of node 1, which is this one, and of one at each of the sockets.
func mapOf(epoch uint32, sockets ...string) *clustermap.Map {
	m := &clustermap.Map{Epoch: epoch, Seed: clustermap.Seed{1}, Group: 16, Replicas: 1, Grouped: true,
		Nodes: []clustermap.Node{{ID: 1, Name: "a", Addr: "unix:/a", Weight: 1}}}
	for i, path := range sockets {
		m.Nodes = append(m.Nodes, clustermap.Node{ID: uint64(i + 2), Name: name(i + 1), Addr: "unix:" + path, Weight: 1})
	}
	return m
}

// othersOf is the others of a node, of which there is one, at a socket. No node at the socket that broken says is
// dialled.
func othersOf(t *testing.T, socket string, broken *string) *others {
	o := &others{self: 1}
	dial := func(n clustermap.Node) (skep.Store, error) {
		if broken != nil && n.Addr == "unix:"+*broken {
			return nil, skep.Invalidf("dial", "addr", n.Addr, "another")
		}
		c, err := wire.NewClient(wire.Options{Addr: n.Addr})
		if err != nil {
			return nil, err
		}
		return o.met(n, c), nil
	}
	m := mapOf(1, socket)
	there, err := dial(m.Nodes[1])
	require.NoError(t, err)
	whole, err := replication.New(replication.Options{Map: m, Dial: dial,
		Stores: []skep.Store{memstore.New(memstore.Options{}), there}})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, whole.Close())
		require.Empty(t, o.all)
	})
	o.follow(whole)
	return o
}

// A map that is not followed, since one of its nodes cannot be dialled, changes nothing: a node that it has elsewhere
// is asked where it was.
func TestTheOthersOfAMapThatIsNotFollowed(t *testing.T) {
	t.Parallel()
	broken := "/broken"
	o := othersOf(t, "/b", &broken)
	b := o.peers()[2]
	require.Error(t, o.whole.Follow(t.Context(), mapOf(2, "/elsewhere", broken)))
	require.Equal(t, map[uint64]*peer{2: b}, o.peers())
	require.Len(t, o.all, 1)
	_, err := b.Node(t.Context())
	require.ErrorIs(t, err, skep.Unavailable, "it is not closed, and nobody is there")
	broken = ""
	require.NoError(t, o.whole.Follow(t.Context(), mapOf(2, "/elsewhere", "/c")))
	require.Len(t, o.peers(), 2)
	require.NotSame(t, b, o.peers()[2])
}

// A node that is taken out of the map is asked nothing any more, and its client is closed when what was begun with it
// has had its time.
func TestANodeThatIsTakenOutIsForgotten(t *testing.T) {
	t.Parallel()
	o := othersOf(t, "/b", nil)
	b := o.peers()[2]
	require.NoError(t, o.whole.Follow(t.Context(), mapOf(2)))
	require.Empty(t, o.peers())
	require.Empty(t, o.gone(t.Context()))
	at := time.Unix(1, 0)
	for _, step := range []time.Duration{0, partFor - 1} {
		o.part(at.Add(step))
		_, err := b.Node(t.Context())
		require.ErrorIs(t, err, skep.Unavailable)
	}
	o.part(at.Add(partFor))
	_, err := b.Node(t.Context())
	require.ErrorIs(t, err, skep.Closed)
	require.Empty(t, o.all)
}
