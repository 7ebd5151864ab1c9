package bucket

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// Deletions of an object that stays become few objects, whoever looks at them meanwhile.
func TestDeletionsAreMerged(t *testing.T) {
	t.Parallel()
	b := newShelf()
	o := options(b)
	o.ObjectBytes = 4 * mergeAt * blockSize
	n, other := newNode(t, o, 0), newNode(t, o, 0)
	keys := chain(1, 4*mergeAt)
	n.put(keys)
	n.look()
	for i := 9; i < len(keys); i++ { // the first of them is what a node that begins would find first
		_, err := n.Delete(t.Context(), n.scope(), keys[i:i+1])
		require.NoError(t, err)
	}
	n.look()
	require.Less(t, len(b.named(deletedDir)), 2*mergeAt)
	require.Len(t, n.all()[0].heard, len(b.named(deletedDir)))
	for _, n := range []*node{n, other, newNode(t, o, 0)} {
		n.look()
		require.Equal(t, 9, n.find(keys))
	}
}

// A node lists deletions that another one merges before they are read: it lists again.
func TestDeletionsAreMergedWhileTheyAreListed(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n, other := newNode(t, options(b), 0), newNode(t, options(b), 0)
	keys := chain(1, 8)
	n.put(keys)
	n.look()
	for i := 7; i > 3; i-- {
		_, err := n.Delete(t.Context(), n.scope(), keys[i:i+1])
		require.NoError(t, err)
	}
	b.set(func() {
		b.before = func(call, name string) {
			if call != "get" || !strings.Contains(name, deletedDir) {
				return
			}
			b.set(func() { b.before = nil })
			sp := n.all()[0]
			l, err := n.list(t.Context(), sp.name+"/")
			require.NoError(t, err)
			for n := range 10 * mergeAt { // so that they are many
				l[sp.name].deleted = append(l[sp.name].deleted, l[sp.name].deleted[n])
			}
			require.NoError(t, n.merge(t.Context(), sp, l[sp.name]))
			require.Len(t, b.named(deletedDir), 1)
		}
	})
	other.look()
	require.Len(t, b.named(deletedDir), 1)
	require.Equal(t, 4, other.find(keys))
}

// A namespace that is gone leaves nothing in memory, once nobody can bring it back.
func TestSpacesAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newShelf()
		n, other := newNode(t, options(b), 0), newNode(t, options(b), 0)
		n.open("short")
		keys := chain(1, 8)
		n.put(keys)
		n.look()
		other.look()
		require.Len(t, other.all(), 2)
		require.NoError(t, n.DeleteNamespace(t.Context(), n.ns))
		require.NoError(t, other.Purge(t.Context(), skep.Purge{Tenant: "t"}))
		n.look()
		require.Len(t, n.all(), 2)
		<-time.After(pauseFor + time.Minute)
		n.look()
		other.look()
		require.Len(t, n.all(), 1)
		require.Len(t, other.all(), 1)
		n.open("short")
		n.put(keys)
		n.look()
		other.look()
		require.Len(t, other.all(), 2)
	})
}
