package bucket

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// A node that is alone does not look at the bucket for each deletion, unless a look ended before all was taken in: then
// it would not know of what it deletes a key.
func TestADeletionAfterALookThatEndedEarly(t *testing.T) {
	t.Parallel()
	b := newShelf()
	o := options(b)
	o.Alone = true
	before, keys := newNode(t, o, 0), chain(1, 8)
	before.put(keys)
	before.look()
	_, err := before.Delete(t.Context(), before.scope(), keys[7:])
	require.NoError(t, err)
	said := b.named(deletedDir)[0]
	was := b.objects[said]
	b.set(func() { b.objects[said] = make([]byte, 2*trailerSize) })

	n := newNode(t, o, 0)
	require.ErrorIs(t, n.turn(), skep.Version)
	remove := func() error {
		_, err := n.Delete(t.Context(), n.scope(), keys[4:])
		return err
	}
	require.ErrorIs(t, remove(), skep.Version)
	b.set(func() { b.objects[said] = was })
	require.NoError(t, remove())
	again := newNode(t, o, 0)
	again.look()
	require.Equal(t, 4, again.find(keys))

	b.set(func() { clear(b.calls) })
	require.NoError(t, remove())
	require.Zero(t, b.calls["list"])
}

// A node of an older version than one that deletes does not know what is deleted: it finds nothing that it knew of
// the namespace, until it can read that.
func TestADeletionOfANewerVersion(t *testing.T) {
	t.Parallel()
	b := newShelf()
	newer, older, keys := newNode(t, options(b), 0), newNode(t, options(b), 0), chain(1, 8)
	newer.put(keys)
	newer.look()
	older.look()
	require.Equal(t, 8, older.find(keys))
	_, err := newer.Delete(t.Context(), newer.scope(), keys[4:])
	require.NoError(t, err)
	said := b.named(deletedDir)[0]
	was := b.objects[said]
	b.set(func() { b.objects[said] = make([]byte, 2*trailerSize) })
	require.ErrorIs(t, older.turn(), skep.Version)
	require.Zero(t, older.find(keys))
	b.set(func() { b.objects[said] = was })
	older.look()
	require.Equal(t, 4, older.find(keys))
}

// A deletion is given up while an object with its keys is on its way, and the object is refused once it is there. The
// deletion that is made again is one of the object, too.
func TestADeletionThatIsGivenUpAndMadeAgain(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n, keys := newNode(t, options(b), 0), chain(1, 8)
	n.put(keys)
	b.set(func() {
		b.before = func(call, name string) {
			if call != "put" || !strings.Contains(name, blocksDir) {
				return
			}
			b.set(func() { b.before = nil })
			ctx, giveUp := context.WithCancel(t.Context())
			giveUp()
			_, err := n.Delete(ctx, n.scope(), keys[4:])
			assert.ErrorIs(t, err, skep.Deadline)
		}
	})
	n.look()
	n.evict()
	b.deny("get", blocksDir)
	require.Zero(t, n.load(keys))
	require.EqualValues(t, 1, n.Usage().Unread)
	_, err := n.Delete(t.Context(), n.scope(), keys[4:])
	require.NoError(t, err)
	b.set(func() { b.denies = nil })
	again := newNode(t, options(b), 0)
	again.look()
	require.Equal(t, 4, again.find(keys))
}

// tooMany is a node of which so much was deleted lately that of one object less than a bucket has can be said it.
func tooMany(t *testing.T, b *shelf) *node {
	t.Helper()
	const objects = 17
	o := options(b)
	o.ObjectBytes = blockSize
	n, from := newNode(t, o, 0), newNode(t, o, 0)
	_, err := n.Delete(t.Context(), n.scope(), chain(1, maxNamed/(objects-1)))
	require.NoError(t, err)
	from.put(chain(2, objects))
	from.look()
	_, err = from.Delete(t.Context(), from.scope(), chain(2, 1))
	require.NoError(t, err)
	return n
}

// A look at which too much would have to be said ends so until objects went: they count no more.
func TestUnreadObjectsThatWent(t *testing.T) {
	t.Parallel()
	for _, refused := range []string{blocksDir, deletedDir} {
		b := newShelf()
		n := tooMany(t, b)
		b.deny("get", refused)
		require.ErrorIs(t, n.turn(), skep.Unavailable)
		require.Error(t, n.turn())
		sp := n.all()[0]
		b.set(func() {
			for id := range sp.unread {
				delete(b.objects, sp.name+blocksDir+id)
			}
		})
		require.Len(t, b.named(blocksDir), 1)
		n.look()
		require.EqualValues(t, 1, n.Usage().Unread)
	}
}

