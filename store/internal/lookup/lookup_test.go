package lookup

import (
	"log/slog"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/members"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/internal/puts"
	"github.com/skepkv/skep/store/internal/restore"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/internal/watermark"
	"github.com/skepkv/skep/store/segment"
)

// shelf is what a finder looks in: blocks in one stripe group on two drives.
type shelf struct {
	*Finder
	now    time.Time
	drives []*space.Drive
	placed uint32 // pages
	seq    uint64
}

// blockBytes is the payload of a block of namespaces of one size, which takes a page, so that it has one drive.
const blockBytes = 4096

func newShelf(t *testing.T, cfg index.Config) *shelf {
	t.Helper()
	s := &shelf{now: time.Unix(1_000_000, 0)}
	log := slog.New(slog.DiscardHandler)
	c, err := catalog.Open("catalog", catalog.Options{FS: vfs.NewMem(), CacheBytes: 1 << 20, Logger: log})
	require.NoError(t, err)
	cfg.Policy, cfg.CapacityPages, cfg.PageBytes = "cost", 1<<20, layout.SlotSize
	x, err := index.New(cfg)
	require.NoError(t, err)
	names := namespaces.NewTable([16]byte{1})
	set := members.New(members.Config{Context: t.Context(), Log: log})
	root := watermark.New(func() catalog.StoreState { return catalog.StoreState{} })
	rows := commit.New(log)
	table := space.New(space.Config{Log: log, Context: t.Context(), Root: root, Changes: rows.Changes(), Drives: set.All})
	table.Catalog, table.Index, table.SegmentBytes = c, x, 1<<20
	g := space.Found(catalog.GroupState{Group: 1})
	for i := range 2 {
		d := &space.Drive{Index: uint16(i)}
		s.drives = append(s.drives, d)
		g.Drives, g.Segments = append(g.Drives, d), append(g.Segments, 0)
	}
	set.Opened = s.drives
	table.Add(g)
	underway := puts.New()
	rows.Open(commit.Parts{Context: t.Context(), Catalog: c, Names: names, Index: x, Space: table, Root: root,
		Puts:   underway,
		Events: observe.NewEvents(1, 8, time.Now), Count: &observe.Counts{}})
	s.Finder = New(Config{Names: names, Index: x, Rows: rows, Space: table, Members: set, Puts: underway,
		Restores: &restore.Restorer{}, Count: &observe.Counts{}, Clock: func() time.Time { return s.now }, Epoch: 7})
	t.Cleanup(func() {
		x.Close()
		require.NoError(t, c.Close())
	})
	return s
}

// namespace makes one: of blocks of one size, where bytes is not 0.
func (s *shelf) namespace(t *testing.T, name string, bytes int64,
	edit ...func(*skep.NamespaceSpec)) *namespaces.Namespace {
	t.Helper()
	spec := skep.NamespaceSpec{Tenant: "t", Name: name, Copies: 1, Chained: true,
		Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 16, Bytes: bytes}}
	for _, f := range edit {
		f(&spec)
	}
	n := s.Names.Len() + 1
	ns, err := s.Names.Add(skep.NamespaceInfo{ID: skep.NamespaceID(n), NamespaceSpec: spec}, uint32(100+n))
	require.NoError(t, err)
	return ns
}

func unchained(spec *skep.NamespaceSpec)  { spec.Chained = false }
func twoCopies(spec *skep.NamespaceSpec)  { spec.Copies = 2 }
func cacheClass(spec *skep.NamespaceSpec) { spec.Class = skep.Cache }

// keysOf are n keys.
func keysOf(n int) (keys []skep.Key) {
	for i := range n {
		keys = append(keys, skep.KeyOf([]byte{byte(i), byte(i >> 8)}))
	}
	return keys
}

