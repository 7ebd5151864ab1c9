package bucket

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// A listing is none of one moment: it may show a deletion, and not the object that it names. The deletion stays.
func TestADeletionOfWhatAListingDoesNotShow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newShelf()
		n, third, other := newNode(t, options(b), 0), newNode(t, options(b), 0), newNode(t, options(b), 0)
		first, keys := chain(1, 8), chain(2, 8)
		n.put(first)
		n.look()
		_, err := n.Delete(t.Context(), n.scope(), first[7:])
		require.NoError(t, err)
		deleted := b.named(deletedDir)
		require.Len(t, deleted, 1)
		third.put(keys)
		b.set(func() {
			b.listed = func(name string) {
				if name != deleted[0] {
					return
				}
				b.set(func() { b.listed = nil })
				<-time.After(time.Second) // names grow with time
				third.look()
				_, err := other.Delete(t.Context(), other.scope(), keys)
				require.NoError(t, err)
				third.put(keys) // its object stays
			}
		})
		n.look()
		require.Len(t, b.named(deletedDir), 2)
		again := newNode(t, options(b), 0)
		again.look()
		require.Zero(t, again.find(keys))
	})
}

// What others removed of deletions is not kept in memory.
func TestDeletionsThatAreGoneAreForgotten(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n, other := newNode(t, options(b), 0), newNode(t, options(b), 0)
	keys := chain(1, 8)
	n.put(keys)
	n.look()
	_, err := n.Delete(t.Context(), n.scope(), keys)
	require.NoError(t, err)
	other.look()
	other.look()
	require.Empty(t, b.named(deletedDir))
	n.look()
	require.Empty(t, n.all()[0].heard)
}

// A namespace whose deletion failed for the bucket can be deleted again.
func TestDeletingANamespaceAgain(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n, keys := one(t, b)
	b.set(func() { b.away = true })
	require.ErrorIs(t, n.DeleteNamespace(t.Context(), n.ns), skep.Unavailable)
	b.set(func() { b.away = false })
	require.NoError(t, n.DeleteNamespace(t.Context(), n.ns))
	again := newNode(t, options(b), 0)
	again.look()
	require.Zero(t, again.find(keys))
}

// A purge concerns what another node has sent a moment ago, and then was lost.
func TestAPurgeLooksForWhatOthersSent(t *testing.T) {
	t.Parallel()
	b := newShelf()
	lost, n := newNode(t, options(b), 0), newNode(t, options(b), 0)
	keys := chain(1, 8)
	lost.open("another")
	lost.put(keys)
	lost.look()
	require.NoError(t, n.Purge(t.Context(), skep.Purge{Tenant: "t"}))
	again := newNode(t, options(b), 0)
	again.look()
	again.open("another")
	require.Zero(t, again.find(keys))
}

// Nodes that were told of a purge take nothing that another one sends for a while. So nothing is sent for longer, also
// of a namespace that is made then, and what is sent later stays. Where there is one node it sends at once.
func TestWhatIsSentAfterAPurgeStays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newShelf()
		n, other := newNode(t, options(b), 0), newNode(t, options(b), 0)
		for _, n := range []*node{n, other} {
			require.NoError(t, n.Purge(t.Context(), skep.Purge{Tenant: "t"}))
			<-time.After(time.Minute)
		}
		keys := chain(1, 8)
		n.put(keys)
		n.open("another")
		n.put(keys)
		n.look()
		<-time.After(forgetFor - 90*time.Second) // the first node takes again what is sent
		n.look()
		require.Empty(t, b.named(blocksDir))
		<-time.After(MaxEvery)
		n.look()
		for range 2 {
			other.look()
			require.Equal(t, 8, other.find(keys))
		}
		require.Len(t, b.named(blocksDir), 2)

		o := options(newShelf())
		o.Alone = true
		alone := newNode(t, o, 0)
		require.NoError(t, alone.Purge(t.Context(), skep.Purge{Tenant: "t"}))
		alone.put(keys)
		alone.look()
		require.EqualValues(t, 1, alone.Usage().SentObjects)
	})
}

// However much is owed, no object that says so is too large to be read.
func TestWhatIsDeletedIsSaidInPieces(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n, keys := one(t, b)
	sp := n.all()[0]
	for id := range sp.objects { // as of many calls that failed
		sp.owed[id] = chain(2, maxSaid+maxSaid/2)
	}
	_, err := n.Delete(t.Context(), n.scope(), keys[4:])
	require.NoError(t, err)
	require.Empty(t, sp.owed)
	said := b.named(deletedDir)
	require.Len(t, said, 2)
	for _, name := range said {
		require.Less(t, len(b.objects[name]), 64*maxSaid)
	}
	other := newNode(t, options(b), 0)
	require.Equal(t, 4, other.find(keys))
}

