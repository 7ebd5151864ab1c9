package storetest

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// testList: counts and listings are of one namespace, and what is there all along is told of.
func testList(t *testing.T, open Open) {
	e := start(t, open, Config{})
	l := e.st
	if _, err := l.CountBlocks(e.ctx, 1<<30); errors.Is(err, skep.Unsupported) {
		t.Skip(err)
	}
	space := func(e *env) skep.NamespaceInfo {
		spec := specOf(free)
		spec.Chained = false
		return e.open(spec)
	}
	put := func(e *env, ns skep.NamespaceInfo, from, to int, b string) {
		r := &skep.PutRequest{Scope: skep.Scope{Namespace: ns.ID}}
		for i := from; i < to; i++ {
			r.Blocks = append(r.Blocks, skep.Block{Key: skep.KeyOf([]byte{byte(i), byte(i >> 8)}), Parts: []skep.Part{{Bytes: []byte(b)}}})
		}
		res, err := e.st.Put(e.ctx, r)
		require.NoError(e, err)
		for i := range res {
			require.NotEqual(e, skep.Declined, res[i].Outcome)
		}
	}
	// all goes through a listing n keys at a time, and calls between after each step.
	all := func(e *env, ns skep.NamespaceInfo, n int, between func()) map[skep.Key]int {
		seen := map[skep.Key]int{}
		for at := uint64(0); ; {
			keys, next, err := l.ListKeys(e.ctx, ns.ID, at, n)
			require.NoError(e, err)
			for _, k := range keys {
				seen[k]++
			}
			if next == 0 {
				return seen
			}
			at = next
			between()
		}
	}
	count := func(e *env, ns skep.NamespaceInfo) int64 {
		n, err := l.CountBlocks(e.ctx, ns.ID)
		require.NoError(e, err)
		return n
	}
	e.run("of one namespace, empty or not, and none of another's", func(e *env) {
		a, b, none := space(e), space(e), space(e)
		put(e, a, 0, 300, "a")
		put(e, b, 100, 150, "b")
		require.Empty(e, all(e, none, 10, func() {}))
		require.Equal(e, []int64{300, 50, 0}, []int64{count(e, a), count(e, b), count(e, none)})
		for _, n := range []int{1, 7, 1000} {
			seen := all(e, a, n, func() {})
			require.Len(e, seen, 300)
			for _, times := range seen {
				require.Equal(e, 1, times)
			}
			require.Len(e, all(e, b, n, func() {}), 50)
		}
	})
	e.run("while blocks come, go and are replaced", func(e *env) {
		ns := space(e)
		put(e, ns, 0, 200, "stays")
		put(e, ns, 200, 300, "goes")
		i := 0
		seen := all(e, ns, 9, func() {
			put(e, ns, i, i+1, "replaced, and longer than before")
			_, err := e.st.Delete(e.ctx, skep.Scope{Namespace: ns.ID}, []skep.Key{skep.KeyOf([]byte{byte(200 + i), byte((200 + i) >> 8)})})
			require.NoError(e, err)
			put(e, ns, 1000+i, 1001+i, "new")
			i++
		})
		for k := range 200 {
			require.GreaterOrEqual(e, seen[skep.KeyOf([]byte{byte(k), byte(k >> 8)})], 1, "%d", k)
		}
		require.EqualValues(e, 300, count(e, ns))
	})
	e.run("after a purge", func(e *env) {
		ns := space(e)
		put(e, ns, 0, 20, "v")
		require.NoError(e, e.st.Purge(e.ctx, skep.Purge{Namespace: ns.ID}))
		require.Empty(e, all(e, ns, 10, func() {}))
		require.Zero(e, count(e, ns))
	})
	e.run("salted blocks are counted and not told of", func(e *env) {
		ns := space(e)
		put(e, ns, 0, 2, "v")
		_, err := e.st.Put(e.ctx, &skep.PutRequest{Scope: skep.Scope{Namespace: ns.ID, Salt: "s"}, Blocks: []skep.Block{{Key: skep.KeyOf([]byte("x")), Parts: []skep.Part{{Bytes: []byte("v")}}}}})
		require.NoError(e, err)
		require.EqualValues(e, 3, count(e, ns))
		require.Len(e, all(e, ns, 10, func() {}), 2)
	})
	e.run("a place of another store begins anew", func(e *env) {
		ns := space(e)
		put(e, ns, 0, 3, "v")
		_, _, err := l.ListKeys(e.ctx, ns.ID, 1<<63+12345, 10)
		require.NoError(e, err)
	})
	e.run("whole blocks, with the first of their group", func(e *env) {
		lister, ok := skep.As[interface {
			ListBlocks(ctx context.Context, space skep.NamespaceID, group int, from uint64, n int) ([]skep.StoredBlock, uint64, error)
		}](l)
		if !ok {
			e.Skip("lists keys only")
		}
		c := e.chain(e.space(free), 23)
		c.put(0, 23)
		for _, group := range []int{1, 4, 100} {
			seen := map[skep.Key]skep.StoredBlock{}
			for at := uint64(0); ; {
				blocks, next, err := lister.ListBlocks(e.ctx, c.n.ID, group, at, 5)
				require.NoError(e, err)
				for _, b := range blocks {
					seen[b.Key] = b
				}
				if at = next; at == 0 {
					break
				}
			}
			require.Len(e, seen, 23)
			for i, k := range c.keys {
				b := seen[k]
				require.Equal(e, i, b.Depth)
				require.Equal(e, c.keys[i-i%group], b.First, "block %d in groups of %d", i, group)
				require.Equal(e, i == 0, b.Parent == nil)
				if i > 0 {
					require.Equal(e, c.keys[i-1], *b.Parent)
				}
				require.NotEmpty(e, b.Manifest)
			}
		}
		_, _, err := lister.ListBlocks(e.ctx, c.n.ID, 0, 0, 1)
		require.Equal(e, skep.Invalid, skep.KindOf(err))
	})
	e.run("bad input", func(e *env) {
		_, err := l.CountBlocks(e.ctx, 1<<30)
		require.Equal(e, skep.NotFound, skep.KindOf(err))
		_, _, err = l.ListKeys(e.ctx, 1<<30, 0, 1)
		require.Equal(e, skep.NotFound, skep.KindOf(err))
		_, _, err = l.ListKeys(e.ctx, space(e).ID, 0, 0)
		require.Equal(e, skep.Invalid, skep.KindOf(err))
	})
}
