package store

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/segment"
)

// A namespace that was deleted stays deleted after a restart and after a rebuild, also once its
// name is used again; and its number is not given out again.
func TestDeletedNamespacesStayDeleted(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{false, true} {
		t.Run(sprintf("name used again %v", again), func(t *testing.T) {
			ctx := testContext(t)
			o := small(tempRoot(t, "store"))
			o.CacheBytes = -1
			o.Logger = testLog(t)
			s, err := Open(ctx, o)
			require.NoError(t, err)
			stays := openSpace(t, s, "stays", skep.Durable, 1, true)
			gone := openSpace(t, s, "gone", skep.Durable, 1, true)
			keys := chainKeys(1, 5)
			putRun(t, s, stays, keys, 3000)
			putRun(t, s, gone, keys, 3000)
			salted := gone
			salted.Salt = "salt"
			putRun(t, s, salted, keys, 3000)
			require.NoError(t, s.Purge(ctx, skep.Purge{Salt: &salted}))
			require.NoError(t, s.DeleteNamespace(ctx, gone.Namespace))
			want := 1
			if again {
				want++
				fresh := openSpace(t, s, "gone", skep.Durable, 1, true)
				require.Greater(t, fresh.Namespace, gone.Namespace)
			}
			check := func(what string) {
				list, err := s.Namespaces(ctx)
				require.NoError(t, err)
				require.Len(t, list, want, what)
				require.Equal(t, 5, stored(t, s, stays, keys), what)
				for _, n := range list {
					if n.ID != stays.Namespace {
						require.Zero(t, stored(t, s, skep.Scope{Namespace: n.ID}, keys), what)
						require.Zero(t, stored(t, s, skep.Scope{Namespace: n.ID, Salt: "salt"}, keys), what)
					}
				}
				_, err = s.FindNamespace(ctx, gone.Namespace)
				require.ErrorIs(t, err, skep.NotFound, what)
			}
			check("at once")
			eventually(t, "what was purged is swept", func() bool { return s.index.Stats().Blocks == 5 && !s.naming.Sweeping() })
			require.Empty(t, maps.Collect(s.names.DeadSalts()))
			purges, err := s.catalog.Purges(ctx)
			require.NoError(t, err)
			require.Empty(t, purges, "a namespace that is gone leaves no rows")
			for _, what := range []string{"after a restart", "after a rebuild", "after a second rebuild"} {
				require.NoError(t, s.Close())
				if what != "after a restart" {
					require.NoError(t, os.RemoveAll(filepath.Join(o.Dir, "catalog")))
				}
				s, err = Open(ctx, o)
				require.NoError(t, err)
				check(what)
			}
			next := openSpace(t, s, "another", skep.Durable, 1, true)
			require.Greater(t, next.Namespace, gone.Namespace)
			require.NoError(t, s.Close())
		})
	}
}

// A crash right after the catalog's commit, before the drives know of it, leaves the namespace
// deleted.
func TestADeletedNamespaceIsCommittedFirst(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	h := newHeldCommits()
	s, _, _ := openRig(t, func(o *Options) { o.refuseCommits = h.refuse })
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	keys := chainKeys(1, 4)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
	h.arm <- struct{}{}
	done := make(chan error, 1)
	go func() { done <- s.DeleteNamespace(ctx, sc.Namespace) }()
	<-h.at
	require.Equal(t, 4, stored(t, s, sc, keys), "nothing has happened while the commit is not there")
	close(h.go0)
	require.NoError(t, <-done)
	_, err := s.FindNamespace(ctx, sc.Namespace)
	require.ErrorIs(t, err, skep.NotFound)
	require.NoError(t, s.Close())
}

// A tenant that makes and deletes namespaces, with a block in each, uses nothing up: not the
// index's owners, of which there are 65,535, and not the table of namespaces.
func TestDeletedNamespacesGiveBackWhatTheyTook(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, _, _ := openRig(t, func(o *Options) { o.TenantNamespaces = 3 })
	for i := range 60 {
		sc := openSpace(t, s, sprintf("n%d", i), skep.Cache, 1, true)
		requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(i, 1), 600))
		if i < 3 {
			_, err := s.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "other", Name: sprintf("n%d", i), Shape: anySize})
			require.NoError(t, err, "another tenant's count is its own")
		}
		if i >= 2 {
			list, err := s.NamespacesOf(ctx, "t")
			require.NoError(t, err)
			require.Len(t, list, 3)
			_, err = s.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "t", Name: "one more", Shape: anySize})
			require.ErrorIs(t, err, skep.Quota)
			require.NoError(t, s.DeleteNamespace(ctx, list[0].ID))
		}
	}
	eventually(t, "what was deleted is swept", func() bool {
		return s.index.Stats().Blocks == 2 && len(s.index.Dead()) == 0 && !s.naming.Sweeping()
	})
	require.Equal(t, 5, s.names.Len())
	require.NoError(t, s.Close())
}

// Events hide the key of a salted block, that of one whose namespace was deleted while it was put, too.
func TestASaltedKeyIsHiddenThoughItsNamespaceIsGone(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s := openTest(t, small(t.TempDir()))
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	sc.Salt = "pepper"
	keys := []skep.Key{keyOf(1), keyOf(2)}
	events, err := s.Events(ctx, skep.Cursor{}, false)
	require.NoError(t, err)
	defer events.Close()
	r := &skep.PutRequest{Scope: sc}
	for _, k := range keys {
		part := skep.Part{Bytes: content(k, skep.PartKV, 1, blockSize)}
		r.Blocks = append(r.Blocks, skep.Block{Key: k, Parts: []skep.Part{part}})
	}
	ns, tag, err := s.names.Resolve("put", sc) // as Put does it, which is not over when the namespace is deleted
	require.NoError(t, err)
	blocks, err := s.ingest.Prepare(testContext(t), ns, tag, r, make([]skep.PutResult, 2))
	require.NoError(t, err)
	require.NoError(t, s.DeleteNamespace(ctx, sc.Namespace))
	require.NoError(t, s.ingest.Put(ctx, ns, blocks, skep.AckCommitted))
	require.NoError(t, s.Flush(ctx))
	for _, k := range keys { // whatever is told of them
		s.events.Emit(s.rows.Event(ns, &segment.Record{Key: k, Parent: &keys[0], SaltTag: segment.SaltTag(tag)}, skep.EventEvicted))
	}
	var list [16]skep.Event
	for told := 0; told < 2; {
		n, err := events.Next(ctx, list[:])
		require.NoError(t, err)
		for _, e := range list[:n] {
			require.NotContains(t, keys, e.Key)
			require.True(t, e.Parent == nil || *e.Parent != keys[0])
			if e.Kind == skep.EventEvicted {
				told++
			}
		}
	}
}
