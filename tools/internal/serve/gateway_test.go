package serve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/tools/internal/freeport"
	"github.com/skepkv/skep/tools/internal/redistest"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/auth"
)

// ring is the servers of a cluster whose map is a file, each with RESP on a port of its own.
type ring struct {
	*testing.T
	dir, file string
	replicas  int
	configs   []*Config
	again     []chan os.Signal
	nodes     []*running
}

// newRing starts n nodes; change may make their settings others.
func newRing(t *testing.T, n int, change func(c *Config)) *ring { return newRingOf(t, n, 1, change) }

// newRingOf is newRing with so many replicas.
func newRingOf(t *testing.T, n, replicas int, change func(c *Config)) *ring {
	dir, err := os.MkdirTemp("", "skep")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	r := &ring{T: t, dir: dir, file: filepath.Join(dir, "map.yaml"), replicas: replicas}
	r.write(1, n, -1)
	for i := range n {
		c := local(t)
		c.Cluster, c.Node, c.Listen, c.HTTP, c.Unix = r.file, name(i), None, None, filepath.Join(dir, name(i))
		if change != nil {
			change(c)
		}
		require.Empty(t, c.problems())
		again := make(chan os.Signal)
		r.configs, r.again = append(r.configs, c), append(r.again, again)
		r.nodes = append(r.nodes, start(t, c, Options{Again: again}))
	}
	return r
}

func name(i int) string { return string(rune('a' + i)) }

// write writes the map, with node out out.
func (r *ring) write(epoch, n, out int) {
	r.Helper()
	text := fmt.Sprintf("epoch: %d\nseed: 6c0f3a5e9b1d4827a3c5e7f90b2d4861\ngrouped: true\n", epoch)
	if r.replicas > 1 {
		text += fmt.Sprintf("replicas: %d\n", r.replicas)
	}
	text += "nodes:\n"
	for i := range n {
		state := "up"
		if i == out {
			state = "out"
		}
		text += fmt.Sprintf("  - {id: %d, name: %s, addr: %q, state: %s}\n", i+1, name(i), "unix:"+filepath.Join(r.dir, name(i)), state)
	}
	require.NoError(r, os.WriteFile(r.file, []byte(text), 0o600))
}

// reload has the first n nodes read again what has changed.
func (r *ring) reload(n int) {
	for _, again := range r.again[:n] {
		again <- os.Interrupt
		again <- os.Interrupt // the first has been seen to
	}
}

func (r *ring) client(i int, token string) *redistest.Client {
	o := patient(r.nodes[i].at("resp"))
	o.Password = token
	c := redistest.New(o)
	r.Cleanup(func() { c.Close() })
	return c
}

// value is what a key has: small ones are in a record, large ones in pieces that go to several nodes.
func value(i int) []byte {
	return bytes.Repeat([]byte{byte(i), byte(i >> 8), 7}, []int{5, 10_000, 1_000_000}[i%3])
}

// A node's metrics say which of the others answer it.
func TestMetricsSayWhichNodesAnswer(t *testing.T) {
	t.Parallel()
	r := newRing(t, 3, func(c *Config) { c.HTTP = "127.0.0.1:0" })
	says := func(want string) {
		t.Helper()
		storetest.Eventually(t, want, func() bool {
			_, body := get(t, http.DefaultClient, "http://"+r.nodes[0].at("http")+"/metrics", "")
			return strings.Contains(body, want)
		})
	}
	says("skep_node_up{node=\"a\"} 1\nskep_node_up{node=\"b\"} 1\nskep_node_up{node=\"c\"} 1\n")
	require.NoError(t, r.nodes[2].stop())
	says("skep_node_up{node=\"a\"} 1\nskep_node_up{node=\"b\"} 1\nskep_node_up{node=\"c\"} 0\n")
}

// set sets a value: as often as nodes are away, which they seem to be where the machine has much else to do.
func set(t *testing.T, c *redistest.Client, key string, value any, ttl time.Duration) {
	t.Helper()
	storetest.Eventually(t, "set "+key, func() bool {
		err := c.Set(t.Context(), key, value, ttl)
		if err != nil {
			require.ErrorContains(t, err, "unavailable")
		}
		return err == nil
	})
}