// put stores keys, as a chain where ns has chains, with payload of so many bytes each; the last has valid tokens, if
// that is not 0. Blocks begin on the drives in turn.
func (s *shelf) put(t *testing.T, ns *namespaces.Namespace, tag namespaces.Tag, keys []skep.Key, bytes int64,
	valid uint32) {
	t.Helper()
	b := s.Rows.Catalog.NewBatch()
	for i, k := range keys {
		s.seq++
		rec := segment.Record{Seq: s.seq, Instance: ns.Instance, NamespaceID: uint32(ns.Info.ID),
			SaltTag: segment.SaltTag(tag),
			Key:     k, Pages: uint32((bytes + 4095) / 4096), Parts: []segment.RecordPart{{Name: skep.PartKV, Size: bytes}}}
		e := index.Entry{FP: s.Names.Fingerprint(ns.Instance, tag, k), Pages: rec.Pages * layout.SlotsPerPage,
			Namespace: ns.Instance, Tenant: ns.Tenant, Opaque: !ns.Info.Chained}
		e.Odd = ns.PartSize(skep.PartKV) != bytes
		if ns.Info.Chained && i > 0 {
			e.HasParent, e.Depth, e.Parent = true, uint32(i), s.Names.Fingerprint(ns.Instance, tag, keys[i-1])
			rec.Parent, rec.Depth = &keys[i-1], uint32(i)
		}
		if i == len(keys)-1 && valid > 0 {
			e.Partial, rec.ValidTokens = true, valid
		}
		for c := range max(1, ns.Info.Copies) {
			s.placed++
			rec.Copies = append(rec.Copies, layout.Location{Group: 1, Device: uint8((i + c) % 2), Page: s.placed})
		}
		e.Location = rec.Copies[0].Pack()
		b.PutBlock(rec.Copies[0], rec.Append(nil))
		_, _, err := s.Index.Insert(e)
		require.NoError(t, err)
	}
	require.NoError(t, s.Rows.Catalog.Commit(t.Context(), b, false))
}

// A lookup finds a chain as far as it goes, and says how much that is.
func TestAChainIsFoundAsFarAsItGoes(t *testing.T) {
	t.Parallel()
	s := newShelf(t, index.Config{})
	ns := s.namespace(t, "n", blockBytes)
	keys := keysOf(8)
	s.put(t, ns, namespaces.Tag{}, keys[:5], blockBytes, 0)
	out := s.Find(ns, namespaces.Tag{}, &skep.LookupRequest{Keys: keys, Lease: skep.NoLease}, true, true)
	require.Equal(t, skep.LookupResult{Blocks: 5, Tokens: 5 * 16, Bytes: 5 * blockBytes, Pays: true}, out)

	other := append([]skep.Key{skep.KeyOf([]byte("another"))}, keys...)
	require.Zero(t, s.Find(ns, namespaces.Tag{}, &skep.LookupRequest{Keys: other}, true, true).Blocks)
	require.Zero(t, s.Find(ns, namespaces.Tag{9}, &skep.LookupRequest{Keys: keys}, true, true).Blocks, "another salt")
	require.EqualValues(t, 3, s.Count.Lookups.Load())
	require.EqualValues(t, 8+9+8, ns.Count.Keys.Load())
	require.EqualValues(t, 5, ns.Count.Hits.Load())
}

// A tail that is not full counts as many tokens as it has. Asked for tiers, a lookup gives the size to the byte.
func TestATailCountsWhatItHas(t *testing.T) {
	t.Parallel()
	s := newShelf(t, index.Config{})
	ns := s.namespace(t, "n", 0)
	keys := keysOf(3)
	s.put(t, ns, namespaces.Tag{}, keys[:2], 9000, 0)
	s.put(t, ns, namespaces.Tag{}, keys, 3000, 5) // the first two are there
	out := s.Find(ns, namespaces.Tag{}, &skep.LookupRequest{Keys: keys, Tiers: true, Lease: skep.NoLease}, true, true)
	require.Equal(t, 2*16+5, out.Tokens)
	require.EqualValues(t, 9000+9000+3000, out.Bytes)
	require.Equal(t, []skep.Tier{skep.TierDevice, skep.TierDevice, skep.TierDevice}, out.Tiers)
}

// Keys without chains are found one by one, up to the first that is not there.
func TestKeysAreFoundOneByOne(t *testing.T) {
	t.Parallel()
	s := newShelf(t, index.Config{})
	ns := s.namespace(t, "n", 0, unchained)
	keys := keysOf(4)
	s.put(t, ns, namespaces.Tag{}, []skep.Key{keys[0], keys[1], keys[3]}, 700, 0)
	out := s.Find(ns, namespaces.Tag{}, &skep.LookupRequest{Keys: keys}, true, true)
	require.Equal(t, 2, out.Blocks)
	require.Equal(t, 2*16, out.Tokens)
	require.EqualValues(t, 2*700, out.Bytes)
	require.Equal(t, s.now.Add(skep.DefaultLease), out.Lease.Until)
	for i, k := range keys {
		require.Equal(t, i < 2, s.Index.Protected(s.Names.Fingerprint(ns.Instance, namespaces.Tag{}, k)), "key %d", i)
	}
	s.Leases.Release(out.Lease.ID)
	leased, _ := s.Index.Held(ns.Tenant)
	require.Zero(t, leased)
}

