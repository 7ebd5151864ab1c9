package member

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/consensus"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/tools/internal/freeport"
)

// trio is three nodes that agree, by name, and where their stores are to be.
type trio struct {
	t     *testing.T
	dirs  map[string]string
	peers map[string]string
}

// open has a node take part.
func (c *trio) open(name string) *consensus.Member {
	c.t.Helper()
	id, m, err := Read(c.dirs[name])
	require.NoError(c.t, err)
	l, err := net.Listen("tcp", c.peers[name])
	require.NoError(c.t, err)
	node, err := consensus.Open(consensus.Options{ID: id.ID, Dir: Dir(c.dirs[name]), Listener: l, Known: m})
	require.NoError(c.t, err)
	return node
}

// newTrio makes the nodes a, b and c, which all vote and have been stopped, but for those that are to run on.
func newTrio(t *testing.T) *trio {
	t.Helper()
	c := &trio{t, map[string]string{}, map[string]string{}}
	var running []*consensus.Member
	for i, name := range []string{"a", "b", "c"} {
		c.dirs[name], c.peers[name] = filepath.Join(t.TempDir(), name), freeport.Addr(t)
		n := clustermap.Node{Name: name, Addr: "unix:/" + name, Peer: c.peers[name], Weight: 1}
		var err error
		if i == 0 {
			n.ID = 1
			m := &clustermap.Map{Epoch: 1, Seed: clustermap.Seed{1}, Group: 16, Nodes: []clustermap.Node{n}}
			_, err = Found(t.Context(), c.dirs[name], m, nil)
		} else {
			_, err = Join(t.Context(), c.dirs[name], name, nil, func(ctx context.Context) (Added, error) {
				_, err := running[0].Propose(ctx, &clustermap.Command{Do: clustermap.AddNode, Node: &n})
				return Added{running[0].Map(), running[0].Cluster()}, err
			})
		}
		require.NoError(t, err)
		running = append(running, c.open(name))
	}
	storetest.Eventually(t, "all vote", func() bool {
		for _, n := range running {
			s := n.Status(t.Context())
			if len(s.Nodes) != 3 || !s.Nodes[0].Voter || !s.Nodes[1].Voter || !s.Nodes[2].Voter {
				return false
			}
		}
		return true
	})
	for i, name := range []string{"a", "b", "c"} {
		require.NoError(t, WriteMap(c.dirs[name], running[i].Map())) // as a server does
	}
	for _, n := range running {
		require.NoError(t, n.Close())
	}
	return c
}

var errNobody = errors.New("nobody is there")

// recovery is one of a node, without others.
func (c *trio) recovery(name string, lost ...string) Recovery {
	return Recovery{Dir: c.dirs[name], Lost: lost,
		Dial: func(context.Context, string) (net.Conn, error) { return nil, errNobody }}
}

// A node goes on without the others. Cut off before it has kept its map for the next start, it is asked again, and has
// it.
func TestRecover(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	kept := filepath.Join(Dir(c.dirs["a"]), "map.json")
	old, err := os.ReadFile(kept)
	require.NoError(t, err)
	dry := c.recovery("a", "b", "c")
	dry.DryRun = true
	would, err := Recover(t.Context(), dry)
	require.NoError(t, err)
	require.EqualValues(t, 3, would.From)
	same, err := os.ReadFile(kept)
	require.NoError(t, err)
	require.Equal(t, old, same)
	before, err := Look(c.dirs["a"], nil)
	require.NoError(t, err)
	require.Equal(t, []uint64{1, 2, 3}, before.Voters)

	got, err := Recover(t.Context(), c.recovery("a", "b", "c"))
	require.NoError(t, err)
	require.Equal(t, would, got)
	require.NoError(t, os.WriteFile(kept, old, 0o600))
	again, err := Recover(t.Context(), c.recovery("a", "c", "b"))
	require.NoError(t, err)
	require.Equal(t, got, again)
	id, m, err := Read(c.dirs["a"])
	require.NoError(t, err)
	require.Equal(t, got.Map, m)
	require.Equal(t, before.Identity, *id)
	after, err := Look(c.dirs["a"], nil)
	require.NoError(t, err)
	require.NotEqual(t, before.Cluster, after.Cluster)
	node := c.open("a")
	defer func() { require.NoError(t, node.Close()) }()
	require.True(t, node.Sole())
	_, err = Look(c.dirs["a"], nil)
	require.ErrorIs(t, err, skep.Locked, "it runs")
}

