package serve

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"testing"

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

// agreeing is a first node that serves, and a configuration that others are made of.
type agreeing struct {
	*testing.T
	a *wire.Client
}

func newAgreeing(t *testing.T) *agreeing {
	t.Helper()
	c := founded(t, freeport.Addr(t))
	start(t, c, Options{})
	x := &agreeing{T: t}
	x.a = x.dial(c)
	return x
}

func (x *agreeing) dial(c *Config) *wire.Client {
	x.Helper()
	st, err := wire.Dial(x.Context(), wire.Options{Addr: "unix:" + c.Unix, Strict: true})
	require.NoError(x, err)
	x.Cleanup(func() { _ = st.Close() })
	return st
}

// join adds a node of a name, in the directory of a configuration.
func (x *agreeing) join(c *Config, name string) error {
	c.Listen, c.RESP, c.HTTP = None, None, None
	n := clustermap.Node{Name: name, Addr: "unix:" + c.Unix, Peer: freeport.Addr(x.T), Weight: 1}
	_, err := member.Join(x.Context(), c.Dir, name, nil, func(ctx context.Context) (added member.Added, err error) {
		return added, x.ask(ctx, "cluster add", n, &added)
	})
	return err
}

func (x *agreeing) ask(ctx context.Context, what string, in, out any) error {
	b, err := json.Marshal(in)
	if err == nil {
		b, err = x.a.Admin(ctx, what, b)
	}
	if err == nil {
		err = json.Unmarshal(b, out)
	}
	return err
}

func (x *agreeing) remove(name string) {
	x.Helper()
	require.NoError(x, x.ask(x.Context(), "cluster remove", clustermap.Node{Name: name}, new(member.Removed)))
}

// serves waits until a node serves.
func (x *agreeing) serves(st *wire.Client) {
	x.Helper()
	storetest.Eventually(x.T, "it serves", func() bool {
		_, err := st.Namespaces(x.Context())
		return err == nil
	})
}

// A node that was removed does not come back over what it has stored, of which the others may have deleted something
// since: by its own name or another's, with its own directory, or as another node's drives. Wiped, it is added.
func TestWhatARemovedNodeHasStoredDoesNotComeBack(t *testing.T) {
	t.Parallel()
	x := newAgreeing(t)
	b := local(t)
	require.NoError(t, x.join(b, "b"))
	r := start(t, b, Options{})
	st := x.dial(b)
	x.serves(st)
	ns, err := skep.OpenNamespace(t.Context(), st, skep.NamespaceSpec{Tenant: "default", Name: "n",
		Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 4}})
	require.NoError(t, err)
	_, err = ns.Put(t.Context(), []skep.Key{skep.KeyOf([]byte("k"))}, 0, []byte("deleted"))
	require.NoError(t, err)
	require.NoError(t, r.stop())
	r = start(t, b, Options{})
	x.serves(x.dial(b)) // over its own store it does
	require.NoError(t, r.stop())
	x.remove("b")

	require.ErrorIs(t, x.join(b, "b"), skep.Conflict, "it is node b's")
	require.NoError(t, os.RemoveAll(member.Dir(b.Dir)))
	for _, name := range []string{"b", "c"} {
		err := x.join(b, name)
		require.ErrorIs(t, err, skep.Conflict, name)
		require.ErrorContains(t, err, "one without a store")
	}
}

// The drives of one node do not serve as another one's.
func TestTheDrivesOfAnotherNodeAreNotServed(t *testing.T) {
	t.Parallel()
	x := newAgreeing(t)
	was, is := local(t), local(t)
	require.NoError(t, x.join(was, "b"))
	r := start(t, was, Options{})
	st := x.dial(was)
	x.serves(st)
	_, err := st.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "default", Name: "n",
		Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 4}})
	require.NoError(t, err)
	require.NoError(t, r.stop())
	require.NoError(t, x.join(is, "c"))
	// Between its being added and its first start, and later.
	for _, says := range []string{"node c was added and has stored nothing yet", "which node c has had"} {
		for _, part := range []string{"catalog", "device-0", "device-1"} {
			require.NoError(t, os.RemoveAll(filepath.Join(is.Dir, part)))
			require.NoError(t, os.Rename(filepath.Join(was.Dir, part), filepath.Join(is.Dir, part)))
		}
		err := Run(t.Context(), is, Options{Log: &safeLog{}})
		require.ErrorIs(t, err, skep.Conflict)
		require.ErrorContains(t, err, says)
		for _, part := range []string{"catalog", "device-0", "device-1"} {
			require.NoError(t, os.Rename(filepath.Join(is.Dir, part), filepath.Join(was.Dir, part)))
		}
		r := start(t, is, Options{})
		x.serves(x.dial(is))
		require.NoError(t, r.stop())
	}
}

// A node that does not know yet what it missed lives, and is not ready: /readyz says so until the others have told it.
func TestANodeIsReadyWhenItServes(t *testing.T) {
	t.Parallel()
	a := founded(t, freeport.Addr(t))
	a.HTTP = "127.0.0.1:0"
	r := start(t, a, Options{})
	x := &agreeing{T: t}
	x.a = x.dial(a)
	b := local(t)
	require.NoError(t, x.join(b, "b"))
	b.HTTP = "127.0.0.1:0"
	require.NoError(t, r.stop())
	r = start(t, b, Options{})
	ready := func(r *running) int {
		code, _ := get(t, http.DefaultClient, "http://"+r.at("http")+"/readyz", "")
		return code
	}
	code, text := get(t, http.DefaultClient, "http://"+r.at("http")+"/readyz", "")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Contains(t, text, "what it missed")
	code, _ = get(t, http.DefaultClient, "http://"+r.at("http")+"/healthz", "")
	require.Equal(t, http.StatusOK, code)
	first := start(t, a, Options{})
	storetest.Eventually(t, "both are ready", func() bool {
		return ready(r) == http.StatusOK && ready(first) == http.StatusOK
	})
}

// A node whose last map was put back from a time when it was alone does not take itself to be alone: what it has agreed
// to says who the others are, and it serves nothing before most of them have answered.
func TestAnOldMapDoesNotMakeANodeAlone(t *testing.T) {
	t.Parallel()
	a := founded(t, freeport.Addr(t))
	serve := func(c *Config) *running { return start(t, c, Options{Store: memstore.New(memstore.Options{})}) }
	running := []*running{serve(a)}
	_, old, err := member.Read(a.Dir)
	require.NoError(t, err)
	x := &agreeing{T: t}
	x.a = x.dial(a)
	for _, name := range []string{"b", "c"} {
		c := local(t)
		require.NoError(t, x.join(c, name))
		running = append(running, serve(c))
	}
	storetest.Eventually(t, "all vote", func() bool {
		var s consensus.Status
		if x.ask(t.Context(), "cluster", struct{}{}, &s) != nil {
			return false
		}
		votes := 0
		for _, n := range s.Nodes {
			if n.Voter && n.Epoch == 3 {
				votes++
			}
		}
		return votes == 3
	})
	for _, r := range running {
		require.NoError(t, r.stop())
	}
	require.NoError(t, member.WriteMap(a.Dir, old))
	serve(a)
	_, err = x.dial(a).Namespaces(t.Context())
	require.ErrorIs(t, err, skep.Behind)
}
