package naming

import (
	"context"
	"encoding/binary"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/crypt"
	"github.com/skepkv/skep/store/internal/devlog"
	"github.com/skepkv/skep/store/internal/intents"
	"github.com/skepkv/skep/store/internal/keybook"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/internal/puts"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/internal/watermark"
	"github.com/skepkv/skep/store/segment"
	"github.com/skepkv/skep/tools/drawn"
)

// bench is a namer of a store without drives: what their logs are to say stays intended.
type bench struct {
	*Namer
	refuse atomic.Bool // the catalog refuses commits
	told   *observe.Reader
	closes func()
}

const perTenant = 4

func newBench(t *testing.T) *bench {
	t.Helper()
	ctx, log := t.Context(), slog.New(slog.DiscardHandler)
	b := &bench{}
	c, err := catalog.Open("catalog", catalog.Options{FS: vfs.NewMem(), CacheBytes: 1 << 20, Logger: log,
		Refuse: func() error {
			if b.refuse.Load() {
				return &skep.Error{Op: "commit", Kind: skep.Full}
			}
			return nil
		}})
	require.NoError(t, err)
	x, err := index.New(index.Config{Policy: "cost", CapacityPages: 1 << 20})
	require.NoError(t, err)
	keys, err := crypt.NewKeys([16]byte{1}, nil)
	require.NoError(t, err)
	var background sync.WaitGroup
	closing := make(chan struct{})
	b.closes = sync.OnceFunc(func() { close(closing) })
	names := namespaces.NewTable([16]byte{2})
	root := watermark.New(func() catalog.StoreState { return catalog.StoreState{} })
	root.Load(catalog.StoreState{})
	rows := commit.New(log)
	rows.Open(commit.Parts{Context: ctx, Catalog: c, Index: x, Names: names, Root: root})
	book := keybook.New(keybook.Config{Context: ctx, Keys: keys, Log: log, Timeout: time.Minute})
	require.NoError(t, book.Open(ctx, c, names))
	table := space.New(space.Config{Log: log, Context: ctx, Closing: closing, Background: &background, Root: root,
		Changes: rows.Changes(), Drives: func() []*space.Drive { return nil }, Timeout: time.Minute})
	table.Catalog, table.Index = c, x
	appends := appender.New(appender.Config{Space: table, Rows: rows, Root: root, Index: x, Log: log,
		OpTimeout: time.Minute})
	events := observe.NewEvents(1, 64, time.Now)
	b.told, err = events.Reader(skep.Cursor{})
	require.NoError(t, err)
	b.Namer = New(Config{Context: ctx, Closing: closing, Background: &background, Catalog: c, Names: names, Keys: book,
		Index: x, Root: root, Rows: rows, Events: events, Wait: time.Minute, PerTenant: perTenant, Wall: time.Now,
		Logs: devlog.New(devlog.Config{Context: ctx, Catalog: c, Names: names, Index: x, Space: table, Rows: rows,
			Root: root, Puts: puts.New(), Appends: appends, Intents: intents.New(root), Log: log})})
	t.Cleanup(func() {
		background.Wait()
		x.Close()
		require.NoError(t, c.Close())
	})
	return b
}

// specOf is a namespace of tenant and name.
func specOf(tenant, name string) skep.NamespaceSpec {
	return skep.NamespaceSpec{Tenant: tenant, Name: name, Model: "model of " + name, Copies: 1,
		Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}}
}

// open makes a namespace, and gives it.
func (b *bench) open(t *testing.T, tenant, name string) *namespaces.Namespace {
	t.Helper()
	info, err := b.Open(t.Context(), specOf(tenant, name))
	require.NoError(t, err)
	return b.Names.Get(info.ID)
}