// What becomes owed of an object while something else is said of it stays owed.
func TestWhatIsOwedMeanwhile(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n, keys := newNode(t, options(b), 0), chain(1, 8)
	n.put(keys)
	b.set(func() { b.late = true })
	require.Error(t, n.turn())
	sp := n.all()[0]
	b.set(func() {
		b.before = func(call, name string) {
			if call == "put" && strings.Contains(name, unsureDir) {
				b.set(func() { b.before = nil })
				sp.forgetAll(time.Now(), false) // as a purge that waits
			}
		}
	})
	_, err := n.Delete(t.Context(), n.scope(), keys[7:])
	require.NoError(t, err)
	sp.mu.RLock()
	defer sp.mu.RUnlock()
	require.Len(t, sp.owed, 1)
	for _, owed := range sp.owed {
		require.ElementsMatch(t, keys, owed)
	}
}

// A purge that cannot know whose objects are, for what says it is damaged or gone, does not say that it is done. Where
// a node knows it, what is gone is put again, and the purge can be. What another key seals concerns nobody.
func TestAPurgeOfWhatNobodyKnows(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n, _ := one(t, b)
	spec := n.all()[0].name + specName
	was := b.objects[spec]
	purges := func(o Options) error {
		return newNode(t, o, 0).Purge(t.Context(), skep.Purge{Tenant: "another"})
	}
	require.NoError(t, purges(options(b)))
	o := options(b)
	o.Key = make([]byte, KeySize)
	require.NoError(t, purges(o))

	spoilt := append([]byte{was[0] ^ 1}, was[1:]...)
	b.set(func() { b.objects[spec] = spoilt })
	err := purges(options(b))
	require.ErrorIs(t, err, skep.Damaged)
	require.ErrorContains(t, err, spec)
	b.deny("get", spec)
	err = purges(options(b))
	require.ErrorIs(t, err, skep.Denied)
	require.ErrorContains(t, err, spec)
	b.set(func() { b.denies = nil; delete(b.objects, spec) })
	err = purges(options(b))
	require.ErrorIs(t, err, skep.Damaged)
	require.ErrorContains(t, err, spec)
	n.look()
	require.NoError(t, purges(options(b)))
	require.Len(t, b.named(blocksDir), 1)
}

// Nor does one whose spec goes while it is read. Where there are no objects, and none may come,
// it concerns nobody.
func TestAPurgeOfASpecThatGoes(t *testing.T) {
	t.Parallel()
	for _, has := range []string{blocksDir, announcedDir, unsureDir} {
		b := newShelf()
		n := newNode(t, options(b), 0)
		one(t, b)
		b.set(func() {
			for name := range b.objects {
				if of, dir, id, _ := split(name); dir == blocksDir && has != blocksDir {
					delete(b.objects, name)
					b.objects[of+has+id] = nil
				}
			}
			b.before = func(call, name string) {
				if call == "get" && strings.HasSuffix(name, specName) {
					b.set(func() { delete(b.objects, name) })
				}
			}
		})
		err := n.Purge(t.Context(), skep.Purge{Tenant: "another"})
		if has != unsureDir {
			require.ErrorIs(t, err, skep.Damaged)
			require.ErrorContains(t, err, specName)
		} else {
			require.NoError(t, err)
		}
	}
}

// Nor does it keep what is known from going.
func TestAPurgeBesideWhatNobodyKnows(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n, from := newNode(t, options(b), 0), newNode(t, options(b), 0)
	for i := range 16 {
		from.open(fmt.Sprint("namespace ", i))
		from.put(chain(i, 8))
	}
	from.look()
	spoilt := b.named(specName)[4:12]
	b.set(func() {
		for _, name := range spoilt {
			b.objects[name] = []byte("spoilt")
		}
	})
	err := n.Purge(t.Context(), skep.Purge{Tenant: "t"})
	require.ErrorIs(t, err, skep.Damaged)
	left := b.named(blocksDir)
	require.Len(t, left, len(spoilt))
	for i, name := range spoilt {
		require.ErrorContains(t, err, name)
		require.Equal(t, name[:spaceSize], left[i][:spaceSize])
	}
}

// However many purges there are, so many are remembered; beyond, nothing of others is taken.
func TestManyPurges(t *testing.T) {
	t.Parallel()
	n := newNode(t, options(newShelf()), 0)
	for range 3 * maxPurges {
		n.purging(func(*skep.NamespaceSpec) bool { return false })
	}
	require.LessOrEqual(t, len(n.purges), maxPurges)
	require.False(t, n.spaceNamed(&skep.NamespaceSpec{}).quiet.IsZero())
}

