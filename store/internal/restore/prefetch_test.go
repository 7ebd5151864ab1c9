package restore

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/memory"
)

// cached makes a restorer whose DRAM tier holds part kv of these blocks, of n bytes each.
func cached(t *testing.T, n int, blocks ...index.Fingerprint) *Restorer {
	t.Helper()
	arena, err := memory.New(memory.Options{IO: 1 << 20, Cache: 1 << 20})
	require.NoError(t, err)
	cache, err := memory.NewCache(arena, memory.CacheOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		cache.Drop(func(memory.ID) bool { return true })
		require.NoError(t, arena.Close(context.Background()))
	})
	for _, fp := range blocks {
		b, err := arena.TryAlloc(n, memory.BudgetIO)
		require.NoError(t, err)
		_, err = cache.Put(memory.Item{ID: memory.IDOf(fp, skep.PartKV), Bufs: []*memory.Buffer{b}, Length: int64(n)})
		require.NoError(t, err)
	}
	rs := &Restorer{Parts: Parts{Arena: arena, Cache: cache}}
	rs.prefetch.got = map[index.Fingerprint]fetched{}
	return rs
}

// chunkOf is a chunk of part kv of a block, of n bytes, that was read.
func chunkOf(fp index.Fingerprint, n int64) *chunk {
	plan := &layout.ChainPlan{Chain: skep.Chain{Part: skep.PartKV}}
	ch := &chunk{chain: &chain{Asked: Asked{ChainPlan: plan}}, at: &Located{FP: fp}}
	ch.out.Bytes = n
	return ch
}

// What is read ahead a second time, since it left memory unused meanwhile, is charged once.
func TestReadingAheadAgainIsChargedOnce(t *testing.T) {
	t.Parallel()
	const n = 8 << 10
	one, other := index.Fingerprint{1}, index.Fingerprint{2}
	rs := cached(t, n, one, other)
	now := time.Now()
	job := &ahead{start: now, due: now.Add(time.Minute)}
	for _, fp := range []index.Fingerprint{one, other, one} {
		rs.prefetched(chunkOf(fp, n), job)
	}
	p := rs.Prefetch()
	require.EqualValues(t, 3*n, p.ReadBytes)
	require.EqualValues(t, 2*n, p.UnusedBytes)
	require.EqualValues(t, n, p.WastedBytes)
	rs.prefetch.used(one)
	p = rs.Prefetch()
	require.EqualValues(t, n, p.UsedBytes)
	require.EqualValues(t, n, p.UnusedBytes)
}

