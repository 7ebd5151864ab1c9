package store

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// Who reads side rows while their block is deleted, put anew and given other rows finds those of one
// version, or none: nothing is damaged.
func TestSideRowsAreReadAtOneMoment(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, err := Open(ctx, small(tempRoot(t, "store")))
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	sc, k := openSpace(t, s, "keys", skep.Cache, 1, false), keyOf(1)
	versions := [][]byte{content(k, "a", 1, 9000), content(k, "a", 2, 9000)}
	read := func() {
		got, err := s.Sidecar(ctx, sc, k)
		if err != nil {
			assert.Equal(t, skep.NotFound, skep.KindOf(err), "%v", err)
			return
		}
		var whole []byte
		for _, p := range got {
			whole = append(whole, p.Bytes...)
		}
		assert.Contains(t, versions, whole)
	}
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					read()
				}
			}
		})
	}
	for i := range 100 {
		b := versions[i%2]
		putOne(t, s, sc, k, b)
		require.NoError(t, s.PutSidecar(ctx, sc, k, piecesOf(b, 20)))
		require.NoError(t, s.PutSidecar(ctx, sc, k, piecesOf(b, 30))) // the same version, cut anew
		if i%3 == 0 {
			_, err := s.Delete(ctx, sc, []skep.Key{k})
			require.NoError(t, err)
		}
	}
	close(done)
	readers.Wait()
}
