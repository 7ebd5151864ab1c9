package bucket

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
)

// killed is a process that has ended while it put these blocks: its object comes when the shelf's arrive is called.
func killed(t *testing.T, b *shelf, keys []skep.Key) {
	t.Helper()
	own := memstore.New(memstore.Options{})
	s, err := New(own, options(b))
	require.NoError(t, err)
	n := &node{Store: s, t: t, own: own}
	_ = n.turn() // its first round is over
	n.open("n")
	n.put(keys)
	b.set(func() { b.late = true })
	require.Error(t, n.turn())
	b.set(func() { b.late = false })
	require.NoError(t, n.Close())
}

// What a killed process was putting arrives after its blocks were deleted: a node that begins then finds none of them,
// whoever deleted them, whether or not the announcement could be read; what was not deleted it finds.
func TestWhatAKilledProcessWasPutting(t *testing.T) {
	t.Parallel()
	keys := chain(1, 8)
	some := func(n *node) error { _, err := n.Delete(n.t.Context(), n.scope(), keys[4:]); return err }
	all := func(n *node) error { return n.Purge(n.t.Context(), skep.Purge{Tenant: "t"}) }
	for _, c := range []struct {
		name           string
		remove         func(*node) error
		alone, refused bool
		found          int
	}{
		{name: "keys", remove: some, found: 4},
		{name: "keys, by the only node", remove: some, alone: true, found: 4},
		{name: "keys, not read", remove: some, refused: true},
		{name: "keys, not read, by the only node", remove: some, alone: true, refused: true},
		{name: "other keys", remove: func(n *node) error {
			_, err := n.Delete(n.t.Context(), n.scope(), chain(2, 8))
			return err
		}, found: 8},
		{name: "purge", remove: all},
		{name: "purge, not read", remove: all, refused: true},
		{name: "namespace", remove: func(n *node) error { return n.DeleteNamespace(n.t.Context(), n.ns) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newShelf()
			killed(t, b, keys)
			require.Len(t, b.named(announcedDir), 1)
			if c.refused {
				b.deny("get", announcedDir)
			}
			o := options(b)
			o.Alone = c.alone
			n := newNode(t, o, 0)
			require.NoError(t, c.remove(n))
			b.set(func() { b.denies = nil })
			b.arrive()
			require.Len(t, b.named(blocksDir), 1)
			for range 2 { // the second begins after the first has put its house in order
				again := newNode(t, options(b), 0)
				assert.Equal(t, c.found, again.find(keys))
			}
			assert.Empty(t, b.named(announcedDir), "it is there, or gone")
		})
	}
}

// Nothing is sent that could not be announced, and nothing is announced that is not to be sent.
func TestWhatIsNotAnnounced(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n := newNode(t, options(b), 0)
	keys := chain(1, 8)
	n.put(keys)
	b.deny("put", announcedDir)
	require.Error(t, n.turn())
	require.Empty(t, b.named(blocksDir))
	b.set(func() { b.denies = nil })

	_, err := n.Delete(t.Context(), n.scope(), keys)
	require.NoError(t, err)
	n.put(keys)
	var announced int
	b.set(func() {
		b.before = func(call, name string) {
			if call == "put" && strings.Contains(name, announcedDir) {
				announced++
			}
		}
	})
	n.look()
	require.Zero(t, announced)
	n.put(chain(2, 8))
	n.look()
	require.Equal(t, 1, announced)
	require.Len(t, b.named(blocksDir), 1)
	require.Empty(t, b.named(announcedDir))
}

// Where nobody knows what is in an object that may come yet, it is said once that all of it is deleted.
func TestOfWhatIsNotKnownAllIsSaidOnce(t *testing.T) {
	t.Parallel()
	b := newShelf()
	keys := chain(1, 8)
	killed(t, b, keys)
	b.deny("get", announcedDir)
	for range 2 { // the second one reads that it was said
		n := newNode(t, options(b), 0)
		for i := range 3 {
			_, err := n.Delete(t.Context(), n.scope(), keys[i:i+1])
			require.NoError(t, err)
		}
		require.Len(t, b.named(unsureDir), 1)
	}
	b.set(func() { b.denies = nil })
	b.arrive()
	again := newNode(t, options(b), 0)
	require.Zero(t, again.find(keys))
}

// What a killed process announced, and never comes, is removed by who looks, and so is what was said of it.
func TestAnAnnouncementEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newShelf()
		keys := chain(1, 8)
		killed(t, b, keys)
		n := newNode(t, options(b), 0)
		_, err := n.Delete(t.Context(), n.scope(), keys)
		require.NoError(t, err)
		require.Len(t, b.named(unsureDir), 1)
		<-time.After(saidFor - time.Minute)
		n.look()
		require.Len(t, b.named(announcedDir), 1)
		<-time.After(2 * time.Minute)
		n.look()
		require.Empty(t, b.named(announcedDir))
		n.look()
		require.Empty(t, b.named(unsureDir))
		require.Empty(t, n.all()[0].doubts)
	})
}

// Of many announcements of others' a node remembers the keys of some; nothing is sent less for them.
func TestAnnouncementsOfManyOthers(t *testing.T) {
	t.Parallel()
	b := newShelf()
	for i := range 2 * knownAnnounced {
		killed(t, b, chain(i, 1))
	}
	n := newNode(t, options(b), 0)
	known := 0
	for _, d := range n.all()[0].doubts {
		known += len(d.keys)
	}
	require.Equal(t, knownAnnounced, known)
	n.put(chain(999, 8))
	n.look()
	require.Len(t, b.named(blocksDir), 1)
	for i := range 2 * knownAnnounced {
		_, err := n.Delete(t.Context(), n.scope(), chain(i, 1))
		require.NoError(t, err)
	}
	b.arrive()
	again := newNode(t, options(b), 0)
	for i := range 2 * knownAnnounced {
		require.Zero(t, again.find(chain(i, 1)))
	}
	require.Equal(t, 8, again.find(chain(999, 8)))
}