// A lease covers what was found of a chain, until it is over. A tenant whose leases are at their cap gets none, and
// what it had leased of the lookup so far is given back.
func TestALookupLeasesWhatItFinds(t *testing.T) {
	t.Parallel()
	s := newShelf(t, index.Config{LeaseCapBytes: 4 * blockBytes})
	ns := s.namespace(t, "n", blockBytes)
	keys := keysOf(4)
	s.put(t, ns, namespaces.Tag{}, keys[:3], blockBytes, 0)
	out := s.Find(ns, namespaces.Tag{}, &skep.LookupRequest{Keys: keys, Lease: time.Second}, true, true)
	require.False(t, out.LeaseDenied)
	covered := func() int {
		return s.Covered(&restore.Asked{ChainPlan: &layout.ChainPlan{Chain: skep.Chain{Keys: keys, Lease: out.Lease.ID}},
			NS: ns})
	}
	require.Equal(t, 3, covered())
	again := s.Find(ns, namespaces.Tag{}, &skep.LookupRequest{Keys: keys, Lease: time.Second}, true, true)
	require.False(t, again.LeaseDenied, "the same blocks count once")
	again = s.Find(ns, namespaces.Tag{}, &skep.LookupRequest{Keys: keys[:2], Lease: time.Second}, true, true)
	require.True(t, again.LeaseDenied, "another prefix counts besides")
	require.Zero(t, again.Lease)
	require.Equal(t, 2, again.Blocks)

	s.now = s.now.Add(2 * time.Second)
	require.Zero(t, covered())
	s.Expire(s.now)
	s.Index.Tick(s.now)
	require.Zero(t, s.Leases.Len())
	again = s.Find(ns, namespaces.Tag{}, &skep.LookupRequest{Keys: keys, Lease: time.Second}, true, true)
	require.False(t, again.LeaseDenied)

	loose := s.namespace(t, "loose", blockBytes, unchained)
	s.Leases.Release(again.Lease.ID)
	s.put(t, loose, namespaces.Tag{}, keysOf(6), blockBytes, 0)
	out = s.Find(loose, namespaces.Tag{}, &skep.LookupRequest{Keys: keysOf(6), Lease: time.Second}, true, true)
	require.True(t, out.LeaseDenied, "the fifth is one too many")
	require.Equal(t, 6, out.Blocks)
	leased, _ := s.Index.Held(ns.Tenant)
	require.Zero(t, leased)
}

// Runs are looked up one by one and leased together.
func TestRunsAreLeasedTogether(t *testing.T) {
	t.Parallel()
	s := newShelf(t, index.Config{})
	ns := s.namespace(t, "n", blockBytes)
	keys := keysOf(6)
	s.put(t, ns, namespaces.Tag{}, keys[:2], blockBytes, 0)
	s.put(t, ns, namespaces.Tag{}, keys[3:5], blockBytes, 0)
	out, looked, hits, bytes := s.FindRuns(ns, namespaces.Tag{}, &skep.RunsRequest{Runs: [][]skep.Key{
		keys[:3], keys[5:], keys[3:],
	}}, true, true)
	require.Equal(t, [3]int{7, 4, 4 * blockBytes}, [3]int{looked, hits, int(bytes)})
	var blocks []int
	for _, r := range out.Runs {
		blocks = append(blocks, r.Blocks)
	}
	require.Equal(t, []int{2, 0, 2}, blocks)
	for _, run := range [][]skep.Key{keys[:3], keys[3:]} {
		require.Equal(t, 2, s.Covered(&restore.Asked{ChainPlan: &layout.ChainPlan{Chain: skep.Chain{Keys: run,
			Lease: out.Lease.ID}}, NS: ns}))
	}
	n, held := s.Leases.Held(s.now)
	require.Equal(t, 1, n)
	require.Equal(t, bytes, held)
}

