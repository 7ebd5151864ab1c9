package keeper

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/recall"
)

// there is a namespace at another node, which counts what is deleted in it.
type there struct {
	skep.NamespaceInfo
	keys, all int
	err       error // of what is deleted by keys
}

func (t *there) Delete(_ context.Context, _ string, keys []skep.Key) error {
	t.keys += len(keys)
	return t.err
}

func (t *there) DeleteNamespace(context.Context) error {
	t.all++
	return nil
}

func (t *there) Missing(_ string, err error) error { return err }

func (t *there) Space() *skep.NamespaceInfo { return &t.NamespaceInfo }

var block = []skep.StoredBlock{{Key: skep.Key{1}}}

// age has what was noted of a flight be a minute older.
func (k *Keeper) age(f *Flight) {
	for i := range k.order {
		if k.order[i].flight == f {
			k.order[i].at = k.order[i].at.Add(-sentFor)
		}
	}
	for _, list := range k.sent {
		for i := range list {
			if list[i].flight == f {
				list[i].at = list[i].at.Add(-sentFor)
			}
		}
	}
}

// A copy that is on its way when a deletion recalls others is left to the deletion that waits for it: recalled now, it
// would arrive afterwards. And of two copies of a block the older one's time ends alone.
func TestARecallLeavesWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	k := New(memstore.New(memstore.Options{}))
	at, to := sentKey{1, block[0].Key}, &there{}
	old, err := k.Depart(t.Context(), 1, block)
	require.NoError(t, err)
	old.Sends(to)
	old.End()
	under, err := k.Depart(t.Context(), 1, block)
	require.NoError(t, err)
	under.Sends(to)
	take := func(take func(sentKey)) { take(at) }
	require.NoError(t, k.recall(t.Context(), "delete", take))
	require.Equal(t, 1, to.keys)
	require.Equal(t, under, k.sent[at][0].flight)
	under.End()
	k.age(old)
	require.Zero(t, k.admit(&Flight{k: k}))
	require.Len(t, k.sent[at], 1)
	require.NoError(t, k.recall(t.Context(), "delete", take))
	require.Equal(t, 2, to.keys)
	require.Empty(t, k.sent)
	require.NoError(t, k.Close())
}

// A copy in doubt has deletions be made again for a minute, and no longer, though nothing is sent meanwhile. One that is
// still under way then is not forgotten.
func TestACopyInDoubtIsForgottenByItself(t *testing.T) {
	t.Parallel()
	k := New(memstore.New(memstore.Options{}))
	ns, err := k.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "n", Chained: true,
		Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 4}})
	require.NoError(t, err)
	to := &there{}
	send := func() *Flight {
		f, err := k.Depart(t.Context(), ns.ID, block)
		require.NoError(t, err)
		f.Sends(to)
		f.Doubt.Store(true)
		return f
	}
	f := send()
	deletes := func() error {
		_, err := k.Delete(t.Context(), skep.Scope{Namespace: ns.ID}, []skep.Key{block[0].Key})
		return err
	}
	k.age(f)
	require.False(t, k.Idle())
	require.Len(t, k.sent[sentKey{ns.ID, block[0].Key}], 1, "under way")
	f.End()
	require.True(t, k.Idle())

	f = send()
	f.End()
	require.ErrorIs(t, deletes(), skep.Unavailable)
	require.Equal(t, 1, to.keys)
	k.age(f)
	require.NoError(t, deletes())
	require.True(t, k.Idle())
	require.NoError(t, k.Close())
}