// Those that are damaged go all the same.
func TestDamagedObjectsThatAreTooMany(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n := tooMany(t, b)
	b.set(func() {
		for name := range b.objects {
			if strings.Contains(name, blocksDir) {
				b.objects[name] = []byte("damaged")
			}
		}
	})
	require.ErrorIs(t, n.turn(), skep.Unavailable)
	require.Empty(t, b.named(blocksDir))
	n.look()
}

// Of an object that no node of this version reads, deletions fail in time. They say which it is, and go on once it was
// removed.
func TestAnObjectThatIsNeverRead(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n, keys := one(t, b)
	sp := n.all()[0]
	newer := sp.name + blocksDir + "1"
	b.set(func() { b.objects[newer] = make([]byte, 2*trailerSize) })
	n.look()
	sp.mu.Lock()
	require.Equal(t, never, sp.unread["1"].again)
	sp.unread["1"] = leftOut{again: never, said: maxNamed, since: sp.unread["1"].since} // as of many deletions
	sp.mu.Unlock()
	_, err := n.Delete(t.Context(), n.scope(), keys[7:])
	require.ErrorIs(t, err, skep.Unavailable)
	require.ErrorContains(t, err, newer+" (of another version)")
	b.set(func() { delete(b.objects, newer) })
	n.look()
	_, err = n.Delete(t.Context(), n.scope(), keys[7:])
	require.NoError(t, err)
}

// What is deleted again owes an object that was not read nothing.
func TestWhatIsDeletedAgainOwesNothing(t *testing.T) {
	t.Parallel()
	s := newSpace(testKey, &skep.NamespaceSpec{Tenant: "t", Name: "n"}, &held{most: 1 << 20})
	require.NoError(t, s.leave("1", nextLook))
	for _, owed := range []int{1, 0} {
		_, err := s.forget(chain(1, 8), time.Now())
		require.NoError(t, err)
		require.Len(t, s.owed, owed)
		clear(s.owed) // as once it was paid
	}
}

// Objects that are refused are tried after the others at the next look.
func TestObjectsThatAreRefusedAreTriedLast(t *testing.T) {
	t.Parallel()
	b := newShelf()
	o := options(b)
	o.ObjectBytes = blockSize
	const objects = 4 * indexesAtOnce
	from := newNode(t, o, 0)
	from.put(chain(1, objects))
	from.look()
	newest := b.named(blocksDir)[objects-indexesAtOnce:]
	b.set(func() {
		b.denies = func(call, name string) bool { return call == "get" && slices.Contains(newest, name) }
	})
	n := newNode(t, o, 0) // it has looked
	require.EqualValues(t, indexesAtOnce, n.Usage().Unread)
	n.Relearn() // all are to be read again
	others, before := 0, -1
	b.set(func() {
		b.before = func(call, name string) {
			b.set(func() {
				switch {
				case call != "get" || !strings.Contains(name, blocksDir):
				case !slices.Contains(newest, name):
					others++
				case before < 0:
					before = others
				}
			})
		}
	})
	n.look()
	require.Greater(t, before, objects-2*indexesAtOnce)
}

// An announcement of an object that has come goes, also while what says what is deleted is refused.
func TestAnAnnouncementWhereADeletionIsRefused(t *testing.T) {
	t.Parallel()
	b := newShelf()
	from, keys := one(t, b)
	n := newNode(t, options(b), 0)
	n.put(chain(2, 8))
	b.set(func() { b.late = true })
	require.Error(t, n.turn())
	b.arrive()
	b.deny("delete", announcedDir)
	_, err := from.Delete(t.Context(), from.scope(), keys[4:])
	require.NoError(t, err)
	require.Len(t, b.named(announcedDir), 1)
	b.deny("get", deletedDir)
	n.look()
	require.Empty(t, n.all()[0].doubts)
	require.Empty(t, b.named(announcedDir))
}

// A node that may not read what is deleted notes of an object that is on its way what is deleted of it all the same.
func TestAnObjectOnItsWayWhereADeletionIsRefused(t *testing.T) {
	t.Parallel()
	b := newShelf()
	from, keys := one(t, b)
	_, err := from.Delete(t.Context(), from.scope(), keys[7:])
	require.NoError(t, err)
	sent, later := newNode(t, options(b), 0), chain(2, 8)
	sent.put(later)
	b.set(func() { b.late = true })
	require.Error(t, sent.turn())

	b.deny("get", deletedDir)
	n := newNode(t, options(b), 0)
	n.look()
	_, err = n.Delete(t.Context(), n.scope(), later[4:])
	require.NoError(t, err)
	b.arrive()
	b.deny("", "")
	again := newNode(t, options(b), 0)
	again.look()
	require.Equal(t, 4, again.find(later))
	require.Equal(t, 7, again.find(keys))
}
