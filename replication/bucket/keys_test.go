package bucket

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
)

// Keys change while nodes run: each reads what the others write, with whichever key, and deletions hold. What comes
// back is sent with the new key, and the old one's objects go.
func TestKeysChange(t *testing.T) {
	t.Parallel()
	b := newShelf()
	with := func(key, other byte) Options {
		o := options(b)
		o.Key = bytes.Repeat([]byte{key}, KeySize)
		if other != 0 {
			o.OtherKey = bytes.Repeat([]byte{other}, KeySize)
		}
		return o
	}
	old := newNode(t, with(1, 0), 0)
	first, second := chain(1, 16), chain(2, 8)
	old.put(first[:8])
	old.look()

	reads, swapped := newNode(t, with(1, 2), 0), newNode(t, with(2, 1), 0)
	swapped.look()
	require.Equal(t, 8, swapped.find(first))
	require.Equal(t, 8, swapped.load(first))
	swapped.put(first[:16])
	swapped.put(second)
	swapped.look()
	reads.look()
	require.Equal(t, 16, reads.find(first), "the old key's objects and the new one's go together")
	require.Equal(t, 16, reads.load(first))
	require.Equal(t, 8, reads.load(second))
	_, err := reads.Delete(t.Context(), reads.scope(), first[4:])
	require.NoError(t, err)
	for _, o := range []Options{with(1, 2), with(2, 1), with(1, 0), with(2, 0)} {
		n := newNode(t, o, 0)
		n.look()
		require.Equal(t, 4, n.find(first))
	}

	o := with(2, 1)
	o.DropOther = true
	last := newNode(t, o, 0)
	last.look()
	last.look()
	require.Zero(t, last.Usage().OtherKey)
	gone := newNode(t, with(1, 0), 0)
	gone.look()
	require.Zero(t, gone.find(first))
	alone := newNode(t, with(2, 0), 0)
	alone.look()
	require.Equal(t, 4, alone.load(first))
	require.Equal(t, 8, alone.load(second))
	require.Zero(t, alone.Usage().Damaged)

	for _, other := range [][]byte{{1}, o.Key} {
		o.OtherKey = other
		_, err := New(memstore.New(memstore.Options{}), o)
		require.ErrorIs(t, err, skep.Invalid)
	}
}

// A purge removes what any key has.
func TestAPurgeWhileKeysChange(t *testing.T) {
	t.Parallel()
	b := newShelf()
	o := options(b)
	n := newNode(t, o, 0)
	n.put(chain(1, 8))
	n.look()
	o.OtherKey = o.Key
	o.Key = bytes.Repeat([]byte{9}, KeySize)
	next := newNode(t, o, 0)
	next.put(chain(2, 8))
	next.look()
	require.Len(t, b.named(blocksDir), 2)
	require.NoError(t, next.Purge(t.Context(), skep.Purge{Tenant: "t"}))
	require.Empty(t, b.named(blocksDir))
}

// Of the other key nothing stays, what was deleted of its objects on their way neither, once they cannot come any more.
func TestNothingOfTheOtherKeyStays(t *testing.T) {
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
		require.NoError(t, n.Close())

		o := options(b)
		o.Key, o.OtherKey, o.DropOther = bytes.Repeat([]byte{9}, KeySize), o.Key, true
		next := newNode(t, o, 0)
		next.look()
		said := b.named(unsureDir)
		require.NotEmpty(t, said)
		next.look()
		require.Equal(t, said, b.named(unsureDir), "it is said once")
		<-time.After(saidFor + time.Minute)
		next.look()
		require.Empty(t, b.named(unsureDir))
		require.Empty(t, b.named(announcedDir))
	})
}