// A deletion that is made again and again succeeds: a minute after the copy was sent that is in doubt, or after the
// node failed to delete it last. It is remembered once meanwhile.
func TestADeletionThatIsMadeOften(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := New(memstore.New(memstore.Options{}))
		at, to := sentKey{1, block[0].Key}, &there{}
		f, err := k.Depart(t.Context(), 1, block)
		require.NoError(t, err)
		f.Sends(to)
		f.Doubt.Store(true)
		f.End()
		deletes := func() error {
			time.Sleep(sentFor / 4)
			k.Idle()
			require.LessOrEqual(t, len(k.order), 1)
			require.LessOrEqual(t, len(k.sent[at]), 1)
			return k.recall(t.Context(), "delete", func(take func(sentKey)) { take(at) })
		}
		to.err = &skep.Error{Kind: skep.Closed}
		for range 9 {
			require.ErrorIs(t, deletes(), skep.Closed, "longer than a copy is remembered")
		}
		to.err = nil
		for range 3 {
			require.ErrorIs(t, deletes(), skep.Unavailable)
		}
		require.NoError(t, deletes())
		require.Equal(t, 12, to.keys)
		require.True(t, k.Idle())
		require.Empty(t, k.order)
		require.NoError(t, k.Close())
	})
}

// What is in doubt, and is a minute old when the node has deleted it, is forgotten.
func TestADeletionThatTakesAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := New(memstore.New(memstore.Options{}))
		to := &slow{}
		f, err := k.Depart(t.Context(), 1, block)
		require.NoError(t, err)
		f.Sends(to)
		f.Doubt.Store(true)
		f.End()
		to.meanwhile = func() {
			time.Sleep(sentFor)
			k.Idle() // which forgets
		}
		require.ErrorIs(t, k.recall(t.Context(), "delete", func(take func(sentKey)) { take(sentKey{1, block[0].Key}) }),
			skep.Unavailable)
		require.True(t, k.Idle())
		require.NoError(t, k.Close())
	})
}

// slow is a there where a deletion takes its time.
type slow struct {
	there
	meanwhile func()
}

func (s *slow) Delete(context.Context, string, []skep.Key) error {
	s.meanwhile()
	return nil
}

// A node that was given a namespace loses it with this one, and is forgotten after a minute.
func TestAGivenNamespaceIsForgotten(t *testing.T) {
	t.Parallel()
	st := memstore.New(memstore.Options{})
	k := New(st)
	give := func() (skep.NamespaceID, *there) {
		ns, err := k.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "n",
			Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 4}, Chained: true})
		require.NoError(t, err)
		to := &there{}
		f, err := k.Depart(t.Context(), ns.ID, nil)
		require.NoError(t, err)
		f.Opened(to)
		f.End()
		return ns.ID, to
	}
	id, to := give()
	require.NoError(t, k.DeleteNamespace(t.Context(), id))
	require.Equal(t, 1, to.all)
	require.Empty(t, k.spaces)

	id, to = give()
	k.spaces[id][0].at = k.spaces[id][0].at.Add(-sentFor)
	f, err := k.Depart(t.Context(), id, nil)
	require.NoError(t, err)
	f.End()
	require.Empty(t, k.spaces)
	require.NoError(t, k.DeleteNamespace(t.Context(), id))
	require.Zero(t, to.all)
	require.NoError(t, k.Close())
}

// Who deletes a namespace again, of which the first try was given up while a node was being given it, waits for that,
// and has that node lose it.
func TestADeletionAgainWaitsForWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := New(memstore.New(memstore.Options{}))
		ns, err := k.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "n",
			Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 4}, Chained: true})
		require.NoError(t, err)
		to := &there{}
		f, err := k.Depart(t.Context(), ns.ID, nil)
		require.NoError(t, err)
		f.Opened(to)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, k.DeleteNamespace(ctx, ns.ID), skep.Deadline)
		again := make(chan error, 1)
		go func() { again <- k.DeleteNamespace(t.Context(), ns.ID) }()
		synctest.Wait()
		require.Empty(t, again)
		f.End()
		require.ErrorIs(t, <-again, skep.NotFound)
		require.Equal(t, 1, to.all)
		require.NoError(t, k.Close())
	})
}

// held is a there that deletes when it is told what comes of it.
type held struct {
	there
	answers chan error
}

func (h *held) Delete(ctx context.Context, op string, keys []skep.Key) error {
	_ = h.there.Delete(ctx, op, keys)
	return <-h.answers
}