// Hints of next use are bounded in number and in time, and tenants share what there is room for: one that has filled
// it gives way to another's, the furthest first, until both have as much; and to a sooner one of its own.
func TestHintsOfNextUseAreShared(t *testing.T) {
	t.Parallel()
	rs := cached(t, 1)
	rs.PrefetchBytes = 1
	now := time.Unix(1e9, 0)
	rs.Clock = func() time.Time { return now }
	rs.prefetch.runs = true // nothing is read
	hint := func(tenant uint16, number int, next time.Duration, keys int) {
		list := make([]skep.Key, keys)
		for i := range list {
			list[i] = skep.KeyOf([]byte{byte(tenant), byte(number), byte(number >> 8), byte(i), byte(i >> 8)})
		}
		ns := &namespaces.Namespace{Tenant: tenant}
		rs.Hint(ns, namespaces.Tag{}, skep.Scope{Namespace: skep.NamespaceID(tenant)}, list, skep.Hint{NextUse: next})
	}
	has := func(tenant uint16) (n int, last time.Duration) {
		for _, j := range rs.prefetch.jobs {
			if j.ns.Tenant == tenant {
				n++
				last = max(last, j.due.Sub(now))
			}
		}
		return n, last
	}
	hint(1, 0, 365*24*time.Hour, 1)
	require.EqualValues(t, 1, rs.Prefetch().Dropped, "a year")
	require.Empty(t, rs.prefetch.jobs)

	for i := range maxAhead {
		hint(1, i, time.Minute+time.Duration(i)*time.Second, 1)
	}
	n, last := has(1)
	require.Equal(t, maxAhead, n)
	hint(1, maxAhead, last+time.Second, 1)
	n, still := has(1)
	require.Equal(t, []any{maxAhead, last}, []any{n, still})
	require.EqualValues(t, 2, rs.Prefetch().Dropped, "none of its own is due later")
	hint(1, maxAhead, time.Second, 1)
	n, nearer := has(1)
	require.Equal(t, maxAhead, n)
	require.Equal(t, last-time.Second, nearer, "its last gave way")

	for i := range maxAhead {
		hint(2, i, maxWait, 1)
	}
	n, _ = has(1)
	m, _ := has(2)
	require.Equal(t, []int{maxAhead / 2, maxAhead / 2}, []int{n, m})

	hint(3, 0, maxWait, 1<<14) // as many keys as a chain may have
	n, _ = has(3)
	require.Equal(t, 1, n)
	for i := range 8 {
		hint(3, 1+i, maxWait, 1<<14)
	}
	n, _ = has(1)
	m, _ = has(2)
	require.Less(t, 2*maxAhead/5, min(n, m), "who has few keys keeps a share, however many another names")
	require.LessOrEqual(t, rs.prefetch.keys, MaxPrefetchKeys)
}

// Hints of different tenants, of different salts, and of chains that begin alike may name the same keys: each is
// found by who gave it, whatever the others said since.
func TestHintsOfTheSameKeysAreApart(t *testing.T) {
	t.Parallel()
	keys := []skep.Key{skep.KeyOf([]byte("first")), skep.KeyOf([]byte("last"))}
	one, other := &namespaces.Namespace{Tenant: 1, Instance: 1}, &namespaces.Namespace{Tenant: 2, Instance: 2}
	salted := namespaces.Tag{1}
	for name, others := range map[string]func(hint func(*namespaces.Namespace, namespaces.Tag, []skep.Key)){
		"of another tenant": func(hint func(*namespaces.Namespace, namespaces.Tag, []skep.Key)) {
			hint(other, namespaces.Tag{}, keys)
		},
		"of another salt": func(hint func(*namespaces.Namespace, namespaces.Tag, []skep.Key)) { hint(one, salted, keys) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rs := cached(t, 1)
			rs.PrefetchBytes, rs.prefetch.runs = 1, true // nothing is read
			rs.Clock = time.Now
			say := func(h skep.Hint) func(*namespaces.Namespace, namespaces.Tag, []skep.Key) {
				return func(ns *namespaces.Namespace, tag namespaces.Tag, list []skep.Key) {
					rs.Hint(ns, tag, skep.Scope{Namespace: skep.NamespaceID(ns.Instance)}, list, h)
				}
			}
			soon := skep.Hint{NextUse: time.Minute}
			say(soon)(one, namespaces.Tag{}, keys)
			others(say(soon))
			require.Len(t, rs.prefetch.jobs, 2)
			say(soon)(one, namespaces.Tag{}, keys)
			require.Len(t, rs.prefetch.jobs, 2, "said again")
			say(skep.Hint{Drop: true})(one, namespaces.Tag{}, keys)
			require.Len(t, rs.prefetch.jobs, 1)

			say(soon)(one, namespaces.Tag{}, keys)
			others(say(soon))
			plan := &layout.ChainPlan{Chain: skep.Chain{Keys: keys}, Blocks: skep.Range{To: len(keys)}}
			rs.prefetch.arrived([]*chain{{Asked: Asked{ChainPlan: plan, NS: one}}})
			require.Len(t, rs.prefetch.jobs, 1)
			require.EqualValues(t, 1, rs.Prefetch().Promoted)
		})
	}
}
