package bucket

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
)

// An object whose call failed arrives after its blocks were deleted, and then the node is lost: nothing of it is found.
// Nor is it where other nodes have looked at the bucket meanwhile, where all was purged, and where the node asks nobody
// what others announced.
func TestWhatIsDeletedOfAnObjectThatArrivesLater(t *testing.T) {
	t.Parallel()
	keys := chain(1, 8)
	for name, remove := range map[string]func(n *node) error{
		"keys":  func(n *node) error { _, err := n.Delete(n.t.Context(), n.scope(), keys); return err },
		"purge": func(n *node) error { return n.Purge(n.t.Context(), skep.Purge{Tenant: "t"}) },
		"keys, then purge": func(n *node) error {
			_, err := n.Delete(n.t.Context(), n.scope(), keys)
			require.NoError(n.t, err)
			return n.Purge(n.t.Context(), skep.Purge{Namespace: n.ns})
		},
	} {
		for _, alone := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", alone ", alone), func(t *testing.T) {
				t.Parallel()
				b := newShelf()
				o := options(b)
				o.Alone = alone
				n, other := newNode(t, o, 0), newNode(t, options(b), 0)
				n.put(keys)
				b.set(func() { b.late = true })
				require.Error(t, n.turn())
				n.evict()
				n.load(keys) // it is not there
				require.NoError(t, remove(n))
				for range 3 {
					other.look()
				}
				if !alone {
					require.NoError(t, other.Purge(t.Context(), skep.Purge{Model: "m"}))
				}
				b.arrive()
				require.NotEmpty(t, b.named(blocksDir))
				again := newNode(t, options(b), 0)
				again.look()
				require.Zero(t, again.find(keys))
				n.look()
				require.Zero(t, n.find(keys))
			})
		}
	}
}

// A block that came damaged and is deleted then stays so, also where it was damaged on its way alone.
func TestADamagedBlockThatIsDeleted(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n, keys := one(t, b)
	n.evict()
	b.set(func() { b.spoil = func(_ string, bytes []byte) { bytes[0] ^= 1 } })
	require.Zero(t, n.load(keys))
	b.set(func() { b.spoil = nil })
	_, err := n.Delete(t.Context(), n.scope(), keys[:1])
	require.NoError(t, err)
	again := newNode(t, options(b), 0)
	again.look()
	require.Zero(t, again.find(keys))
}

// deny has calls with the object of a name be refused.
func (s *shelf) deny(call, name string) {
	s.set(func() {
		s.denies = func(c, n string) bool { return c == call && strings.Contains(n, name) }
	})
}

// An object that the server refuses is left out, and keeps nothing else from being found, sent and deleted. What is
// deleted meanwhile is deleted of it, too.
func TestAnObjectThatIsRefused(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n := newNode(t, options(b), 0)
	first, second, third := chain(1, 8), chain(2, 8), chain(3, 8)
	n.put(first)
	n.look()
	refused := b.named(blocksDir)[0]
	n.put(second)
	n.look()
	b.deny("get", refused)
	other := newNode(t, options(b), 0)
	other.look()
	require.Zero(t, other.find(first))
	require.Equal(t, 8, other.find(second))
	require.Equal(t, 8, other.load(second))
	other.put(third)
	other.look()
	require.Len(t, b.named(blocksDir), 3, "it sends")
	_, err := other.Delete(t.Context(), other.scope(), first[4:])
	require.NoError(t, err)
	n.evict()
	require.Equal(t, 8, n.find(first))
	require.Zero(t, n.load(first))
	require.Zero(t, n.find(first), "it is left out by who had read it, too")
	require.NoError(t, n.Usage().Err)

	b.set(func() { b.denies = nil })
	for _, n := range []*node{newNode(t, options(b), 0), other} { // the bucket says it, too
		n.look()
		require.Equal(t, 4, n.find(first))
	}
}

// What cannot be removed, damaged as it is, keeps no node from being ready.
func TestADamagedObjectThatStays(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n, keys := one(t, b)
	damaged := n.all()[0].name + blocksDir + "1"
	b.set(func() { b.objects[damaged] = make([]byte, 8) })
	b.deny("delete", damaged)
	other := newNode(t, options(b), 0)
	other.look()
	require.Equal(t, 8, other.find(keys))
	_, err := other.Delete(t.Context(), other.scope(), keys[4:])
	require.NoError(t, err)
}