func (h *held) DeleteNamespace(ctx context.Context) error {
	_ = h.there.DeleteNamespace(ctx)
	return <-h.answers
}

// Of two deletions the second is not acknowledged before what the first one found has been recalled: where the first
// one fails in that, the second one recalls it. A recall of another node waits for neither.
func TestADeletionWaitsForARecall(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(ctx context.Context, k *Keeper, ns skep.NamespaceID) error{
		"delete": func(ctx context.Context, k *Keeper, ns skep.NamespaceID) error {
			_, err := k.Delete(ctx, skep.Scope{Namespace: ns}, []skep.Key{block[0].Key})
			return err
		},
		"purge": func(ctx context.Context, k *Keeper, ns skep.NamespaceID) error {
			return k.Purge(ctx, skep.Purge{Namespace: ns})
		},
		"purge of a tenant": func(ctx context.Context, k *Keeper, _ skep.NamespaceID) error {
			return k.Purge(ctx, skep.Purge{Tenant: "t"})
		},
		"delete namespace": func(ctx context.Context, k *Keeper, ns skep.NamespaceID) error {
			if err := k.DeleteNamespace(ctx, ns); skep.KindOf(err) != skep.NotFound {
				return err
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				k := New(memstore.New(memstore.Options{}))
				ns, err := k.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "n",
					Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 4}, Chained: true})
				require.NoError(t, err)
				to := &held{there: there{NamespaceInfo: ns}, answers: make(chan error)}
				blocks := block
				if name == "delete namespace" {
					blocks = nil
				}
				f, err := k.Depart(t.Context(), ns.ID, blocks)
				require.NoError(t, err)
				if f.Sends(to); blocks == nil {
					f.Opened(to)
				}
				f.End()
				first, second := make(chan error, 1), make(chan error, 1)
				go func() { first <- remove(t.Context(), k, ns.ID) }()
				synctest.Wait()
				require.Equal(t, 1, to.keys+to.all)
				go func() { second <- remove(t.Context(), k, ns.ID) }()
				synctest.Wait()
				require.Empty(t, second)
				require.NoError(t, remove(recall.Mark(t.Context()), k, ns.ID))
				ctx, leave := context.WithCancel(t.Context())
				left := make(chan error, 1)
				go func() { left <- remove(ctx, k, ns.ID) }()
				synctest.Wait()
				require.Empty(t, left)
				leave()
				require.ErrorIs(t, <-left, skep.Deadline)

				to.answers <- &skep.Error{Kind: skep.Closed}
				synctest.Wait()
				require.ErrorIs(t, <-first, skep.Closed)
				require.Empty(t, second)
				require.Equal(t, 2, to.keys+to.all)
				to.answers <- nil
				require.NoError(t, <-second)
				require.True(t, k.Idle())
				require.NoError(t, k.Close())
			})
		})
	}
}

func TestAKeeperHidesNothing(t *testing.T) {
	t.Parallel()
	storetest.Wrapper(t, memstore.New(memstore.Options{}), func(_ *testing.T, behind skep.Store) skep.Store {
		return New(behind)
	})
}

// A purge waits for copies that are on their way of what it is of, and for no others.
func TestAPurgeWaitsForItsOwnCopies(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]skep.Purge{"tenant": {Tenant: "t"}, "model": {Model: "t"}, "namespace": {Namespace: 1}} {
		synctest.Test(t, func(t *testing.T) {
			k := New(memstore.New(memstore.Options{}))
			var under []*Flight
			for i, of := range []string{"t", "o"} {
				ns, err := k.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: of, Model: of, Name: "n", Chained: true,
					Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 4}})
				require.NoError(t, err)
				require.EqualValues(t, i+1, ns.ID)
				f, err := k.Depart(t.Context(), ns.ID, block)
				require.NoError(t, err)
				under = append(under, f)
			}
			purge := func() error {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				return k.Purge(ctx, p)
			}
			require.ErrorIs(t, purge(), skep.Deadline, name)
			under[0].End()
			require.NoError(t, purge(), name)
			require.NoError(t, k.Close())
		})
	}
}
