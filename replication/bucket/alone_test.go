package bucket

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// A node that is alone deletes without a look at the bucket: it has to know of each object that may be there. So it
// does where an object cannot be removed, where one comes that was sent again meanwhile, and where a call says that one
// is not there. What it has deleted stays so when it begins anew.
func TestWhatANodeThatIsAloneDeletes(t *testing.T) {
	t.Parallel()
	keys := chain(1, 8)
	for name, happens := range map[string]func(b *shelf, n *node) *node{
		"too many bytes that stay": func(b *shelf, n *node) *node {
			n.look()
			b.deny("delete", blocksDir)
			n.o.MaxBytes = 1
			require.ErrorIs(n.t, n.turn(), skep.Denied)
			return n
		},
		"sent twice": func(b *shelf, n *node) *node {
			b.set(func() { b.late = true })
			require.Error(n.t, n.turn())
			b.set(func() { b.late = false })
			n.look()
			b.arrive()
			require.Len(n.t, b.named(blocksDir), 2)
			b.deny("delete", blocksDir)
			n.look()
			return n
		},
		"blocks not found for a moment": func(b *shelf, n *node) *node {
			n.look()
			n.look() // it has seen it
			n.evict()
			b.set(func() { b.gone = blocksDir })
			require.Zero(n.t, n.load(keys))
			require.Zero(n.t, n.find(keys))
			return n
		},
		"an index not found for a moment": func(b *shelf, n *node) *node {
			n.look()
			b.set(func() { b.gone = blocksDir })
			return newNode(n.t, n.o, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newShelf()
			o := options(b)
			o.Alone = true
			n := newNode(t, o, 0)
			n.put(keys)
			n = happens(b, n)
			b.set(func() { b.gone, b.denies = "", nil; clear(b.calls) })
			_, err := n.Delete(t.Context(), n.scope(), keys[:1])
			require.NoError(t, err)
			require.Zero(t, b.calls["list"])
			again := newNode(t, options(b), 0)
			require.Zero(t, again.find(keys))
		})
	}
}

// What cannot be removed is counted, and nothing more is sent.
func TestNothingIsSentBesideWhatIsTooMuch(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n, _ := one(t, b)
	b.deny("delete", blocksDir)
	n.o.MaxBytes, n.stay = 2*blockSize, 0
	n.put(chain(2, 1))
	for range 2 {
		require.ErrorIs(t, n.turn(), skep.Denied)
		require.Len(t, b.named(blocksDir), 1)
	}
}

// Objects that the index does not have, for they are refused or nobody has their key, are bytes of the bucket, too:
// beside them no more is sent than may be.
func TestNothingIsSentBesideWhatIsNotRead(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]byte{"of no key": 1, "refused": testKey[0]} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newShelf()
			o := options(b)
			o.Key = bytes.Repeat([]byte{key}, KeySize)
			from, keys := newNode(t, o, 0), chain(1, 8)
			from.put(keys)
			from.look()
			strange := b.named(blocksDir)[0]
			b.deny("get", strange)
			o = options(b)
			o.MaxBytes = 16 * blockSize
			n := newNode(t, o, 0)
			n.put(chain(2, 4))
			n.look()
			n.put(chain(3, 4))
			n.look()
			require.Len(t, b.named(blocksDir), 2)
			require.EqualValues(t, 4, n.Usage().Refused)
			b.set(func() { delete(b.objects, strange) })
			n.look()
			require.Len(t, b.named(blocksDir), 2)
			require.EqualValues(t, 8, n.Usage().SentBlocks)
		})
	}
}