// A value that is set at one node is had at every other, as are its expiry and its end.
func TestEveryNodeAnswersRedisForAll(t *testing.T) {
	t.Parallel()
	r := newRing(t, 3, nil)
	a, b, c := r.client(0, ""), r.client(1, ""), r.client(2, "")
	const n = 60
	for i := range n {
		set(t, a, fmt.Sprint("k", i), value(i), 0)
	}
	for i := range n {
		for _, from := range []*redistest.Client{b, c} {
			got, err := from.Get(t.Context(), fmt.Sprint("k", i))
			require.NoError(t, err)
			require.True(t, bytes.Equal(value(i), got), "k%d", i)
		}
	}
	for i := range r.nodes {
		st, err := wire.Dial(t.Context(), wire.Options{Addr: "unix:" + r.configs[i].Unix})
		require.NoError(t, err)
		stats, err := st.Stats(t.Context())
		require.NoError(t, err)
		require.Greater(t, stats.Blocks, int64(n/6), "node %d has a share", i)
		require.NoError(t, st.Close())
	}
	size, err := b.Int(t.Context(), "DBSIZE")
	require.NoError(t, err)
	require.EqualValues(t, n, size)
	seen := map[string]int{}
	for at := "0"; ; {
		reply, err := c.Do(t.Context(), "SCAN", at, "COUNT", 7)
		require.NoError(t, err)
		list := reply.([]any)
		for _, k := range list[1].([]any) {
			seen[string(k.([]byte))]++
		}
		if at = string(list[0].([]byte)); at == "0" {
			break
		}
	}
	require.Len(t, seen, n)

	_, err = b.Int(t.Context(), "EXPIRE", "k1", 1000)
	require.NoError(t, err)
	left, err := c.Int(t.Context(), "TTL", "k1")
	require.NoError(t, err)
	require.InDelta(t, 1000, left, 100)
	set(t, b, "k2", "another", 0)
	got, err := c.Get(t.Context(), "k2")
	require.NoError(t, err)
	require.Equal(t, "another", string(got))
	gone, err := c.Int(t.Context(), "DEL", "k0", "k1", "k2", "none")
	require.NoError(t, err)
	require.EqualValues(t, 3, gone)
	there, err := a.Int(t.Context(), "EXISTS", "k0", "k1", "k2", "k3")
	require.NoError(t, err)
	require.EqualValues(t, 1, there)
}

// A client that gives up while it asks which nodes there are has none of them count as away, for nobody.
func TestWhoGivesUpMarksNoNodeAway(t *testing.T) {
	t.Parallel()
	r := newRing(t, 2, func(c *Config) { c.RESP = None })
	o := othersOf(t, r.configs[1].Unix, nil)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	require.Empty(t, o.gone(ctx))
	require.Empty(t, o.gone(t.Context()))
}

