package store

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// stored gives what a store says of every key: "" for a miss.
func storedAll(t testing.TB, s *Store, scopes []skep.Scope, keys []skep.Key) map[string]string {
	t.Helper()
	out := map[string]string{}
	for i, sc := range scopes {
		for _, k := range keys {
			list, err := fetch(testContext(t), s, skep.Chain{Scope: sc, Keys: []skep.Key{k}})
			require.NoError(t, err)
			if list[0].err == nil {
				out[itoa(i)+k.Short()] = string(list[0].data)
			}
		}
	}
	return out
}

// testLog shows warnings where a test fails.
func testLog(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// A store that has lost its catalog has the same blocks as before: what was put, put
// again, deleted, purged and moved by the cleaner.
func TestRebuildRestoresEverything(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		devices int
		copies  int
	}{{"one device", 1, 1}, {"three devices", 3, 1}, {"two copies", 3, 2}} {
		t.Run(c.name, func(t *testing.T) {
			ctx := testContext(t)
			rng := newRand(testSeed(t))
			o := small(tempRoot(t, "store"))
			o.DeviceCount, o.CapacityBytes = c.devices, int64(c.devices)<<20
			o.CacheBytes, o.SpaceTimeout = -1, 200*time.Millisecond
			o.Logger = testLog(t)
			s, err := Open(ctx, o)
			require.NoError(t, err)
			var scopes []skep.Scope
			for _, name := range []string{"durable", "cache"} {
				class := skep.Durable
				if name == "cache" {
					class = skep.Cache
				}
				sc := openSpace(t, s, name, class, c.copies, false)
				salted := sc
				salted.Salt = "salt"
				scopes = append(scopes, sc, salted)
			}
			gone := openSpace(t, s, "gone", skep.Cache, 1, true)
			putRun(t, s, gone, chainKeys(7, 5), 3000)
			require.NoError(t, s.Purge(ctx, skep.Purge{Namespace: gone.Namespace}))
			keys := chainKeys(1, 40)
			step := map[string]int{"": -1}
			model := map[string]string{} // what was put last, by scope and key
			for i := range 1500 {
				at, n := rng.IntN(len(scopes)), rng.IntN(len(keys))
				if at < 2 {
					n /= 4 // fewer of what is never evicted
				}
				k, sc := keys[n], scopes[at]
				switch rng.IntN(20) {
				case 0, 1:
					_, err := s.Delete(ctx, sc, []skep.Key{k})
					require.NoError(t, err)
					delete(model, itoa(at)+k.Short())
				case 2:
					if rng.IntN(10) == 0 && sc.Salt != "" {
						require.NoError(t, s.Purge(ctx, skep.Purge{Salt: &sc}))
						for _, k := range keys {
							delete(model, itoa(at)+k.Short())
						}
					}
				default:
					data := content(k, "x", i, 100+rng.IntN(9000))
					step[string(data)] = i
					res, err := s.Put(ctx, &skep.PutRequest{Scope: sc, Blocks: []skep.Block{{Key: k, Parts: []skep.Part{{Bytes: data}}}}})
					require.NoError(t, err)
					if res[0].Outcome == skep.Committed {
						model[itoa(at)+k.Short()] = string(data)
					}
				}
			}
			before := storedAll(t, s, scopes, keys)
			compare := func(now map[string]string) {
				t.Helper()
				for k, v := range now { // what was evicted may come back; as it was
					require.True(t, model[k] == v, "block %s: step %d, must be step %d", k, step[v], step[model[k]])
				}
				for k, v := range model {
					if k[0] < '2' && v != "" {
						require.Contains(t, now, k)
					}
				}
			}
			compare(before)
			st, err := s.Stats(ctx)
			require.NoError(t, err)
			t.Logf("%d blocks, %d moved bytes, %d evicted", st.Blocks, st.MovedBytes, st.Evicted)
			require.NotEmpty(t, before)
			require.NoError(t, s.Close())

			dry, err := Rebuild(ctx, o, true, nil)
			require.NoError(t, err)
			require.NoError(t, os.RemoveAll(filepath.Join(o.Dir, "catalog")))
			rep, err := Rebuild(ctx, o, false, nil)
			require.NoError(t, err)
			require.Equal(t, dry.Blocks, rep.Blocks)
			require.Empty(t, rep.Faults)
			require.Zero(t, rep.Unnamed)
			t.Logf("%+v", rep)
			for range 2 { // as it is, and once it was opened and closed
				s, err = Open(ctx, o)
				require.NoError(t, err)
				after := storedAll(t, s, scopes, keys)
				compare(after)
				require.Empty(t, storedAll(t, s, []skep.Scope{openSpace(t, s, "gone", skep.Cache, 1, true)}, chainKeys(7, 5)))
				require.Empty(t, unsound(s))
				putRun(t, s, scopes[0], chainKeys(9, 3), 5000)
				requireRight(t, s, scopes[0], chainKeys(9, 3), 5000)
				require.NoError(t, s.Close())
			}
			// Without a catalog an open does the same by itself.
			require.NoError(t, os.RemoveAll(filepath.Join(o.Dir, "catalog")))
			o.NoRebuild = true
			_, err = Open(context.Background(), o)
			requireKind(t, skep.Missing, err)
			o.NoRebuild = false
			s, err = Open(context.Background(), o)
			require.NoError(t, err)
			after := storedAll(t, s, scopes, keys)
			compare(after)
			require.NoError(t, s.Close())
		})
	}
}

