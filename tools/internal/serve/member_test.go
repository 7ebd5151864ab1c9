package serve

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/consensus"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/tools/internal/freeport"
	"github.com/skepkv/skep/tools/internal/member"
	"github.com/skepkv/skep/wire"
)

// founded is a configuration whose directory is the first node's of a cluster.
func founded(t *testing.T, peer string) *Config {
	c := local(t)
	c.Listen, c.RESP, c.HTTP = None, None, None
	n := clustermap.Node{ID: 1, Name: "a", Addr: "unix:" + c.Unix, Peer: peer, Weight: 1}
	m := &clustermap.Map{Epoch: 1, Seed: clustermap.Seed{1}, Group: 16, Nodes: []clustermap.Node{n}}
	got, err := member.Found(t.Context(), c.Dir, m, nil)
	require.NoError(t, err)
	require.Equal(t, m.Nodes, got.Nodes)
	return c
}

// A server whose directory is a node's listens where the node was founded, and its settings may not say otherwise than
// the directory.
func TestSettingsOfANodeThatAgrees(t *testing.T) {
	t.Parallel()
	c := founded(t, "127.0.0.1:7431")
	load := func(flags map[string]string) (*Config, error) {
		flags["dir"] = c.Dir
		return Load("", nil, flags)
	}
	got, err := load(map[string]string{"node": "a"})
	require.NoError(t, err)
	require.Equal(t, c.Unix, got.Unix)
	file := write(t, "map.yaml", mapText)
	for what, flags := range map[string]map[string]string{
		"cluster is " + file:      {"cluster": file, "node": "a"},
		"node is b":               {"node": "b"},
		"peers.listen is 0.0.0.0": {"peers.listen": "0.0.0.0:7431"},
		"peers.listen is x":       {"peers.listen": "x"},
		"peers.cert, peers.key":   {"peers.cert": "x.pem"},
	} {
		_, err := load(flags)
		require.ErrorIs(t, err, skep.Invalid, what)
		require.ErrorContains(t, err, what)
	}
	_, err = Load("", nil, map[string]string{"dir": t.TempDir(), "peers.listen": "127.0.0.1:7431"})
	require.ErrorContains(t, err, "skep cluster init")
	require.NoError(t, os.Rename(filepath.Join(member.Dir(c.Dir), "log"), filepath.Join(t.TempDir(), "log")))
	_, err = load(map[string]string{})
	require.ErrorIs(t, err, skep.Damaged)
	require.ErrorContains(t, err, "skep cluster remove")
	require.NoError(t, os.WriteFile(filepath.Join(member.Dir(c.Dir), "node.json"), []byte(`{"format": 2}`), 0o600))
	_, err = load(map[string]string{})
	require.ErrorIs(t, err, skep.Version)
}

