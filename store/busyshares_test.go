package store

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/storetest"
)

// Every group whose blocks may go is still being written: a tenant within its share loses none of its own for that,
// since those groups are about to be there.
func TestATenantWithinItsShareKeepsItsBlocksWhileOthersAreWritten(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, _ := openRig(t, func(o *Options) {
		unjudged(o)
		o.TenantBytes, o.SpaceTimeout, o.OpTimeout = map[string]int64{"a": 2 << 20}, hangs, hangs
	})
	defer func() { require.NoError(t, s.Close()) }()
	open := func(tenant string) skep.Scope {
		n, err := s.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: tenant, Name: "n", Shape: anySize, Class: skep.Cache,
			Copies: 1})
		require.NoError(t, err)
		return skep.Scope{Namespace: n.ID}
	}
	a, b := open("a"), open("b")
	keys := chainKeys(1, 100)
	requireOutcome(t, skep.Committed, putRun(t, s, a, keys, 8000))

	var chains [][]skep.Key
	for i := range 40 {
		chains = append(chains, chainKeys(1000+i, 10))
	}
	r.each(func(_ int, d *device.Fault) { d.MustInject(holdWritesOf(slices.Concat(chains...)...)) })
	crew := storetest.NewCrew(t)
	for _, c := range chains {
		crew.Go(func(t testing.TB) { putRun(t, s, b, c, 8000) })
	}
	require.Eventually(t, func() bool { return s.space.FreeSoon() <= s.space.KeptFree }, hangs, time.Millisecond)
	for range 2 { // once the second is answered a round has ended that began with this little room
		require.NoError(t, s.cleaner.Clean(ctx, &space.Group{}, false), "of a group that is gone")
	}
	r.each(func(_ int, d *device.Fault) { d.Release() })
	crew.Wait()
	there, why := requireRight(t, s, a, keys, 8000)
	assert.Equal(t, len(keys), there, why)
}

// One write hangs, in a group that fills up beside it, and shares guard all that others could give: what they keep goes
// at last, and no put is refused.
func TestAWriteThatHangsDoesNotKeepSharesFromMakingRoom(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, _ := openRig(t, func(o *Options) {
		unjudged(o)
		o.TenantBytes = map[string]int64{"a": 1 << 30}
		o.SpaceTimeout, o.OpTimeout = hangs/9, hangs // of which a quarter is spent on waiting for the write
	})
	defer func() { require.NoError(t, s.Close()) }()
	n, err := s.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "a", Name: "n", Shape: anySize, Class: skep.Cache,
		Copies: 1})
	require.NoError(t, err)
	sc, key := skep.Scope{Namespace: n.ID}, chainKeys(1, 1)
	r.each(func(_ int, d *device.Fault) { d.MustInject(holdWritesOf(key...)) })
	crew := storetest.NewCrew(t)
	crew.Go(func(t testing.TB) { requireOutcome(t, skep.Committed, putRun(t, s, sc, key, 8000)) })
	eventually(t, "the write hangs", func() bool {
		held := 0
		r.each(func(_ int, d *device.Fault) { held += d.Held() })
		return held > 0
	})
	for i := 0; i < 40 || s.count.Evicted.Load() == 0; i++ {
		requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1000+i, 50), 8000))
	}
	r.each(func(_ int, d *device.Fault) { d.Release() })
	crew.Wait()
}

// Every group is being written, or somebody has it: where the policy has an exact order nothing is dropped for that,
// since no group could be cleaned however little lived in it: puts wait for those who have them.
func TestNothingIsDroppedWhileOthersHaveAllGroups(t *testing.T) {
	t.Parallel()
	nothingIsDropped(t, func(*testing.T, *Store) *space.Group { return nil })
}

// The same beside a group that nobody has, and that is full of durable blocks: it would gain nothing either.
func TestNothingIsDroppedBesideAGroupOfDurableBlocks(t *testing.T) {
	t.Parallel()
	nothingIsDropped(t, func(t *testing.T, s *Store) (full *space.Group) {
		sc := openSpace(t, s, "durable", skep.Durable, 1, true)
		for i := 0; full == nil; i++ {
			requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(5000+i, 10), 8000))
			for _, g := range s.space.Groups() {
				if g.Life.State() == space.Sealed {
					full = g
				}
			}
		}
		return full
	})
}

// Nor is one of use that leased blocks fill up, while the leases last.
func TestNothingIsDroppedBesideAGroupOfLeasedBlocks(t *testing.T) {
	t.Parallel()
	nothingIsDropped(t, func(t *testing.T, s *Store) (full *space.Group) {
		sc := openSpace(t, s, "leased", skep.Cache, 1, true)
		for i := 0; full == nil; i++ {
			keys := chainKeys(5000+i, 10)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 8000))
			req := &skep.LookupRequest{Scope: sc, Keys: keys, Lease: skep.MaxLease}
			found, err := s.Lookup(testContext(t), req)
			require.NoError(t, err)
			require.Equal(t, len(keys), found.Blocks)
			for _, g := range s.space.Groups() {
				if g.Life.State() == space.Sealed {
					full = g
				}
			}
		}
		return full
	})
}

// nothingIsDropped fills a store while somebody has all of its groups but the one that before gives.
func nothingIsDropped(t *testing.T, before func(*testing.T, *Store) *space.Group) {
	for _, policy := range exactPolicies {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			s, r, _ := openRig(t, func(o *Options) {
				unjudged(o)
				o.Policy, o.SpaceTimeout, o.OpTimeout, o.taskEvery = policy, hangs, hangs, hangs
			})
			defer func() { require.NoError(t, s.Close()) }()
			full := before(t, s)
			sc := openSpace(t, s, "n", skep.Cache, 1, true)
			keys := chainKeys(1, 60)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 8000))
			s.space.SealOpen(space.User)
			evicted := s.count.Evicted.Load()
			var claimed []*space.Group
			eventually(t, "somebody has all groups", func() bool {
				for _, g := range s.space.Groups() {
					if g != full && s.space.Claim(g, space.Claim{By: space.Mender}) {
						claimed = append(claimed, g)
					}
				}
				return len(claimed) > 0 && !slices.ContainsFunc(s.space.Groups(), func(g *space.Group) bool {
					return g != full && g.Life.State() == space.Sealed // its log is being written yet
				})
			})
			var chains [][]skep.Key
			for i := range 40 {
				chains = append(chains, chainKeys(1000+i, 10))
			}
			r.each(func(_ int, d *device.Fault) { d.MustInject(holdWritesOf(slices.Concat(chains...)...)) })
			crew := storetest.NewCrew(t)
			for _, c := range chains {
				crew.Go(func(t testing.TB) { putRun(t, s, sc, c, 8000) })
			}
			eventually(t, "there is no room", func() bool { return s.space.FreeSoon() <= s.space.KeptFree })
			for range 2 { // once the second is answered a round has ended that began with this little room
				require.NoError(t, s.cleaner.Clean(ctx, &space.Group{}, false), "of a group that is gone")
			}
			assert.Equal(t, evicted, s.count.Evicted.Load())
			for _, g := range claimed {
				s.space.Release(g)
			}
			r.each(func(_ int, d *device.Fault) { d.Release() })
			crew.Wait()
		})
	}
}