// A node that is gone: what it had is not there, what it should get is refused, and the rest goes on. Once the map
// says that it is out, all is taken again.
func TestRedisWhileANodeIsGone(t *testing.T) {
	t.Parallel()
	r := newRing(t, 3, nil)
	a, b := r.client(0, ""), r.client(1, "")
	const n = 60
	for i := range n {
		set(t, a, fmt.Sprint("k", i), value(0), 0)
	}
	require.NoError(t, r.nodes[2].stop())
	refused, missed := 0, 0
	for i := range n {
		got, err := b.Get(t.Context(), fmt.Sprint("k", i))
		if err != nil {
			require.ErrorIs(t, err, redistest.ErrNil)
			missed++
		} else {
			require.Equal(t, value(0), got)
		}
		o := patient(r.nodes[0].at("resp"))
		o.Retries = 0
		once := redistest.New(o)
		if _, err := once.Do(t.Context(), "SET", fmt.Sprint("n", i), "new"); err != nil {
			refused++
		}
		require.NoError(t, once.Close())
	}
	require.Positive(t, missed)
	require.Less(t, missed, n)
	require.Positive(t, refused)
	require.Less(t, refused, n)

	// What cannot be deleted now is said to be so, and nothing that was deleted comes back with the node.
	_, err := a.Do(t.Context(), "FLUSHDB")
	require.ErrorContains(t, err, "node is c")
	deleted, kept := map[int]bool{}, 0
	for i := range n {
		switch got, err := b.Int(t.Context(), "DEL", fmt.Sprint("k", i)); {
		case err != nil:
			require.ErrorContains(t, err, "node is c")
			kept++
		default:
			require.EqualValues(t, 1, got, "k%d is not on the node that is gone", i)
			deleted[i] = true
		}
	}
	require.Equal(t, missed, kept)
	r.nodes[2] = start(t, r.configs[2], Options{Again: r.again[2]})
	for _, c := range []*redistest.Client{a, b} {
		storetest.Eventually(t, "the node is known to be back", func() bool {
			there, err := c.Int(t.Context(), append([]any{"EXISTS"}, all(n)...)...)
			require.NoError(t, err)
			return there == int64(kept)
		})
	}
	for i := range n {
		_, err := a.Get(t.Context(), fmt.Sprint("k", i))
		require.Equal(t, deleted[i], errors.Is(err, redistest.ErrNil), "k%d", i)
	}
	require.NoError(t, r.nodes[2].stop())

	r.write(2, 3, 2)
	r.reload(2)
	for i := range n {
		set(t, a, fmt.Sprint("m", i), value(i), 0)
		got, err := b.Get(t.Context(), fmt.Sprint("m", i))
		require.NoError(t, err)
		require.True(t, bytes.Equal(value(i), got))
	}
}

// all is the names of n keys.
func all(n int) (keys []any) {
	for i := range n {
		keys = append(keys, fmt.Sprint("k", i))
	}
	return keys
}

// credential is a way in of a tenant, by a token.
func credential(t *testing.T, tenant, token string, rights ...string) CredentialConfig {
	h, err := auth.TokenHash(token)
	require.NoError(t, err)
	return CredentialConfig{Name: token, Tenant: tenant, Rights: rights, TokenSHA256: fmt.Sprintf("%x", h)}
}

// With credentials the nodes show each other a token. A tenant is the same one at every node, and nobody else's values
// are his.
func TestRedisOfACluster(t *testing.T) {
	t.Parallel()
	const mine, yours, nodes = "token-of-tenant-mine", "token-of-tenant-yours", "token-of-the-nodes-00"
	const all = "token-of-mine-for-all"
	token := write(t, "token", nodes+"\n")
	with := func(c *Config) {
		c.Credentials = []CredentialConfig{credential(t, "mine", mine, "read", "write"),
			credential(t, "yours", yours, "read", "write"), credential(t, "mine", all, "read", "write", "admin"),
			credential(t, auth.AnyTenant, nodes, "read", "write")}
	}
	r := newRing(t, 2, func(c *Config) {
		with(c)
		c.Peers.TokenFile = token
	})
	a, b := r.client(0, mine), r.client(1, mine)
	other := r.client(1, yours)
	for i := range 30 {
		set(t, a, fmt.Sprint("k", i), value(i), time.Hour)
		got, err := b.Get(t.Context(), fmt.Sprint("k", i))
		require.NoError(t, err)
		require.True(t, bytes.Equal(value(i), got))
		_, err = other.Get(t.Context(), fmt.Sprint("k", i))
		require.ErrorIs(t, err, redistest.ErrNil)
	}

	// A flush reaches all of the tenant at the other nodes by the right admin, which their token lacks.
	chief := r.client(0, all)
	set(t, chief, "k", "v", 0)
	_, err := chief.Do(t.Context(), "FLUSHDB")
	require.ErrorContains(t, err, "peers.token_file")
	require.ErrorContains(t, err, "the right admin of tenant '*' at node b")

	c := local(t)
	c.Cluster, c.Node = r.file, "a"
	with(c)
	require.ErrorContains(t, problemsOf(c), "peers.token_file")
	c.Redis.Cluster = false
	require.Empty(t, c.problems())
	c.Redis.Cluster, c.Peers.TokenFile = true, write(t, "empty", "\n")
	require.ErrorContains(t, problemsOf(c), "a file with a token in it")
	c.Peers.TokenFile, c.Peers.ServerCA = token, token
	c.TLS.Cert, c.TLS.Key = "x", "y"
	require.ErrorContains(t, problemsOf(c), "peers.server_ca")
}

