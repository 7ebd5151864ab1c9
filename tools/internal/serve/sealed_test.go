package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/consensus"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/tools/internal/freeport"
	"github.com/skepkv/skep/tools/internal/member"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/auth"
)

// trio are three servers that agree on a map by which each has every block, of which two are enough.
type trio struct {
	*testing.T
	configs []*Config
	again   []chan os.Signal
	nodes   []*running
}

// newTrio starts them; keyed says which of them have a key of the tenant default.
func newTrio(t *testing.T, keyed ...bool) *trio {
	x := &trio{T: t}
	for i, has := range keyed {
		c := local(t)
		c.Listen, c.RESP = None, None
		x.configs, x.again = append(x.configs, c), append(x.again, make(chan os.Signal))
		if has {
			x.giveKey(i)
		}
	}
	first := &clustermap.Map{Epoch: 1, Seed: clustermap.Seed{1}, Group: 4, Replicas: 3, Acks: 2,
		Nodes: []clustermap.Node{{ID: 1, Name: "a", Addr: "unix:" + x.configs[0].Unix, Peer: freeport.Addr(t), Weight: 1}}}
	_, err := member.Found(t.Context(), x.configs[0].Dir, first, nil)
	require.NoError(t, err)
	x.start(0)
	by := x.dial(0)
	for i := 1; i < len(x.configs); i++ {
		c := x.configs[i]
		_, err := member.Join(t.Context(), c.Dir, name(i), nil, func(context.Context) (added member.Added, err error) {
			in, err := json.Marshal(clustermap.Node{Name: name(i), Addr: "unix:" + c.Unix, Peer: freeport.Addr(t), Weight: 1})
			require.NoError(t, err)
			out, err := by.Admin(t.Context(), "cluster add", in)
			if err == nil {
				err = json.Unmarshal(out, &added)
			}
			return added, err
		})
		require.NoError(t, err)
		x.start(i)
	}
	return x
}

// giveKey puts a key into a node's settings: its next start or reload takes it.
func (x *trio) giveKey(i int) {
	file := write(x.T, "keys", strings.Repeat("4b5a", 16)+"\n")
	x.configs[i].Tenants = map[string]TenantConfig{auth.DefaultTenant: {EncryptionKeyFile: file}}
}

// start starts a node, and waits until it serves.
func (x *trio) start(i int) {
	x.Helper()
	c := x.configs[i]
	r := start(x.T, c, Options{Again: x.again[i], Reload: func() (*Config, error) { return c, nil }})
	if i < len(x.nodes) {
		x.nodes[i] = r
	} else {
		x.nodes = append(x.nodes, r)
	}
	st := x.dial(i)
	storetest.Eventually(x.T, name(i)+" serves", func() bool {
		_, err := st.Namespaces(x.Context())
		return err == nil
	})
}

func (x *trio) dial(i int) *wire.Client {
	st, err := wire.Dial(x.Context(), wire.Options{Addr: "unix:" + x.configs[i].Unix})
	require.NoError(x.T, err)
	x.Cleanup(func() { _ = st.Close() })
	return st
}

// status is how the cluster stands.
func (x *trio) status() (s consensus.Status) {
	out, err := x.dial(0).Admin(x.Context(), "cluster", json.RawMessage("{}"))
	require.NoError(x.T, err)
	require.NoError(x.T, json.Unmarshal(out, &s))
	return s
}

// open is a namespace of the tenant default, as a client of the cluster has it.
func (x *trio) open() *skep.Namespace {
	st, err := replication.Connect(wire.Options{Addr: "unix:" + x.configs[0].Unix})
	require.NoError(x.T, err)
	x.Cleanup(func() { _ = st.Close() })
	ns, err := skep.OpenNamespace(x.Context(), st, skep.NamespaceSpec{Tenant: auth.DefaultTenant, Name: "n", Chained: true,
		Class: skep.Durable, Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 4}})
	require.NoError(x.T, err)
	return ns
}

// plain is what is put under a key: a text that is looked for on the drives.
func plain(key string) []byte { return bytes.Repeat([]byte("the text of "+key+"; "), 500) }

