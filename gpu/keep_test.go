package gpu_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
)

// meddler is a Store whose sessions' destinations somebody else writes to, when their bytes have
// been checked and before anybody is told that they are there.
type meddler struct {
	skep.Store
	dest []byte
}

type meddled struct {
	skep.Session
	of *meddler
}

func (m *meddler) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	ses, err := m.Store.Restore(ctx, r)
	return &meddled{ses, m}, err
}

func (m *meddled) Next(ctx context.Context, into []skep.Chunk) (int, error) {
	n, err := m.Session.Next(ctx, into)
	if len(m.of.dest) > 0 {
		m.of.dest[0] ^= 1
	}
	return n, err
}

// What is restored into memory that others can write comes to GPU memory only as it was put: a
// copy that was changed on the way is not kept, and nobody else gets it.
func TestMemoryThatOthersWriteIsNotKept(t *testing.T) {
	t.Parallel()
	for _, meddle := range []bool{false, true} {
		m := &meddler{Store: memstore.New(memstore.Options{})}
		s := frontOf(t, m)
		ctx := context.Background()
		sc, keys := chains(t, s, 1)
		first := make([]byte, 32<<10)
		if meddle {
			m.dest = first
		}
		restore := func(mem []byte) (tier skep.Tier) {
			ses, err := s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys, Dest: skep.Destination{Memory: mem}}}})
			require.NoError(t, err)
			var into [1]skep.Chunk
			_, err = ses.Next(ctx, into[:])
			require.NoError(t, err)
			require.NoError(t, into[0].Err)
			require.Nil(t, into[0].Sums, "nobody asked for them")
			require.NoError(t, ses.Close(ctx))
			return into[0].Tier
		}
		require.NotEqual(t, skep.TierGPU, restore(first))
		m.dest = nil
		second := make([]byte, len(first))
		require.Equal(t, !meddle, restore(second) == skep.TierGPU)
		if meddle {
			first[0] ^= 1
		}
		require.True(t, bytes.Equal(first, second))
		require.NoError(t, s.Close())
	}
}