// Two servers agree by mutual TLS: the map has the second one's node for clients of both. A connection without a
// certificate of the nodes' is cut, an address that TLS cannot protect is refused where there is none.
func TestTwoServersAgreeByTLS(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	p.issue("a")
	p.issue("b")
	peers := func(name string) PeersConfig {
		at := func(file string) string { return filepath.Join(p.dir, file) }
		return PeersConfig{Cert: at(name + ".pem"), Key: at(name + ".key"), CA: at("ca.pem")}
	}
	a := founded(t, freeport.Addr(t))
	a.Peers = peers("a")
	require.Empty(t, a.checkPeers())
	start(t, a, Options{Store: memstore.New(memstore.Options{})})
	dial := func(c *Config) *wire.Client {
		st, err := wire.Dial(t.Context(), wire.Options{Addr: "unix:" + c.Unix})
		require.NoError(t, err)
		t.Cleanup(func() { _ = st.Close() })
		return st
	}
	first := dial(a)
	b := local(t)
	b.Listen, b.RESP, b.HTTP, b.Peers = None, None, None, peers("b")
	add := func(n clustermap.Node) (added member.Added, err error) {
		in, err := json.Marshal(n)
		require.NoError(t, err)
		out, err := first.Admin(t.Context(), "cluster add", in)
		if err == nil {
			require.NoError(t, json.Unmarshal(out, &added))
		}
		return added, err
	}
	_, err := member.Join(t.Context(), b.Dir, "b", nil, func(context.Context) (member.Added, error) {
		return add(clustermap.Node{Name: "b", Addr: "unix:" + b.Unix, Peer: freeport.Addr(t), Weight: 1})
	})
	require.NoError(t, err)
	_, err = add(clustermap.Node{Name: "b", Addr: "unix:x", Peer: "127.0.0.1:1", Weight: 1})
	require.ErrorIs(t, err, skep.Conflict)
	start(t, b, Options{Store: memstore.New(memstore.Options{})})
	second := dial(b)
	storetest.Eventually(t, "both have heard of it", func() bool {
		for _, c := range []*wire.Client{first, second} {
			var s consensus.Status
			out, err := c.Admin(t.Context(), "cluster", json.RawMessage("{}"))
			if err != nil || json.Unmarshal(out, &s) != nil || s.Epoch != 2 || s.Leader != 1 ||
				!s.Nodes[0].Reached || !s.Nodes[1].Reached {
				return false
			}
		}
		return true
	})
	text, err := first.ClusterMap(t.Context())
	require.NoError(t, err)
	m, err := clustermap.Parse(text)
	require.NoError(t, err)
	require.Len(t, m.Nodes, 2)
	stranger, err := tls.Dial("tcp", m.Nodes[0].Peer, &tls.Config{InsecureSkipVerify: true})
	if err == nil { // TLS 1.3: the client learns of it when it reads
		_, err = stranger.Read(make([]byte, 1))
		require.NoError(t, stranger.Close())
	}
	require.ErrorContains(t, err, "certificate required")

	plain := founded(t, freeport.Addr(t))
	start(t, plain, Options{Store: memstore.New(memstore.Options{})})
	first = dial(plain)
	_, err = add(clustermap.Node{Name: "far", Addr: "10.0.0.9:7420", Peer: "10.0.0.9:7423", Weight: 1})
	require.ErrorIs(t, err, skep.Invalid)
	require.ErrorContains(t, err, "peers.cert")
}

// A change of several things of which one is refused changes none of them; one that breaks off says how far it came.
func TestAChangeIsMadeAsAWhole(t *testing.T) {
	t.Parallel()
	x := newAgreeing(t)
	var before, after consensus.Status
	storetest.Eventually(t, "it knows the map", func() bool {
		return x.ask(t.Context(), "cluster", struct{}{}, &before) == nil && before.Epoch != 0
	})
	change := member.Change{Name: "a", RESP: "127.0.0.1:7421", Weight: clustermap.MaxWeight + 1}
	require.ErrorIs(t, x.ask(t.Context(), "cluster set", &change, new(member.Changed)), skep.Invalid)
	require.NoError(t, x.ask(t.Context(), "cluster", struct{}{}, &after))
	require.Equal(t, before.Epoch, after.Epoch)

	change.Weight = 2
	why := &skep.Error{Op: "propose", Kind: skep.Unavailable, Field: "leader", RetryAfter: time.Second}
	require.Equal(t, error(why), partly(change.Commands(), 0, why))
	err := partly(change.Commands(), 1, why)
	require.ErrorIs(t, err, skep.Unavailable)
	require.ErrorContains(t, err, "what is done of the change is set address, must be set address, set weight")
	require.Equal(t, time.Second, err.(*skep.Error).RetryAfter)
}

// A server that is no such node says so, and what to be.
func TestAServerThatAgreesWithNobody(t *testing.T) {
	t.Parallel()
	c := local(t)
	c.Listen, c.RESP, c.HTTP = None, None, None
	start(t, c, Options{Store: memstore.New(memstore.Options{})})
	st, err := wire.Dial(t.Context(), wire.Options{Addr: "unix:" + c.Unix})
	require.NoError(t, err)
	defer st.Close()
	_, err = st.Admin(t.Context(), "cluster", json.RawMessage("{}"))
	require.ErrorIs(t, err, skep.Unsupported)
	require.ErrorContains(t, err, "skep cluster init")
}