// put puts the first block of a chain.
func put(t *testing.T, ns *skep.Namespace, key string) skep.PutResult {
	t.Helper()
	res, err := ns.Put(t.Context(), []skep.Key{skep.KeyOf([]byte(key))}, 0, plain(key))
	require.Len(t, res, 1, "%v", err)
	return res[0]
}

// inTheClear says which nodes' directories have the text that was put under a key.
func (x *trio) inTheClear(key string) (out []string) {
	x.Helper()
	for i, c := range x.configs {
		require.NoError(x.T, x.dial(i).Flush(x.Context()))
		found := false
		require.NoError(x.T, filepath.WalkDir(c.Dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() || found {
				return nil // the catalog's files come and go
			}
			b, err := os.ReadFile(path)
			found = err == nil && bytes.Contains(b, []byte("the text of "+key+"; "))
			return nil
		}))
		if found {
			out = append(out, name(i))
		}
	}
	return out
}

// blocks is how many a node has.
func (x *trio) blocks(i int) int64 {
	st, err := x.dial(i).Stats(x.Context())
	require.NoError(x.T, err)
	return st.Blocks
}

// reload has a node read its settings again.
func (x *trio) reload(i int) {
	x.again[i] <- os.Interrupt
	x.again[i] <- os.Interrupt // the first one has been seen to
}

// Of three nodes one has no key of a tenant that the others encrypt. It takes no copy, from clients or by a repair, and
// says why; the others' copies count, and the operator is told.
func TestANodeWithoutAKeyTakesNoCopyInTheClear(t *testing.T) {
	t.Parallel()
	x := newTrio(t, true, true, false)
	ns := x.open()
	storetest.Eventually(t, "the nodes with a key take the block", func() bool {
		return put(t, ns, "secret").Outcome != skep.Declined
	})
	require.Empty(t, x.inTheClear("secret"))
	require.EqualValues(t, 1, x.blocks(0))
	require.Zero(t, x.blocks(2))

	alone, err := skep.OpenNamespace(t.Context(), x.dial(2), ns.NamespaceSpec)
	require.NoError(t, err)
	_, err = alone.Put(t.Context(), []skep.Key{skep.KeyOf([]byte("there"))}, 0, plain("there"))
	require.ErrorIs(t, err, skep.Denied)
	require.ErrorContains(t, err, "encryption key of tenant default")
	require.ErrorContains(t, err, "encryption_key_file")
	_, err = alone.Store().Begin(t.Context(), &skep.BeginRequest{Scope: alone.Scope(), Key: skep.KeyOf([]byte("there")),
		Manifest: skep.Manifest{{Name: skep.PartKV, Size: 5}}})
	require.ErrorIs(t, err, skep.Denied)
	w, err := ns.Store().Begin(t.Context(), &skep.BeginRequest{Scope: ns.Scope(), Key: skep.KeyOf([]byte("parts")),
		Manifest: skep.Manifest{{Name: skep.PartKV, Size: 5}}})
	require.NoError(t, err, "the nodes that have a key are enough")
	require.NoError(t, w.Write(t.Context(), skep.PartKV, 0, []byte("parts")))
	res, err := w.Commit(t.Context(), skep.AckCommitted)
	require.NoError(t, err)
	require.Equal(t, skep.Committed, res.Outcome)
	want, err := alone.Want(t.Context(), []skep.Key{skep.KeyOf([]byte("there"))}, 1)
	require.NoError(t, err)
	require.Equal(t, []skep.Want{{Outcome: skep.Declined, Reason: skep.Denied}}, want)

	zero := x.dial(0)
	out, err := zero.Admin(t.Context(), "cluster repair", json.RawMessage(`{"begin": true}`))
	require.NoError(t, err)
	var asked member.Repairs
	require.NoError(t, json.Unmarshal(out, &asked))
	storetest.Eventually(t, "a repair has looked at it", func() bool {
		s, err := askRepair(t.Context(), zero)
		return err == nil && s.Last != nil && s.Last.Number >= asked.Next && s.Last.Declined == 2
	})
	require.Zero(t, x.blocks(2))

	require.Equal(t, []string{auth.DefaultTenant}, x.status().Encrypted)
	storetest.Eventually(t, "the status names the node", func() bool { return len(x.status().Nodes[2].LacksKeys) == 1 })
	require.Empty(t, x.status().Nodes[0].LacksKeys)
	told := func() int { return strings.Count(x.nodes[2].log.String(), "other nodes encrypt") }
	storetest.Eventually(t, "its log tells", func() bool { return told() > 0 })
	require.Equal(t, 1, told(), "once")
	_, text := get(t, http.DefaultClient, "http://"+x.nodes[2].at("http")+"/metrics", "")
	require.Contains(t, text, `skep_encryption_key_missing{tenant="default"} 1`)
}