// Where a deletion cannot be read, nothing of its namespace is found, but what others have is.
func TestADeletionThatIsRefused(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n, keys := one(t, b)
	_, err := n.Delete(t.Context(), n.scope(), keys[7:])
	require.NoError(t, err)
	n.open("another")
	n.put(keys)
	n.look()
	b.deny("get", deletedDir)
	other := newNode(t, options(b), 0)
	other.look()
	require.Zero(t, other.find(keys))
	_, err = other.Delete(t.Context(), other.scope(), keys[4:])
	require.NoError(t, err)
	other.open("another")
	require.Equal(t, 8, other.find(keys))

	b.set(func() { b.denies = nil })
	again := newNode(t, options(b), 0)
	again.look()
	require.Equal(t, 4, again.find(keys))
}

// A node begins while the bucket is away: it has its drives, deletes there, and says that the bucket does not know yet.
// When the bucket answers, what was deleted stays so.
func TestANodeBeginsWithoutTheBucket(t *testing.T) {
	t.Parallel()
	b := newShelf()
	_, keys := one(t, b)
	b.set(func() { b.away = true })
	late := newNode(t, options(b), 0)
	late.put(keys)
	require.Equal(t, 8, late.find(keys))
	_, err := late.Delete(t.Context(), late.scope(), keys[4:])
	require.ErrorIs(t, err, skep.Unavailable)
	require.Len(t, late.keys(), 4)
	require.ErrorIs(t, late.Purge(t.Context(), skep.Purge{Model: "another"}), skep.Unavailable)
	b.set(func() { b.away = false })
	late.look()
	require.Equal(t, 4, late.find(keys))
	_, err = late.Delete(t.Context(), late.scope(), keys[4:])
	require.NoError(t, err)
	again := newNode(t, options(b), 0)
	again.look()
	require.Equal(t, 4, again.find(keys))
}

// A node that was down sends nothing before it knows what was deleted without it. When it does, it loses that from its
// drives, forgets what it knew of the bucket, and removes what it has put a moment ago; the rest stays.
func TestANodeThatWasDown(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n := newNode(t, options(b), 0)
	keys, more := chain(1, 8), chain(2, 8)
	n.put(keys)
	n.look()
	o := options(b)
	var serves atomic.Bool
	o.Serves = serves.Load
	down := newNode(t, o, 0)
	down.put(append(more, keys...)[:8])
	down.look()
	require.Len(t, b.named(blocksDir), 1, "nothing is sent")
	require.Equal(t, 8, down.find(keys))

	_, err := n.Delete(t.Context(), n.scope(), keys[4:])
	require.NoError(t, err)
	down.Relearn()
	require.NoError(t, down.LoseNamespace(t.Context(), down.ns))
	down.open("n")
	serves.Store(true)
	require.Zero(t, down.find(keys), "it has to look first")
	require.Zero(t, down.find(more))
	down.look()
	require.Equal(t, 4, down.find(keys))
	others := b.named(blocksDir)
	require.Len(t, others, 1, "what others have stays")

	down.put(more)
	down.look()
	require.Len(t, b.named(blocksDir), 2)
	down.Relearn()
	serves.Store(false)
	down.look()
	require.Equal(t, others, b.named(blocksDir), "others may have deleted it and not have seen it")
}

// A node whose first look is under way when it hears that others have deleted without it takes nothing of that look.
func TestANodeThatWasDownAndIsLooking(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n, keys := one(t, b)
	made := make(chan *Store, 1)
	b.set(func() {
		b.before = func(call, name string) {
			if call != "get" || !strings.HasSuffix(name, specName) {
				return
			}
			b.set(func() { b.before = nil })
			_, err := n.Delete(t.Context(), n.scope(), keys[4:])
			assert.NoError(t, err)
			(<-made).Relearn()
		}
	})
	s, err := New(memstore.New(memstore.Options{}), options(b))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	made <- s
	require.NoError(t, s.isLoaded(t.Context()))
	down := &node{Store: s, t: t, own: s.Store.(*memstore.Store)}
	down.open("n")
	require.Zero(t, down.find(keys), "it has to look again")
	down.look()
	require.Equal(t, 4, down.find(keys))
}

// What is on its way when a node loses what it missed goes, too, whatever becomes of the call.
func TestAnObjectOnItsWayWhenANodeLosesWhatItMissed(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		b := newShelf()
		n := newNode(t, options(b), 0)
		keys := chain(1, 8)
		n.put(keys)
		b.set(func() {
			b.late = late
			b.before = func(call, name string) {
				if call == "put" && strings.Contains(name, blocksDir) {
					b.set(func() { b.before = nil })
					n.Relearn()
				}
			}
		})
		require.Equal(t, late, n.turn() != nil)
		n.evict()
		require.Zero(t, n.find(keys))
		n.look()
		b.arrive()
		again := newNode(t, options(b), 0)
		again.look()
		require.Zero(t, again.find(keys))
	}
}