// What a policy that evicts block by block has dropped stands in a log for as long as its group
// does. Deleted after that, it does not come back with a rebuild either.
func TestDeletedAfterItsEvictionStaysGone(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"lru", "s3fifo"} {
		t.Run(policy, func(t *testing.T) {
			ctx := testContext(t)
			o := small(tempRoot(t, "store"))
			o.CacheBytes, o.Policy, o.LogicalBlocks = -1, policy, 20
			unjudged(&o) // what lies on a drive that is found hung looks evicted, and is not
			s, err := Open(ctx, o)
			require.NoError(t, err)
			sc := openSpace(t, s, "n", skep.Cache, 1, false)
			keys := chainKeys(1, 100)
			for i := range keys {
				requireOutcome(t, skep.Committed, putRun(t, s, sc, keys[i:i+1], 3000))
			}
			there := storedAll(t, s, []skep.Scope{sc}, keys)
			require.NotEmpty(t, there)
			var evicted []skep.Key
			for _, k := range keys {
				if _, ok := there["0"+k.Short()]; !ok {
					evicted = append(evicted, k)
				}
			}
			require.NotEmpty(t, evicted)
			n, err := s.Delete(ctx, sc, evicted)
			require.NoError(t, err)
			require.Zero(t, n)
			require.NoError(t, s.Close())

			require.NoError(t, os.RemoveAll(filepath.Join(o.Dir, "catalog")))
			_, err = Rebuild(ctx, o, false, nil)
			require.NoError(t, err)
			s, err = Open(ctx, o)
			require.NoError(t, err)
			require.Empty(t, storedAll(t, s, []skep.Scope{sc}, evicted))
			require.NoError(t, s.Close())
		})
	}
}

// A block that names a tail and a block that names a whole one: only the tail is dropped, and so it is after a restart
// and after a rebuild.
func TestARebuildKeepsWholeBlocksThatWereNamedAsReplaced(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	o := small(tempRoot(t, "store"))
	s, err := Open(ctx, o)
	require.NoError(t, err)
	n, err := s.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: halfShape, Class: skep.Durable, Copies: 1, Chained: true})
	require.NoError(t, err)
	sc := skep.Scope{Namespace: n.ID}
	first, tail, whole, next := keyOf(1), keyOf(2), keyOf(3), []skep.Key{keyOf(4), keyOf(5)}
	requireOutcome(t, skep.Committed, putRun(t, s, sc, []skep.Key{first}, 8<<10))
	put := func(key skep.Key, valid int, replaces *skep.Key) {
		r := putRequest(sc, &first, 1, []skep.Key{key}, 8<<10)
		r.Blocks[0].ValidTokens, r.Blocks[0].Replaces = valid, replaces
		res, err := s.Put(ctx, r)
		require.NoError(t, err)
		requireOutcome(t, skep.Committed, res)
	}
	put(tail, 1, nil)
	put(whole, 0, nil)
	put(next[0], 0, &tail)
	put(next[1], 0, &whole)
	check := func() {
		require.Equal(t, 1, prefix(t, s, sc, []skep.Key{first, tail}))
		require.Equal(t, 2, prefix(t, s, sc, []skep.Key{first, whole}))
		require.Equal(t, 2, prefix(t, s, sc, []skep.Key{first, next[0]}))
		require.Equal(t, 2, prefix(t, s, sc, []skep.Key{first, next[1]}))
	}
	check()
	require.NoError(t, s.Close())
	s, err = Open(ctx, o) // by the catalog
	require.NoError(t, err)
	check()
	require.NoError(t, s.Close())
	require.NoError(t, os.RemoveAll(filepath.Join(o.Dir, "catalog")))
	s, err = Open(ctx, o)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	check()
}
