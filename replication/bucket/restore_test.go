package bucket

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
)

// A restore of later blocks brings those before them, too: a Store gives no block without what it continues.
func TestBlocksComeWithWhatTheyContinue(t *testing.T) {
	t.Parallel()
	n := newNode(t, options(newShelf()), 0)
	keys := chain(1, 16)
	n.put(keys)
	n.look()
	n.evict()
	ses, err := n.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{{Scope: n.scope(), Keys: keys,
		Blocks: skep.Only(10, 14)}}})
	require.NoError(t, err)
	blocks, err := drain(t.Context(), ses)
	require.NoError(t, err)
	require.Equal(t, 4, blocks)
	require.NoError(t, ses.Close(t.Context()))
}

// What is wrong with a request is said at once, wherever its blocks are.
func TestWhatIsWrongIsSaidAtOnce(t *testing.T) {
	t.Parallel()
	n := newNode(t, options(newShelf()), 0)
	keys := chain(1, 4)
	n.put(keys)
	n.look()
	_, err := n.own.Delete(t.Context(), n.scope(), keys[2:])
	require.NoError(t, err)
	mem := make([]byte, 4*blockSize)
	for name, dest := range map[string]skep.Destination{
		"stride": {Memory: mem, Stride: -1}, "memory": {Memory: mem[1:]}, "both": {Memory: mem, Paged: &skep.Paged{}},
	} {
		c := skep.Chain{Scope: n.scope(), Keys: keys, Dest: dest}
		_, err := n.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{c}})
		require.ErrorIs(t, err, skep.Invalid, name)
	}
}

// What the drives have comes before what is fetched, also into memory of which the Store chooses the stride.
func TestMemoryWithoutAStride(t *testing.T) {
	t.Parallel()
	b := newShelf()
	n := newNode(t, options(b), 0)
	keys := chain(1, 16)
	n.put(keys)
	n.look()
	_, err := n.own.Delete(t.Context(), n.scope(), keys[8:])
	require.NoError(t, err)
	goOn := make(chan struct{})
	b.hold("", goOn)
	mem := make([]byte, 16*blockSize)
	ses, err := n.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{{Scope: n.scope(), Keys: keys,
		Dest: skep.Destination{Memory: mem}}}})
	require.NoError(t, err)
	into := make([]skep.Chunk, 8)
	for got := 0; got < 8; {
		k, err := ses.Next(t.Context(), into)
		require.NoError(t, err)
		for _, c := range into[:k] {
			require.NoError(t, c.Err)
		}
		got += k
	}
	close(goOn)
	blocks, err := drain(t.Context(), ses)
	require.NoError(t, err)
	require.Equal(t, 8, blocks)
	require.NoError(t, ses.Close(t.Context()))
	for i, k := range keys {
		require.True(t, bytes.Equal(storetest.Payload(k, skep.PartKV, blockSize), mem[i*blockSize:][:blockSize]), "block %d", i)
	}
}