// The index takes no more memory than it may. Beyond, nothing is sent, and what others have sent is left out; it can be
// deleted all the same.
func TestTheIndexIsBounded(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n := newNode(t, options(b), 0)
	var chains [][]skep.Key
	for i := range 4 {
		chains = append(chains, chain(i, 8))
		n.put(chains[i])
		n.look()
	}
	small := newNode(t, options(b), 0)
	small.held.most = 2 * memoryOf(8)
	small.Relearn()
	small.look()
	require.EqualValues(t, 2, small.Usage().Objects)
	require.EqualValues(t, 2, small.Usage().Unread)
	require.LessOrEqual(t, small.held.Load(), small.held.most)
	slices.SortFunc(chains, func(a, b []skep.Key) int { return small.find(a) - small.find(b) })
	require.Zero(t, small.find(chains[1]))
	require.Equal(t, 8, small.find(chains[2]))
	small.put(chain(9, 8))
	small.look()
	require.Len(t, b.named(blocksDir), 4)
	require.EqualValues(t, 8, small.Usage().Unindexed)

	_, err := small.Delete(t.Context(), small.scope(), chains[0][4:])
	require.NoError(t, err)
	again := newNode(t, options(b), 0)
	again.look()
	require.Equal(t, 4, again.find(chains[0]))
	require.Equal(t, 8, again.find(chains[1]))
	require.NoError(t, small.Purge(t.Context(), skep.Purge{Tenant: "t"}))
	require.Zero(t, small.held.Load())
	require.Empty(t, b.named(blocksDir))
}

// Where too much would have to be said of objects that are not read, a deletion fails, and they stay. What was said of
// them is not said again, and once they are read it can be made.
func TestADeletionOfWhatIsNotRead(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n := newNode(t, options(b), 0)
	keys, more := chain(1, 8), chain(2, 8)
	n.put(keys)
	n.look()
	n.put(more)
	n.look()
	b.deny("get", blocksDir)
	other := newNode(t, options(b), 0)
	other.look()
	remove := func(k skep.Key) error {
		_, err := other.Delete(t.Context(), other.scope(), []skep.Key{k})
		return err
	}
	sp := other.all()[0]
	sp.mu.Lock()
	for id := range sp.unread { // as of many deletions
		sp.unread[id] = leftOut{again: nextLook, said: maxNamed/2 - 2}
	}
	sp.mu.Unlock()
	for range 2 {
		require.NoError(t, remove(keys[7]))
	}
	require.NoError(t, remove(keys[6]))
	for range 2 {
		err := remove(keys[5])
		require.ErrorIs(t, err, skep.Unavailable)
		require.ErrorContains(t, err, b.named(blocksDir)[0])
	}
	require.Len(t, b.named(blocksDir), 2)

	b.set(func() { b.denies = nil })
	other.look()
	require.Equal(t, 6, other.find(keys))
	require.NoError(t, remove(keys[5]))
	again := newNode(t, options(b), 0)
	require.Equal(t, 5, again.find(keys))
	require.Equal(t, 8, again.find(more))
}

// Objects that no call reads for a moment stay, however much was deleted lately: who deletes then has to do it again.
func TestObjectsThatAreNotReadForAMoment(t *testing.T) {
	t.Parallel()
	for _, alone := range []bool{false, true} {
		t.Run(fmt.Sprint("alone ", alone), func(t *testing.T) { t.Parallel(); notReadForAMoment(t, alone) })
	}
}

func notReadForAMoment(t *testing.T, alone bool) {
	b := newShelf()
	o := options(b)
	o.Alone = alone
	o.ObjectBytes = blockSize
	n, other := newNode(t, o, 0), newNode(t, o, 0)
	const objects = mostFailed + 16
	_, err := other.Delete(t.Context(), other.scope(), chain(1, maxNamed/objects+maxNamed/(2*objects)))
	require.NoError(t, err)
	keys := chain(2, objects)
	n.put(keys)
	n.look()
	b.set(func() {
		b.before = func(call, name string) {
			b.set(func() { b.away = call == "get" && strings.Contains(name, blocksDir) })
		}
	})
	require.ErrorIs(t, other.turn(), skep.Unavailable)
	_, err = other.Delete(t.Context(), other.scope(), keys[objects-1:])
	require.ErrorIs(t, err, skep.Unavailable)
	require.Len(t, b.named(blocksDir), objects)

	b.set(func() { b.before, b.away = nil, false })
	_, err = other.Delete(t.Context(), other.scope(), keys[objects-1:])
	require.NoError(t, err)
	require.Equal(t, objects-1, other.find(keys))
}