// requireAgree requires that the catalog says what memory says, once all is swept.
func (b *bench) requireAgree(t *testing.T) {
	t.Helper()
	b.Background.Wait()
	rows, err := b.Catalog.Namespaces(t.Context())
	require.NoError(t, err)
	require.Len(t, rows, b.Names.Len())
	for _, r := range rows {
		ns := b.Names.Get(r.ID)
		require.NotNil(t, ns, "namespace %d", r.ID)
		require.Equal(t, ns.Instance, r.Instance)
		require.Equal(t, ns, b.Names.Named(r.Tenant, r.Name))
		require.Equal(t, ns, b.Names.Of(r.Instance))
	}
	purges, err := b.Catalog.Purges(t.Context())
	require.NoError(t, err)
	dead := 0
	for k, epoch := range b.Names.DeadSalts() {
		dead++
		require.Contains(t, purges, catalog.Purge{Instance: k.Instance, Tag: k.Tag, Seq: epoch})
	}
	require.Len(t, purges, dead)
}

// events are the events since the last call.
func (b *bench) events(t *testing.T) (list []skep.Event) {
	t.Helper()
	into := make([]skep.Event, 64)
	n, _, err := b.told.Take(into)
	require.NoError(t, err)
	return into[:n]
}

// said is what the logs of devices are to say, in order: each namespace or purge, as the catalog promises it.
func (b *bench) said(t *testing.T) (list []any) {
	t.Helper()
	promised, err := b.Catalog.Intents(t.Context())
	require.NoError(t, err)
	for _, i := range promised {
		for e := range segment.Entries(i.Entries) {
			switch e.Kind {
			case segment.KindNamespace:
				v, err := segment.DecodeNamespace(e.Body)
				require.NoError(t, err)
				list = append(list, v)
			case segment.KindPurge:
				v, err := segment.DecodePurge(e.Body)
				require.NoError(t, err)
				list = append(list, v)
			}
		}
	}
	return list
}

func TestANamespaceIsMadeOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ns := b.open(t, "t", "n")
	require.Equal(t, ns, b.open(t, "t", "n"))
	other := specOf("t", "n")
	other.Copies = 2
	_, err := b.Open(t.Context(), other)
	require.ErrorIs(t, err, skep.Conflict)
	require.NotEqual(t, ns, b.open(t, "u", "n"), "another tenant's")
	b.requireAgree(t)

	said := b.said(t)
	require.Len(t, said, 2)
	first := said[0].(segment.Namespace)
	require.Equal(t, ns.Instance, first.Instance)
	require.Equal(t, ns.Info.ID, first.Info.ID)
	require.False(t, first.Deleted)
}

// No number of a namespace is given out twice, and no instance, whatever was deleted or purged.
func TestNoNumberIsGivenOutTwice(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ids, instances := map[skep.NamespaceID]bool{}, map[uint32]bool{}
	for range 5 {
		ns := b.open(t, "t", "n")
		require.False(t, ids[ns.Info.ID] || instances[ns.Instance])
		ids[ns.Info.ID], instances[ns.Instance] = true, true

		require.NoError(t, b.Purge(t.Context(), skep.Purge{Namespace: ns.Info.ID}))
		purged := b.Names.Get(ns.Info.ID)
		require.False(t, instances[purged.Instance])
		instances[purged.Instance] = true
		require.NoError(t, b.Delete(t.Context(), ns.Info.ID))
	}
	require.Zero(t, b.Names.Len())
	b.requireAgree(t)
}

func TestATenantHasSoManyNamespaces(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for i := range perTenant {
		b.open(t, "t", string(rune('a'+i)))
	}
	_, err := b.Open(t.Context(), specOf("t", "one too many"))
	require.ErrorIs(t, err, skep.Quota)
	require.ErrorContains(t, err, "at most 4")
	b.open(t, "u", "a") // others' are their own
	require.NoError(t, b.Delete(t.Context(), b.Names.Named("t", "a").Info.ID))
	b.open(t, "t", "one more")
}