// A lookup ends before a block that lies on a drive that is not there, until the drive is back. With another copy
// elsewhere it goes on.
func TestALookupEndsBeforeWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		edit  []func(*skep.NamespaceSpec)
		found map[int]int // drives that are dead → blocks
	}{
		{"one copy", nil, map[int]int{0: 4, 1: 1, 2: 0}},
		{"keys", []func(*skep.NamespaceSpec){unchained}, map[int]int{0: 4, 1: 1, 2: 0}},
		{"two copies", []func(*skep.NamespaceSpec){twoCopies}, map[int]int{0: 4, 1: 4, 2: 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newShelf(t, index.Config{})
			ns := s.namespace(t, "n", blockBytes, c.edit...)
			s.put(t, ns, namespaces.Tag{}, keysOf(4), blockBytes, 0)
			for dead, want := range c.found {
				s.drives[1].Standing.Set([]health.State{health.Healthy, health.Dead, health.Dead}[dead])
				s.drives[0].Standing.Set([]health.State{health.Healthy, health.Healthy, health.Dead}[dead])
				out := s.Find(ns, namespaces.Tag{}, &skep.LookupRequest{Keys: keysOf(4), Lease: skep.NoLease}, true, true)
				require.Equal(t, want, out.Blocks, "%d drives are dead", dead)
			}
			s.drives[0].Standing.Set(health.Dead)
			s.drives[0].Removed.Store(true)
			s.drives[1].Standing.Set(health.Healthy)
			require.True(t, s.allReadable(), "a drive that was removed has nothing")
		})
	}
}

// What is there need not be put, unless it is a Cache block that cannot be read. Of keys without chains the last writer
// wins: all are wanted.
func TestWhatIsWanted(t *testing.T) {
	t.Parallel()
	s := newShelf(t, index.Config{})
	keys := keysOf(3)
	wanted := func(ns *namespaces.Namespace) (out []bool) {
		for _, w := range s.Want(ns, namespaces.Tag{}, keys) {
			require.Equal(t, !w.Wanted, w.Outcome == skep.Exists)
			out = append(out, w.Wanted)
		}
		return out
	}
	durable := s.namespace(t, "durable", blockBytes, func(s *skep.NamespaceSpec) { s.Class = skep.Durable })
	cached, loose := s.namespace(t, "cache", blockBytes, cacheClass), s.namespace(t, "loose", blockBytes, unchained)
	for _, ns := range []*namespaces.Namespace{durable, cached, loose} {
		s.put(t, ns, namespaces.Tag{}, keys[:2], blockBytes, 0)
	}
	require.Equal(t, []bool{false, false, true}, wanted(durable))
	require.Equal(t, []bool{false, false, true}, wanted(cached))
	require.Equal(t, []bool{true, true, true}, wanted(loose))
	s.drives[1].Standing.Set(health.Dead)
	require.Equal(t, []bool{false, false, true}, wanted(durable), "its drive may come back")
	require.Equal(t, []bool{false, true, true}, wanted(cached))
}

// Listing goes on where it ended, shows nothing of salts or of others, and begins anew in another run.
func TestAListingIsTakenPieceByPiece(t *testing.T) {
	t.Parallel()
	s := newShelf(t, index.Config{})
	ns, other := s.namespace(t, "n", blockBytes), s.namespace(t, "other", blockBytes)
	keys := keysOf(10)
	s.put(t, ns, namespaces.Tag{}, keys, blockBytes, 0)
	s.put(t, ns, namespaces.Tag{1}, keysOf(4), blockBytes, 0)
	s.put(t, other, namespaces.Tag{}, keysOf(4), blockBytes, 0)

	var got []skep.StoredBlock
	calls, middle := 0, uint64(0)
	for from, more := uint64(0), true; more; more = from != 0 {
		list, next, err := s.Blocks(ns.Info.ID, 4, from, 3)
		require.NoError(t, err)
		require.LessOrEqual(t, len(list), 3)
		got, from = append(got, list...), next
		if calls++; calls == 2 {
			middle = next
		}
	}
	require.Greater(t, calls, 3)
	require.Len(t, got, len(keys))
	for _, b := range got {
		require.Equal(t, keys[b.Depth], b.Key)
		require.Equal(t, keys[b.Depth/4*4], b.First, "of the group of block %d", b.Depth)
	}
	rest, _, err := s.Keys(ns.Info.ID, middle, 100)
	require.NoError(t, err)
	require.Less(t, len(rest), len(keys))
	s.Epoch++
	all, next, err := s.Keys(ns.Info.ID, middle, 100)
	require.NoError(t, err)
	require.Zero(t, next)
	require.ElementsMatch(t, keys, all)

	require.ErrorIs(t, CheckList("list keys", 0), skep.Invalid)
	require.NoError(t, CheckList("list keys", 1))
	_, _, err = s.Keys(77, 0, 1)
	require.ErrorIs(t, err, skep.NotFound)
}

