package wire

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/epoch"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/server"
	"github.com/skepkv/skep/wire/whose"
)

// A node answers who computed with another map, and has done nothing; a server that is no node is not told of epochs.
func TestEpochsAreCompared(t *testing.T) {
	t.Parallel()
	r := serve(t, "unix", newMemstore(storetest.Config{}), server.Options{ClusterMap: []byte("{}"), Epoch: 7})
	c := r.dial(t, r.options())
	ch := chainOf(t, c, "a", 3)
	calls := map[string]func(ctx context.Context) error{
		"lookup": func(ctx context.Context) error {
			_, err := c.Lookup(ctx, &skep.LookupRequest{Scope: ch.Scope, Keys: ch.Keys})
			return err
		},
		"lookup of runs": func(ctx context.Context) error {
			_, err := c.LookupRuns(ctx, &skep.RunsRequest{Scope: ch.Scope, Runs: [][]skep.Key{ch.Keys}})
			return err
		},
		"want": func(ctx context.Context) error {
			_, err := c.Want(ctx, &skep.WantRequest{Scope: ch.Scope, Keys: ch.Keys})
			return err
		},
		"put": func(ctx context.Context) error {
			_, err := c.Put(ctx, &skep.PutRequest{Scope: ch.Scope, Blocks: []skep.Block{{Key: skep.Key{9}, Parts: []skep.Part{{Bytes: make([]byte, 64)}}}}})
			return err
		},
		"delete": func(ctx context.Context) error { _, err := c.Delete(ctx, ch.Scope, ch.Keys); return err },
		"hint": func(ctx context.Context) error {
			_, err := c.Hint(ctx, ch.Scope, ch.Keys, skep.Hint{Drop: true})
			return err
		},
		"purge": func(ctx context.Context) error { return c.Purge(ctx, skep.Purge{Namespace: ch.Namespace}) },
		"flush": c.Flush,
		"restore": func(ctx context.Context) error {
			s, err := c.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: ch.Scope, Keys: ch.Keys}}})
			if err != nil {
				return err
			}
			defer s.Close(context.Background())
			var into [1]skep.Chunk
			if _, err = s.Next(context.Background(), into[:]); err == nil {
				err = into[0].Err
			}
			return err
		},
	}
	for name, call := range calls {
		require.ErrorIs(t, call(WithEpoch(t.Context(), 6)), skep.StaleMap, name)
		require.ErrorIs(t, call(WithEpoch(t.Context(), 8)), skep.Behind, name)
	}
	got, err := c.Lookup(WithEpoch(t.Context(), 7), &skep.LookupRequest{Scope: ch.Scope, Keys: ch.Keys})
	require.NoError(t, err)
	require.Equal(t, 3, got.Blocks, "nothing was done")
	require.NoError(t, calls["lookup"](t.Context()), "a caller that knows no map")

	require.ErrorIs(t, r.SetCluster([]byte("[]"), 7, 0), skep.Invalid)
	require.NoError(t, r.SetCluster([]byte("[]"), 8, 0))
	require.ErrorIs(t, calls["lookup"](WithEpoch(t.Context(), 7)), skep.StaleMap)
	require.NoError(t, calls["lookup"](WithEpoch(t.Context(), 8)))
	text, err := c.ClusterMap(t.Context())
	require.NoError(t, err)
	require.Equal(t, "[]", string(text))

	r = serve(t, "unix", newMemstore(storetest.Config{}), server.Options{})
	c = r.dial(t, r.options())
	ch = chainOf(t, c, "a", 3)
	require.NoError(t, calls["lookup"](WithEpoch(t.Context(), 6)))
	require.ErrorIs(t, r.SetCluster([]byte("[]"), 8, 0), skep.Invalid)
}