// What is owed of objects that a look leaves out is bounded by objects times keys, too. Of those that leave the index
// nothing is: it is known what was deleted of them.
func TestWhatIsOwedOfUnreadObjects(t *testing.T) {
	t.Parallel()
	s := newSpace(testKey, &skep.NamespaceSpec{Tenant: "t", Name: "n"}, &held{most: 1 << 20})
	now := time.Now()
	_, err := s.forget(chain(1, maxNamed/100), now)
	require.NoError(t, err)
	known := newObject(s, "known", 1, [saltSize]byte{})
	require.NoError(t, s.adopt(known, []record{{key: chain(2, 1)[0]}}, nil, now, now))
	for i := range 200 {
		require.Equal(t, i >= 100, s.leave(fmt.Sprint(i), nextLook) != nil)
	}
	s.unlearn()
	owed := 0
	for _, keys := range s.owed {
		owed += len(keys)
	}
	require.LessOrEqual(t, owed, maxNamed)
	require.Len(t, s.unread, 101)
	require.Contains(t, s.unread, "known")
	require.Empty(t, s.owed["known"])
	require.Empty(t, s.condemned)
}

// Objects of which nobody knows are few: with so many nothing is sent.
func TestDoubtsAreFew(t *testing.T) {
	t.Parallel()
	b := newShelf()
	o := options(b)
	o.ObjectBytes = blockSize
	n := newNode(t, o, 0)
	n.put(chain(1, 40))
	b.set(func() { b.late = true })
	for range 2 * maxDoubts {
		_ = n.turn()
	}
	require.Len(t, b.coming, maxDoubts)
	require.Positive(t, n.Usage().Unindexed)
	b.arrive()
	n.look()
	n.look()
	require.EqualValues(t, 40, n.Usage().Blocks)
	require.Len(t, b.named(blocksDir), 40)
}

// A doubt ends when nothing can come any more, and so does what was said of it.
func TestADoubtEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newShelf()
		n := newNode(t, options(b), 0)
		keys := chain(1, 8)
		n.put(keys)
		b.set(func() { b.late = true })
		require.Error(t, n.turn())
		b.set(func() { clear(b.coming); b.late = false })
		_, err := n.Delete(t.Context(), n.scope(), keys)
		require.NoError(t, err)
		require.Len(t, b.named(unsureDir), 1)
		n.look()
		<-time.After(doubtFor - time.Minute)
		n.look()
		require.Len(t, b.named(unsureDir), 1)
		require.Len(t, b.named(announcedDir), 1)
		<-time.After(2 * time.Minute)
		n.look()
		require.Empty(t, b.named(announcedDir))
		require.Empty(t, n.all()[0].doubts)
		<-time.After(mostTimeout)
		n.look()
		require.Empty(t, b.named(unsureDir))
	})
}

// A call that fails once is made again, and paid for again; one of a bucket that is away is not.
func TestACallIsMadeAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newShelf()
		o := options(b)
		o.Budget = Budget{MoneyDay: 1000, LoadADay: 1 << 40, Prices: Prices{Read: 1}}
		n := newNode(t, o, 0)
		keys := chain(1, 8)
		n.put(keys)
		n.budget.money.has, n.budget.load.has = 10, 1<<30
		n.look()
		n.evict()
		b.set(func() {
			clear(b.calls)
			b.before = func(call, _ string) { b.set(func() { b.away = call == "get" && b.calls[call] == 0 }) }
		})
		was, loaded := n.budget.money.has, n.budget.load.has
		require.Equal(t, 8, n.load(keys))
		require.Equal(t, 2, b.calls["get"])
		require.InDelta(t, was-2, n.budget.money.has, .01)
		require.InDelta(t, loaded-2*float64(n.Usage().LoadedBytes), n.budget.load.has, 1)

		n.evict()
		b.set(func() { b.before, b.away = nil, true; clear(b.calls) })
		require.Zero(t, n.load(keys))
		require.Equal(t, 1+mostRepeats, b.calls["get"])
		require.Error(t, n.turn())
		require.Equal(t, 1, b.calls["list"])
		_, err := n.Delete(t.Context(), n.scope(), keys)
		require.ErrorIs(t, err, skep.Unavailable)
		require.Equal(t, 2, b.calls["list"])
	})
}