// A purge gives what it names a new instance, and nothing else.
func TestAPurgeTakesWhatItNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		purge func(ns *namespaces.Namespace) skep.Purge
		takes []string
	}{
		{"a namespace", func(ns *namespaces.Namespace) skep.Purge { return skep.Purge{Namespace: ns.Info.ID} },
			[]string{"t/a"}},
		{"a tenant", func(*namespaces.Namespace) skep.Purge { return skep.Purge{Tenant: "t"} }, []string{"t/a", "t/b"}},
		{"a model", func(*namespaces.Namespace) skep.Purge { return skep.Purge{Model: "model of a"} },
			[]string{"t/a", "u/a"}},
		{"a tenant that is not there", func(*namespaces.Namespace) skep.Purge { return skep.Purge{Tenant: "v"} }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			all := map[string]*namespaces.Namespace{}
			for _, at := range [][2]string{{"t", "a"}, {"t", "b"}, {"u", "a"}, {"u", "b"}} {
				all[at[0]+"/"+at[1]] = b.open(t, at[0], at[1])
			}
			b.events(t)
			require.NoError(t, b.Purge(t.Context(), c.purge(all["t/a"])))
			var taken []string
			for name, was := range all {
				if is := b.Names.Get(was.Info.ID); is.Instance != was.Instance {
					taken = append(taken, name)
					require.True(t, b.Names.Dead(was.Instance, namespaces.Tag{}))
					require.Zero(t, is.Stored.Load())
				}
			}
			slices.Sort(taken)
			require.Equal(t, c.takes, taken)
			b.requireAgree(t)
			told := 0
			if len(c.takes) > 0 {
				told = 1
			}
			list := b.events(t)
			require.Len(t, list, told)
			if len(c.takes) == 1 {
				require.Equal(t, all["t/a"].Info.ID, list[0].Namespace)
			}
		})
	}
}

// Blocks of a namespace that is purged leave the index. Others' stay.
func TestWhatIsPurgedIsSweptOutOfTheIndex(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	gone, stays := b.open(t, "t", "gone"), b.open(t, "t", "stays")
	b.fill(t, gone, 3*sweepStep)
	b.fill(t, stays, 10)
	require.NoError(t, b.Purge(t.Context(), skep.Purge{Namespace: gone.Info.ID}))
	b.Background.Wait()
	require.False(t, b.Sweeping())
	require.EqualValues(t, 10, b.Index.Stats().Blocks)
	require.Empty(t, b.Index.Dead())
}

// fill has a namespace have n blocks in the index.
func (b *bench) fill(t *testing.T, ns *namespaces.Namespace, n int) {
	t.Helper()
	for i := range n {
		fp := b.Names.Fingerprint(ns.Instance, namespaces.Tag{}, skep.KeyOf(binary.LittleEndian.AppendUint32(nil, uint32(i))))
		_, _, err := b.Index.Insert(index.Entry{FP: fp, Pages: 1, Namespace: ns.Instance, Tenant: ns.Tenant, Opaque: true})
		require.NoError(t, err)
	}
}

// A sweep that the end of the store cuts short has ended.
func TestASweepEndsWithTheStore(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ns := b.open(t, "t", "n")
	b.fill(t, ns, 3*sweepStep)
	b.Index.SetDead(ns.Instance)
	b.closes()
	b.Sweep()
	require.Positive(t, b.Index.Stats().Blocks, "it was cut short")
	require.False(t, b.Sweeping())
}

// What was put under a salt is found no more once the salt is purged, nor once it is purged again. Other salts stay.
func TestAPurgedSaltHasAnotherTag(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ns := b.open(t, "t", "n")
	salted, other := skep.Scope{Namespace: ns.Info.ID, Salt: "pepper"}, skep.Scope{Namespace: ns.Info.ID, Salt: "other"}
	tag := func(sc skep.Scope) namespaces.Tag {
		_, tag, err := b.Names.Resolve("test", sc)
		require.NoError(t, err)
		return tag
	}
	was, otherWas := []namespaces.Tag{tag(salted)}, tag(other)
	for range 3 {
		require.NoError(t, b.Purge(t.Context(), skep.Purge{Salt: &salted}))
		require.NotContains(t, was, tag(salted))
		for _, old := range was {
			require.True(t, b.Names.Dead(ns.Instance, old))
		}
		require.False(t, b.Names.Dead(ns.Instance, tag(salted)))
		was = append(was, tag(salted))
		b.requireAgree(t)
	}
	require.Equal(t, otherWas, tag(other))
	require.False(t, b.Names.Dead(ns.Instance, otherWas))
	require.Equal(t, ns, b.Names.Get(ns.Info.ID), "its instance is as it was")
}