// An epoch where none was agreed on ends the connection, as any header does that says what it must not.
func TestAnEpochThatWasNotAgreedOn(t *testing.T) {
	t.Parallel()
	for _, o := range []server.Options{{}, {ClusterMap: []byte("{}")}} {
		r := serve(t, "unix", newMemstore(storetest.Config{}), o)
		for _, h := range []frames.Header{{Type: frames.TypeHello, Epoch: 1},
			{Type: frames.TypePing, Call: 1, Epoch: 1}} {
			c, err := net.Dial("unix", r.addr[len("unix:"):])
			require.NoError(t, err)
			hi, err := frames.AppendFrame(nil, frames.Header{Type: frames.TypeHello,
				Epoch: h.Epoch * map[bool]uint32{true: 1}[h.Type == frames.TypeHello]}, &frames.Hello{Min: 1, Max: 1, Token: operator})
			require.NoError(t, err)
			if h.Type != frames.TypeHello {
				b, err := frames.AppendFrame(nil, h, nil)
				require.NoError(t, err)
				hi = append(hi, b...)
			}
			_, err = c.Write(hi)
			require.NoError(t, err)
			var b [4096]byte
			n := 0
			for err == nil {
				var k int
				k, err = c.Read(b[n:])
				n += k
			}
			if h.Type == frames.TypeHello {
				require.Zero(t, n, "no welcome")
			} else {
				first, err := frames.ParseHeader(b[:n])
				require.NoError(t, err)
				require.Equal(t, n, frames.HeaderSize+int(first.Body), "a welcome and no answer")
			}
			require.NoError(t, c.Close())
		}
	}
}

// Calls that are for one run of a server are not sent to another one.
func TestCallsForARunOfAServer(t *testing.T) {
	t.Parallel()
	r := serve(t, "unix", newMemstore(storetest.Config{}), server.Options{})
	c := r.dial(t, r.options())
	ch := chainOf(t, c, "a", 3)
	id, err := c.ServerID(t.Context())
	require.NoError(t, err)
	lookup := func(ctx context.Context) (int, error) {
		got, err := c.Lookup(ctx, &skep.LookupRequest{Scope: ch.Scope, Keys: ch.Keys})
		return got.Blocks, err
	}
	n, err := lookup(WithServer(t.Context(), id))
	require.NoError(t, err)
	require.Equal(t, 3, n)
	c.SetStrict()
	other := WithServer(t.Context(), ServerID{1})
	_, err = lookup(other)
	require.ErrorIs(t, err, skep.Unavailable)
	require.ErrorIs(t, err, ErrRestarted)
	_, err = c.Restore(other, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: ch.Scope, Keys: ch.Keys}}})
	require.ErrorIs(t, err, ErrRestarted)
	_, err = c.Events(other, skep.Cursor{}, false)
	require.ErrorIs(t, err, ErrRestarted)
	_, err = c.Delete(other, ch.Scope, ch.Keys)
	require.ErrorIs(t, err, ErrRestarted)
	n, err = lookup(t.Context())
	require.NoError(t, err)
	require.Equal(t, 3, n, "the connection goes on, and nothing was done")
}

// Calls for a node are not sent to another one, which may be asked for the map yet. A server that does not say which node
// it is is believed.
func TestCallsForANodeOfACluster(t *testing.T) {
	t.Parallel()
	for _, silent := range []bool{false, true} {
		o := server.Options{ClusterMap: []byte("{}"), Epoch: 1, Node: "b", Cluster: "07", NodeID: 2}
		if silent {
			o.Cluster, o.NodeID = "", 0
		}
		r := serve(t, "unix", newMemstore(storetest.Config{}), o)
		c := r.dial(t, r.options())
		ch := chainOf(t, c, "a", 3)
		c.SetStrict()
		ctx := WithEpoch(t.Context(), 1)
		calls := map[string]func() error{
			"lookup": func() error {
				_, err := c.Lookup(ctx, &skep.LookupRequest{Scope: ch.Scope, Keys: ch.Keys})
				return err
			},
			"restore": func() error {
				s, err := c.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: ch.Scope, Keys: ch.Keys}}})
				if err == nil {
					err = s.Close(ctx)
				}
				return err
			},
			"events": func() error {
				s, err := c.Events(ctx, skep.Cursor{}, false)
				if err == nil {
					err = s.Close()
				}
				return err
			},
			"delete": func() error { _, err := c.Delete(ctx, ch.Scope, ch.Keys[2:]); return err },
			"run":    func() error { _, err := c.ServerID(ctx); return err },
		}
		told := 0
		for _, other := range []whose.Node{{Cluster: "07", ID: 1, Name: "a"}, {Cluster: "08", ID: 2, Name: "b"}} {
			c.SetNode(other, func() { told++ })
			for name, call := range calls {
				before := told
				err := call()
				if silent {
					require.NoError(t, err, name)
					continue
				}
				require.ErrorIs(t, err, skep.Unavailable, name)
				require.ErrorIs(t, err, whose.ErrAnother, name)
				require.Equal(t, before+1, told, name)
			}
			require.Equal(t, !silent, c.Away())
			_, err := c.ClusterMap(ctx)
			require.NoError(t, err)
		}
		c.SetNode(whose.Node{Cluster: "07", ID: 2, Name: "b"}, nil)
		if !silent {
			got, err := c.Lookup(ctx, &skep.LookupRequest{Scope: ch.Scope, Keys: ch.Keys})
			require.NoError(t, err)
			require.Equal(t, 3, got.Blocks, "nothing was done")
		}
		require.False(t, c.Away())
	}
}