// A directory of no node, one that is in use, and nodes that are not lost, are refused, and nothing is changed.
func TestRecoverRefuses(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	_, err := Recover(t.Context(), Recovery{Dir: t.TempDir(), Lost: []string{"b"}})
	require.ErrorIs(t, err, skep.NotFound)
	was, err := Look(c.dirs["a"], nil)
	require.NoError(t, err)
	release, err := store.Hold(c.dirs["a"], false)
	require.NoError(t, err)
	_, err = Recover(t.Context(), c.recovery("a", "b", "c"))
	require.ErrorIs(t, err, skep.Locked)
	require.NoError(t, release())
	for kind, lost := range map[skep.Kind][]string{
		skep.Invalid: {"a", "b"}, skep.NotFound: {"b", "x"}, skep.Conflict: {"c"},
	} {
		_, err = Recover(t.Context(), c.recovery("a", lost...))
		require.ErrorIs(t, err, kind, "%v", lost)
	}
	r := c.recovery("a", "b", "c")
	r.Dial = func(_ context.Context, addr string) (net.Conn, error) {
		if addr != c.peers["c"] {
			return nil, errNobody
		}
		here, there := net.Pipe()
		return here, there.Close()
	}
	_, err = Recover(t.Context(), r)
	require.ErrorIs(t, err, skep.Conflict)
	require.ErrorContains(t, err, "lost node is c")
	now, err := Look(c.dirs["a"], nil)
	require.NoError(t, err)
	require.Equal(t, was, now)
}

// Another node that is left comes to the recovered cluster, with an empty log. Cut off before it has kept the map, it
// is asked again. It stays away from a cluster that lacks it, or what it knows.
func TestRejoin(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	was, err := Look(c.dirs["b"], nil)
	require.NoError(t, err)
	made, err := Recover(t.Context(), c.recovery("a", "b", "c"))
	require.NoError(t, err)
	with := *made.Map
	with.Nodes = append(with.Nodes, was.Map.Nodes[1])
	node := c.open("a")
	cluster := node.Cluster()
	require.NoError(t, node.Close())
	rejoin := func(dry bool, answer Rejoined) (Recovered, error) {
		return Rejoin(t.Context(), c.dirs["b"], nil, dry, func(_ context.Context, q AskRejoin) (Rejoined, error) {
			if q.ID != 2 || q.Name != "b" {
				return answer, fmt.Errorf("it says that it is %+v", q)
			}
			return answer, nil
		})
	}
	for kind, bad := range map[skep.Kind]Rejoined{
		skep.Invalid:  {},
		skep.NotFound: {made.Map, cluster, 3, was.Term},
		skep.Conflict: {&with, cluster, 2, was.Term},
	} {
		_, err := rejoin(false, bad)
		require.ErrorIs(t, err, kind)
	}
	_, later := rejoin(true, Rejoined{&with, cluster, 9, was.Term - 1})
	require.ErrorIs(t, later, skep.Conflict, "what it knows was changed in a later term")
	good := Rejoined{&with, cluster, 3, was.Term}
	would, err := rejoin(true, good)
	require.NoError(t, err)
	now, err := Look(c.dirs["b"], nil)
	require.NoError(t, err)
	require.Equal(t, was, now, "nothing was changed")

	kept := filepath.Join(Dir(c.dirs["b"]), "map.json")
	old, err := os.ReadFile(kept)
	require.NoError(t, err)
	got, err := rejoin(false, good)
	require.NoError(t, err)
	require.Equal(t, would, got)
	require.NoError(t, os.WriteFile(kept, old, 0o600))
	_, err = rejoin(false, Rejoined{Map: &with, Cluster: cluster}) // of its own cluster
	require.NoError(t, err)
	now, err = Look(c.dirs["b"], nil)
	require.NoError(t, err)
	require.Equal(t, &Stopped{was.Identity, consensus.Kept{Cluster: cluster, Map: &with}}, now)
	require.NoDirExists(t, filepath.Join(Dir(c.dirs["b"]), "snapshots"), "of the cluster that it was of")
	second := c.open("b")
	require.Nil(t, second.Map(), "it waits for a leader")
	require.Equal(t, cluster, second.Cluster())
	require.NoError(t, second.Close())
}