// However many keys are deleted, so many are remembered, of all namespaces together. Of the one with the most nothing
// is taken instead.
func TestManyDeletions(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n, other := newNode(t, options(b), 0), newNode(t, options(b), 0)
	n.held.forgets = 100
	for i, name := range []string{"n", "few"} {
		n.open(name)
		_, err := n.Delete(t.Context(), n.scope(), chain(1, 60-10*i))
		require.NoError(t, err)
		other.open(name)
		other.put(chain(1, 55))
	}
	other.look()
	n.look()
	require.EqualValues(t, 50, n.held.forgotten.Load())
	require.Zero(t, n.find(chain(1, 55)))
	n.open("n")
	require.Zero(t, n.find(chain(1, 55)))
	require.Len(t, b.named(blocksDir), 7, "of one namespace")
}

// What was deleted long ago is forgotten, also while there is no money for a look at the bucket.
func TestWhatWasDeletedLongAgo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := options(newShelf())
		o.Budget = Budget{MoneyDay: 1e-6, Prices: Prices{Write: 1}}
		n := newNode(t, o, 0)
		_, err := n.Delete(t.Context(), n.scope(), chain(1, 8))
		require.NoError(t, err)
		require.EqualValues(t, 8, n.held.forgotten.Load())
		<-time.After(forgetFor + time.Minute)
		n.look()
		require.Zero(t, n.held.forgotten.Load())
		require.Empty(t, n.all()[0].forgotten)
	})
}

// Objects that say nothing: an empty one is removed, one of another version is read once and stays.
func TestObjectsThatSayNothing(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n := newNode(t, options(b), 0)
	n.put(chain(1, 8))
	n.look()
	at := n.all()[0].name + blocksDir
	b.set(func() { b.objects[at+"1"], b.objects[at+"2"] = nil, make([]byte, 200) })
	n.look()
	n.look()
	require.NotContains(t, b.named(blocksDir), at+"1")
	require.Contains(t, b.named(blocksDir), at+"2")
	times := 0
	for _, name := range b.gets {
		if name == at+"2" {
			times++
		}
	}
	require.Equal(t, 1, times)
}

// What is deleted while the bucket is told of earlier deletions of the same object is told next: nobody finds it.
func TestWhatIsDeletedWhileAnotherDeletionIsTold(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n, keys := one(t, b)
	sp := n.all()[0]
	b.set(func() {
		b.before = func(call, name string) {
			if call == "put" && strings.Contains(name, deletedDir) {
				sp.forget(keys[4:5], time.Now()) // as Delete does
			}
		}
	})
	_, err := n.Delete(t.Context(), n.scope(), keys[6:7])
	require.NoError(t, err)
	b.set(func() { b.before = nil })
	n.look()
	other := newNode(t, options(b), 0)
	other.look()
	require.Equal(t, 4, other.find(keys))
}

// A deletion that waits while the bucket is told of another one waits no longer than it may. It is told next.
func TestADeletionWaitsForAnotherNoLongerThanItMay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newShelf()
		o := options(b)
		o.Alone = true
		n := newNode(t, o, 0)
		keys := chain(1, 8)
		n.put(keys)
		n.look()
		goOn, ended := make(chan struct{}), make(chan error, 1)
		b.set(func() {
			b.before = func(call, name string) {
				if call == "put" && strings.Contains(name, deletedDir) {
					<-goOn
				}
			}
		})
		go func() {
			_, err := n.Delete(t.Context(), n.scope(), keys[6:])
			ended <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := n.Delete(ctx, n.scope(), keys[4:6])
		require.ErrorIs(t, err, skep.Deadline)
		close(goOn)
		require.NoError(t, <-ended)
		n.look()
		other := newNode(t, options(b), 0)
		require.Equal(t, 4, other.find(keys))
	})
}

// A block that two objects have is found in the other one where the first goes, and that one is not removed as one of
// which nothing is left.
func TestABlockOfTwoObjectsStays(t *testing.T) {
	t.Parallel()
	s := newSpace(testKey, &skep.NamespaceSpec{Tenant: "t", Name: "n"}, &held{most: 1 << 20})
	k, now := chain(1, 1)[0], time.Now()
	for _, id := range []string{"a", "b"} {
		s.adopt(newObject(s, id, 1, [saltSize]byte{}), []record{{key: k}}, nil, now, now)
	}
	require.Equal(t, []string{"b"}, s.spent(), "it is found in the one of the lowest id")
	s.drop("a")
	require.True(t, s.hasNow(&k))
	require.Empty(t, s.spent())
	s.drop("b")
	require.False(t, s.hasNow(&k))
}
