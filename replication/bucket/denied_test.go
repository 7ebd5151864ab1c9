package bucket

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// size is what lies in the bucket.
func (s *shelf) size() (objects int, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.objects {
		bytes += int64(len(b))
	}
	return len(s.objects), bytes
}

// A storage that lets nothing be removed: what lies there stays within its bound, nothing of a sending that is refused
// is left behind, and what is deleted stays so. Once things can be removed again, they are, and sending goes on.
func TestAStorageThatDeniesDeletions(t *testing.T) {
	t.Parallel()
	b := newShelf()
	o := options(b)
	o.MaxBytes = 40 * blockSize
	b.deny("delete", "")
	n := newNode(t, o, 0)
	var chains [][]skep.Key
	var objects int
	for i := range 30 {
		chains = append(chains, chain(i, 8))
		n.put(chains[i])
		_ = n.turn()
		count, bytes := b.size()
		require.Less(t, bytes, o.MaxBytes+8*blockSize)
		if i >= 10 {
			require.Equal(t, objects, count, "round %d", i)
		}
		objects = count
	}
	first := b.named(blocksDir)
	_, err := n.Delete(t.Context(), n.scope(), chains[0])
	require.NoError(t, err)
	require.Zero(t, n.find(chains[0]))
	other := newNode(t, o, 0)
	_ = other.turn()
	require.Zero(t, other.find(chains[0]))
	require.Equal(t, 8, other.find(chains[1]))
	require.ErrorIs(t, n.Purge(t.Context(), skep.Purge{Namespace: n.ns}), skep.Denied)
	require.Zero(t, n.find(chains[1]))

	b.set(func() { b.denies = nil })
	require.NoError(t, n.Purge(t.Context(), skep.Purge{Namespace: n.ns}))
	sp := n.all()[0]
	sp.mu.Lock()
	sp.paused = time.Time{} // as a quarter of an hour later
	sp.mu.Unlock()
	n.put(chain(31, 8))
	for range 3 {
		n.look()
	}
	last := b.named(blocksDir)
	require.NotEmpty(t, last)
	require.NotSubset(t, first, last)
	require.Empty(t, b.named(announcedDir))
	again := newNode(t, o, 0)
	again.look()
	require.Zero(t, again.find(chains[1]))
	require.Equal(t, 8, again.find(chain(31, 8)))
}