// A hint is counted for the blocks that are there. Where a pin is one too many, none is pinned.
func TestHints(t *testing.T) {
	t.Parallel()
	s := newShelf(t, index.Config{PinCapBytes: 2 * blockBytes})
	ns := s.namespace(t, "n", blockBytes, unchained)
	keys := keysOf(4)
	s.put(t, ns, namespaces.Tag{}, keys[:3], blockBytes, 0)
	hint := func(n int, h skep.Hint) (int, error) {
		fps := make([]index.Fingerprint, n)
		for i := range fps {
			fps[i] = s.Names.Fingerprint(ns.Instance, namespaces.Tag{}, keys[i])
		}
		return s.applyHint(ns, fps, h)
	}
	n, err := hint(4, skep.Hint{NextUse: time.Hour})
	require.NoError(t, err)
	require.Equal(t, 3, n)
	_, err = hint(3, skep.Hint{Pin: time.Hour})
	require.ErrorIs(t, err, skep.Quota)
	_, pinned := s.Index.Held(ns.Tenant)
	require.Zero(t, pinned)
	n, err = hint(2, skep.Hint{Pin: time.Hour})
	require.NoError(t, err)
	require.Equal(t, 2, n)
	_, pinned = s.Index.Held(ns.Tenant)
	require.EqualValues(t, 2*blockBytes, pinned)

	for _, bad := range []skep.Hint{{Pin: -1}, {Pin: skep.MaxPin + 1}, {NextUse: -1}, {TTL: 366 * 24 * time.Hour},
		{Steps: -1},
		{Steps: 1<<20 + 1}, {Program: string(make([]byte, skep.MaxNameSize+1))}} {
		require.ErrorIs(t, bad.Validate(), skep.Invalid, "%+v", bad)
	}
	require.NoError(t, skep.Hint{Pin: skep.MaxPin, Steps: 1 << 20}.Validate())
}

// Tenants are listed by what they hold, most first.
func TestTenantsAreListedByWhatTheyHold(t *testing.T) {
	t.Parallel()
	s := newShelf(t, index.Config{})
	for i := range shownTenants + 1 {
		ns := s.namespace(t, "n", blockBytes, func(spec *skep.NamespaceSpec) { spec.Tenant = string(rune('A' + i)) })
		s.put(t, ns, namespaces.Tag{}, keysOf(i), blockBytes, 0)
	}
	list := s.Tenants()
	require.Len(t, list, shownTenants)
	require.Equal(t, string(rune('A'+shownTenants)), list[0].Name)
	require.Greater(t, list[0].Bytes, list[1].Bytes)
	require.Equal(t, "B", list[shownTenants-1].Name, "who holds nothing comes last")
}

// Who asks for a reason of its own finds the same, and is not counted; nor is who asks for the rest of what was,
// and that is a use of the keys.
func TestQuestionsOfNoReaderAreNotCounted(t *testing.T) {
	t.Parallel()
	s := newShelf(t, index.Config{})
	var err error
	s.Profile, err = observe.NewProfile(1 << 10)
	require.NoError(t, err)
	ns := s.namespace(t, "n", blockBytes)
	keys := keysOf(8)
	s.put(t, ns, namespaces.Tag{}, keys[:5], blockBytes, 0)
	for _, uses := range []bool{false, true} {
		one := &skep.LookupRequest{Keys: keys, Lease: skep.NoLease}
		require.Equal(t, 5, s.Find(ns, namespaces.Tag{}, one, false, uses).Blocks)
		all := &skep.RunsRequest{Runs: [][]skep.Key{keys}, Lease: skep.NoLease}
		_, asked, hits, _ := s.FindRuns(ns, namespaces.Tag{}, all, false, uses)
		require.Equal(t, []int{8, 5}, []int{asked, hits})
		require.Zero(t, s.Count.Lookups.Load())
		require.Zero(t, s.Count.LookupKeys.Load()+s.Count.LookupHits.Load()+ns.Count.Keys.Load()+ns.Count.Hits.Load())
		seen := s.Profile.Snapshot(0, 0, 0).References
		if uses {
			require.EqualValues(t, 16, seen)
		} else {
			require.Zero(t, seen)
		}
	}
}