// The token that the nodes show each other is replaced while they run. Nothing is refused where the other nodes take
// the new one already: neither what is asked next nor, when the old one is taken away, anything after that.
func TestTheNodesTokenIsReplaced(t *testing.T) {
	t.Parallel()
	const mine = "token-of-tenant-mine"
	const first, second, third = "token-of-the-nodes-01", "token-of-the-nodes-02", "token-of-the-nodes-03"
	taken, shown := write(t, "taken", first), write(t, "shown", first)
	r := newRing(t, 2, func(c *Config) {
		c.Credentials = []CredentialConfig{credential(t, "mine", mine, "read", "write"),
			{Name: "nodes", Tenant: auth.AnyTenant, Rights: []string{"read", "write"}, TokenFile: taken},
			credential(t, auth.AnyTenant, second, "read", "write")}
		c.Peers.TokenFile = shown
	})
	a := r.client(0, mine)
	const n = 20
	for i := range n {
		set(t, a, fmt.Sprint("k", i), value(i), 0)
	}
	for _, step := range []map[string]string{{shown: second}, {taken: third}, {shown: third}} {
		for file, token := range step {
			rotate(t, file, token)
		}
		r.reload(2)
		there, err := a.Int(t.Context(), append([]any{"EXISTS"}, all(n)...)...)
		require.NoError(t, err)
		require.EqualValues(t, n, there, "after %v", step)
	}
	require.NotContains(t, r.nodes[0].log.String(), "none of tenant '*'")
	rotate(t, shown, mine)
	r.reload(2)
	require.Contains(t, r.nodes[0].log.String(), "the token in peers.token_file is none of tenant '*'")
}

// What the others' certificates are signed by is read again, and what is as it was stays the same.
func TestWhatTheNodesAreKnownByIsReadAgain(t *testing.T) {
	t.Parallel()
	p, q := newPKI(t), newPKI(t)
	p.issue("node")
	q.issue("node")
	c := local(t)
	c.TLS = TLSConfig{Cert: filepath.Join(p.dir, "node.pem"), Key: filepath.Join(p.dir, "node.key")}
	c.Peers.ServerCA = filepath.Join(p.dir, "ca.pem")
	shows, err := c.shows(nil)
	require.NoError(t, err)
	again, err := c.shows(shows)
	require.NoError(t, err)
	require.Same(t, shows, again)
	before := fingerprint(c)
	rotate(t, c.Peers.ServerCA, read(t, filepath.Join(q.dir, "ca.pem"))+"\n")
	require.NotEqual(t, before, fingerprint(c))
	again, err = c.shows(shows)
	require.NoError(t, err)
	require.NotSame(t, shows, again)
	require.False(t, shows.TLS.RootCAs.Equal(again.TLS.RootCAs))
	rotate(t, c.Peers.ServerCA, "none")
	_, err = c.shows(again)
	require.ErrorIs(t, err, skep.Invalid)
}