// Who was refused as another node is dialled anew: the address may lead to the right one by now, or the server may have
// become that.
func TestAnAddressIsPutRightAgain(t *testing.T) {
	t.Parallel()
	r := serve(t, "unix", newMemstore(storetest.Config{}), server.Options{ClusterMap: []byte("{}"), Epoch: 1, Node: "a",
		Cluster: "07", NodeID: 2})
	c := r.dial(t, r.options())
	ch := chainOf(t, c, "a", 3)
	c.SetStrict()
	c.SetNode(whose.Node{Cluster: "07", ID: 1, Name: "a"}, func() {})
	lookup := func() error {
		_, err := c.Lookup(t.Context(), &skep.LookupRequest{Scope: ch.Scope, Keys: ch.Keys})
		return err
	}
	require.ErrorIs(t, lookup(), whose.ErrAnother)
	require.NoError(t, r.SetCluster([]byte("{}"), 2, 1))
	require.Eventually(t, func() bool { return lookup() == nil }, time.Minute, 10*time.Millisecond)
	require.False(t, c.Away())
}

// heardBy notes which map the deletions at a Store are by, as their contexts say.
type heardBy struct {
	skep.Store
	by chan [2]uint32 // by which, and whether calls that the Store makes for it would say one
}

func (h heardBy) note(ctx context.Context) {
	goes, _ := epoch.Of(ctx)
	h.by <- [2]uint32{epoch.By(ctx), goes}
}

func (h heardBy) Delete(ctx context.Context, sc skep.Scope, keys []skep.Key) (int, error) {
	h.note(ctx)
	return h.Store.Delete(ctx, sc, keys)
}

func (h heardBy) Purge(ctx context.Context, p skep.Purge) error {
	h.note(ctx)
	return h.Store.Purge(ctx, p)
}

func (h heardBy) DeleteNamespace(ctx context.Context, id skep.NamespaceID) error {
	h.note(ctx)
	return h.Store.DeleteNamespace(ctx, id)
}

// A Store is told which map a deletion is by: the node may have another one when the request has come whole.
func TestAStoreHearsWhichMapADeletionIsBy(t *testing.T) {
	t.Parallel()
	st := heardBy{newMemstore(storetest.Config{}), make(chan [2]uint32, 1)}
	r := serve(t, "unix", st, server.Options{ClusterMap: []byte("{}"), Epoch: 7})
	c := r.dial(t, r.options())
	ch := chainOf(t, c, "a", 3)
	for _, ctx := range []context.Context{WithEpoch(t.Context(), 7), t.Context()} {
		want, _ := epoch.Of(ctx)
		_, err := c.Delete(ctx, ch.Scope, ch.Keys)
		require.NoError(t, err)
		require.Equal(t, [2]uint32{want, 0}, <-st.by)
		require.NoError(t, c.Purge(ctx, skep.Purge{Namespace: ch.Namespace}))
		require.Equal(t, [2]uint32{want, 0}, <-st.by)
	}
	require.NoError(t, c.DeleteNamespace(WithEpoch(t.Context(), 7), ch.Namespace))
	require.Equal(t, [2]uint32{7, 0}, <-st.by)
}