// A key is given to one node after another. What was put before the first one had it stays as it is; from then on
// nothing is put in the clear, and while too few nodes have it puts are declined. A node that starts meanwhile knows.
func TestAKeyIsRolledOut(t *testing.T) {
	t.Parallel()
	x := newTrio(t, false, false, false)
	ns := x.open()
	require.Equal(t, skep.Committed, put(t, ns, "before").Outcome)
	require.Equal(t, []string{"a", "b", "c"}, x.inTheClear("before"))
	var keys []string
	next := func(want skep.Outcome) {
		t.Helper()
		keys = append(keys, fmt.Sprintf("block %d", len(keys)))
		require.Equal(t, want, put(t, ns, keys[len(keys)-1]).Outcome)
	}
	takes := func(i int) {
		t.Helper()
		alone, err := skep.OpenNamespace(t.Context(), x.dial(i), ns.NamespaceSpec)
		require.NoError(t, err)
		keys = append(keys, fmt.Sprintf("block %d", len(keys)))
		k := keys[len(keys)-1]
		storetest.Eventually(t, name(i)+" takes what is encrypted", func() bool {
			_, err := alone.Put(t.Context(), []skep.Key{skep.KeyOf([]byte(k))}, 0, plain(k))
			return err == nil
		})
	}
	x.giveKey(0)
	x.reload(0)
	takes(0)
	next(skep.Declined)
	require.NoError(t, x.nodes[2].stop())
	x.start(2)
	next(skep.Declined)
	x.giveKey(1)
	x.reload(1)
	takes(1)
	next(skep.Committed)
	require.NoError(t, x.nodes[2].stop())
	x.giveKey(2)
	x.start(2)
	takes(2)
	next(skep.Committed)
	for _, k := range keys {
		require.Empty(t, x.inTheClear(k), k)
	}
	require.Equal(t, []string{"a", "b", "c"}, x.inTheClear("before"))
	require.Empty(t, x.status().Nodes[2].LacksKeys)
}

// That a tenant is encrypted ends when an operator says so, and not while a node has a key for it.
func TestEncryptionEndsWhereAnOperatorSaysSo(t *testing.T) {
	t.Parallel()
	x := newTrio(t, true, false, false)
	storetest.Eventually(t, "it is agreed on", func() bool { return len(x.status().Encrypted) == 1 })
	end := func() error {
		in, err := json.Marshal(member.Change{Unencrypted: auth.DefaultTenant})
		require.NoError(t, err)
		_, err = x.dial(0).Admin(t.Context(), "cluster set", in)
		return err
	}
	err := end()
	require.ErrorIs(t, err, skep.Conflict)
	require.ErrorContains(t, err, "node a")
	require.NoError(t, x.nodes[0].stop())
	x.configs[0].Tenants = nil
	x.start(0)
	require.Equal(t, []string{auth.DefaultTenant}, x.status().Encrypted, "a start without the key unsets nothing")
	ns := x.open()
	require.Equal(t, skep.Declined, put(t, ns, "k").Outcome)
	require.NoError(t, end())
	require.Empty(t, x.status().Encrypted)
	storetest.Eventually(t, "all have heard", func() bool { return put(t, ns, "k").Outcome != skep.Declined })
	require.ErrorIs(t, end(), skep.NotFound)
}