// A token that would go to another machine unencrypted is warned of.
func TestATokenOfTheNodesIsNotForTheNetwork(t *testing.T) {
	t.Parallel()
	for addr, is := range map[string]bool{"unix:/run/s": false, "127.0.0.1:7420": false, "[::1]:7420": false, "localhost:1": false,
		"10.0.0.2:7420": true, "node-b:7420": true} {
		require.Equal(t, is, far(addr), addr)
	}
	token := write(t, "token", "token-of-the-nodes-00")
	file := write(t, "map.yaml", "seed: 6c0f3a5e9b1d4827a3c5e7f90b2d4861\nnodes:\n"+
		"  - {id: 1, name: a, addr: 'unix:/nonesuch/a'}\n  - {id: 2, name: b, addr: '192.0.2.1:7420'}\n")
	c := local(t)
	c.Cluster, c.Node, c.Listen, c.HTTP, c.Peers.TokenFile = file, "a", None, None, token
	require.Contains(t, start(t, c, Options{}).log.String(), "unencrypted")
}

func problemsOf(c *Config) error {
	var all []string
	for _, err := range c.problems() {
		all = append(all, err.Error())
	}
	return &skep.Error{Kind: skep.Invalid, Field: strings.Join(all, "\n")}
}

// The nodes speak TLS to each other's binary ports where their own have it. A node that answers for itself alone has
// what was set there.
func TestRedisOfAClusterByTLS(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	p.issue("node")
	at := func(file string) string { return filepath.Join(p.dir, file) }
	file := filepath.Join(p.dir, "map.yaml")
	ports := []string{freeport.Addr(t), freeport.Addr(t)}
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "seed: 6c0f3a5e9b1d4827a3c5e7f90b2d4861\nnodes:\n"+
		"  - {id: 1, name: a, addr: %q}\n  - {id: 2, name: b, addr: %q}\n", ports[0], ports[1]), 0o600))
	var clients []*redistest.Client
	for i := range 2 {
		c := local(t)
		c.Cluster, c.Node, c.Listen, c.HTTP = file, name(i), ports[i], None
		c.TLS = TLSConfig{Cert: at("node.pem"), Key: at("node.key"), Plain: []string{"resp"}}
		c.Peers.ServerCA = at("ca.pem")
		require.Empty(t, c.problems())
		rc := redistest.New(patient(start(t, c, Options{}).at("resp")))
		defer rc.Close()
		clients = append(clients, rc)
	}
	storetest.Eventually(t, "the nodes know each other", func() bool {
		for i := range 20 {
			if clients[0].Set(t.Context(), fmt.Sprint("k", i), value(i), 0) != nil {
				return false
			}
		}
		return true
	})
	for i := range 20 {
		storetest.Eventually(t, "what one node was given the other one has", func() bool {
			got, err := clients[1].Get(t.Context(), fmt.Sprint("k", i))
			return err == nil && bytes.Equal(value(i), got)
		})
	}
}

// Who sets, deletes or has a key expire at one node is no reader at another. A reader's key is one lookup, at the node
// that has it.
func TestWhoSetsAtOneNodeAsksNothingAtAnother(t *testing.T) {
	t.Parallel()
	const n = 12
	r := newRing(t, 3, nil)
	asked := func() (lookups, keys, hits int64) {
		for _, c := range r.configs {
			st, err := wire.Dial(t.Context(), wire.Options{Addr: "unix:" + c.Unix})
			require.NoError(t, err)
			s, err := st.Stats(t.Context())
			require.NoError(t, err)
			require.NoError(t, st.Close())
			lookups, keys, hits = lookups+s.Lookups, keys+s.LookupKeys, hits+s.LookupHits
		}
		return lookups, keys, hits
	}
	rc := r.client(0, "")
	for i := range n {
		key := fmt.Sprint("k", i)
		set(t, rc, key, value(i), 0)
		set(t, rc, key, value(i+1), time.Hour)
	}
	gone, err := rc.Int(t.Context(), "DEL", "k0", "k1", "k2")
	require.NoError(t, err)
	require.EqualValues(t, 3, gone)
	lookups, keys, hits := asked()
	require.Zero(t, lookups+keys+hits)

	for i := range n {
		_, err := rc.Get(t.Context(), fmt.Sprint("k", i))
		require.True(t, err == nil == (i >= 3), "%v", err)
	}
	lookups, keys, hits = asked()
	require.Equal(t, []int64{n, n, n - 3}, []int64{lookups, keys, hits})
}