// What is deleted is gone from the catalog at once, and the logs are to say that its instance is purged and that the
// namespace is no more.
func TestADeletedNamespaceIsGone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ns := b.open(t, "t", "n")
	salted := skep.Scope{Namespace: ns.Info.ID, Salt: "pepper"}
	require.NoError(t, b.Purge(t.Context(), skep.Purge{Salt: &salted}))
	b.events(t)
	require.NoError(t, b.Delete(t.Context(), ns.Info.ID))
	require.Nil(t, b.Names.Get(ns.Info.ID))
	require.True(t, b.Names.Dead(ns.Instance, namespaces.Tag{}))
	b.requireAgree(t)
	list := b.events(t)
	require.Len(t, list, 1)
	require.Equal(t, ns.Info.ID, list[0].Namespace)

	said := b.said(t)
	purge, end := said[len(said)-2].(segment.Purge), said[len(said)-1].(segment.Namespace)
	require.Equal(t, ns.Instance, purge.Instance)
	require.False(t, purge.Salted)
	require.True(t, end.Deleted)
	require.Equal(t, ns.Instance, end.Instance)
}

func TestWhatIsNotThereIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ns := b.open(t, "t", "n")
	require.ErrorIs(t, b.Delete(t.Context(), ns.Info.ID+1), skep.NotFound)
	require.ErrorIs(t, b.Purge(t.Context(), skep.Purge{Namespace: ns.Info.ID + 1}), skep.NotFound)
	require.ErrorIs(t, b.Purge(t.Context(), skep.Purge{Salt: &skep.Scope{Namespace: ns.Info.ID + 1, Salt: "s"}}),
		skep.NotFound)
	require.ErrorIs(t, b.Purge(t.Context(), skep.Purge{Salt: &skep.Scope{Namespace: ns.Info.ID}}), skep.Invalid)
}

// Whoever makes, purges or deletes namespaces waits for others who do no longer than its context.
func TestNamingWaitsForAContext(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ns := b.open(t, "t", "n")
	b.Wait = time.Hour
	b.turn <- struct{}{} // somebody's is being made, on a full store
	for name, call := range map[string]func(context.Context) error{
		"open":   func(ctx context.Context) error { _, err := b.Open(ctx, specOf("t", "other")); return err },
		"purge":  func(ctx context.Context) error { return b.Purge(ctx, skep.Purge{Namespace: ns.Info.ID}) },
		"delete": func(ctx context.Context) error { return b.Delete(ctx, ns.Info.ID) },
	} {
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		err := call(ended)
		require.ErrorIs(t, err, skep.Deadline, name)
		require.ErrorContains(t, err, "namespace being made", name)
	}
	b.turn.Give()
	require.Equal(t, ns, b.Names.Get(ns.Info.ID))
}

// The catalog and memory agree whatever is made, purged and deleted, and whichever commits are refused. A call whose
// commit is refused has changed nothing.
func TestTheCatalogAndMemoryAgree(t *testing.T) {
	t.Parallel()
	seed := drawn.Seed(t)
	rng := rand.New(rand.NewPCG(seed, seed))
	b := newBench(t)
	name := func() (tenant, name string) {
		return string(rune('t' + rng.IntN(2))), string(rune('a' + rng.IntN(perTenant)))
	}
	for step := range 300 {
		tenant, n := name()
		ns := b.Names.Named(tenant, n)
		refused := rng.IntN(4) == 0
		was := slices.Collect(b.Names.All())
		b.refuse.Store(refused)
		var err error
		switch kind := rng.IntN(4); {
		case ns == nil:
			_, err = b.Open(t.Context(), specOf(tenant, n))
		case kind == 0:
			err = b.Delete(t.Context(), ns.Info.ID)
		case kind == 1:
			err = b.Purge(t.Context(), skep.Purge{Tenant: tenant})
		default:
			err = b.Purge(t.Context(), skep.Purge{Salt: &skep.Scope{Namespace: ns.Info.ID, Salt: skep.Salt(n)}})
		}
		b.refuse.Store(false)
		if refused {
			require.ErrorIs(t, err, skep.Full, "step %d", step)
			require.ElementsMatch(t, was, slices.Collect(b.Names.All()))
		} else {
			require.NoError(t, err, "step %d", step)
		}
		b.requireAgree(t)
	}
	require.NoError(t, b.Rows.Failed())
}
