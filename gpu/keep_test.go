package gpu_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
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

// forgetful is a Store whose blocks go when they were read, and before anybody is told that they are there.
type forgetful struct {
	skep.Store
	goes func()
}

type forgetfulSession struct {
	skep.Session
	of *forgetful
}

func (f *forgetful) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	ses, err := f.Store.Restore(ctx, r)
	return &forgetfulSession{ses, f}, err
}

func (s *forgetfulSession) Next(ctx context.Context, into []skep.Chunk) (int, error) {
	n, err := s.Session.Next(ctx, into)
	if goes := s.of.goes; goes != nil {
		s.of.goes = nil
		goes()
	}
	return n, err
}

// A block that was read before it was deleted is not kept after that: its name may come again with other bytes.
func TestABlockThatWentWhileItWasReadIsNotKept(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		goes func(*gpu.Store, skep.Scope, []skep.Key) error
		kept int
	}{
		"nothing went": {func(*gpu.Store, skep.Scope, []skep.Key) error { return nil }, 2},
		"a block": {func(s *gpu.Store, sc skep.Scope, keys []skep.Key) error {
			_, err := s.Delete(context.Background(), sc, keys[1:])
			return err
		}, 1},
		"a tenant's": {func(s *gpu.Store, _ skep.Scope, _ []skep.Key) error {
			return s.Purge(context.Background(), skep.Purge{Tenant: "t"})
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &forgetful{Store: memstore.New(memstore.Options{})}
			s := frontOf(t, f)
			sc, keys := chains(t, s, 2)
			f.goes = func() { require.NoError(t, tt.goes(s, sc, keys)) }
			load(t, s, sc, keys)
			u := s.Usage()
			require.Equal(t, tt.kept, u.Local+u.Lent)
			require.NoError(t, s.Close())
		})
	}
}
