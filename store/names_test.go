package store

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// heldCommits is a catalog whose next commit does not return before it is let go, as one whose
// drive takes long over a sync.
type heldCommits struct {
	arm, at, go0 chan struct{}
}

func newHeldCommits() *heldCommits {
	return &heldCommits{make(chan struct{}, 1), make(chan struct{}), make(chan struct{})}
}

func (h *heldCommits) refuse() error {
	select {
	case <-h.arm:
		close(h.at)
		<-h.go0
	default:
	}
	return nil
}

// Lookups do not wait for namespaces that are made, purged or deleted: their commits are
// synced, and a drive may take as long over that as it likes.
func TestLookupsDoNotWaitForNames(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	for _, tt := range []struct {
		name string
		call func(s *Store, sc skep.Scope) error
	}{
		{"open", func(s *Store, _ skep.Scope) error {
			_, err := s.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "u", Name: "another", Shape: anySize})
			return err
		}},
		{"purge", func(s *Store, sc skep.Scope) error { return s.Purge(ctx, skep.Purge{Namespace: sc.Namespace}) }},
		{"purge of a salt", func(s *Store, sc skep.Scope) error {
			sc.Salt = "pepper"
			return s.Purge(ctx, skep.Purge{Salt: &sc})
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHeldCommits()
			s, _, _ := openRig(t, func(o *Options) { o.refuseCommits = h.refuse })
			sc, other := openSpace(t, s, "n", skep.Cache, 1, true), openSpace(t, s, "other", skep.Cache, 1, true)
			keys := chainKeys(1, 4)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))
			h.arm <- struct{}{}
			done := make(chan error, 1)
			go func() { done <- tt.call(s, other) }()
			<-h.at
			sc.Salt = "" // all of this ends while the commit hangs
			require.Equal(t, 4, stored(t, s, sc, keys))
			require.Zero(t, stored(t, s, skep.Scope{Namespace: sc.Namespace, Salt: "x"}, keys))
			requireChain(t, s, sc, keys, faultBlock)
			list, err := s.Namespaces(ctx)
			require.NoError(t, err)
			require.Len(t, list, 2)
			_, err = s.OpenNamespace(ctx, list[0].NamespaceSpec) // it is known
			require.NoError(t, err)
			close(h.go0)
			require.NoError(t, <-done)
			require.NoError(t, s.Close())
		})
	}
}

// Namespaces are made and purged by the hundred: each purge leaves nothing in memory that is
// not forgotten, and one goroutine sweeps for all of them.
func TestPurgesLeaveNothing(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s, _, _ := openRig(t, nil)
	for i := range 40 {
		sc := openSpace(t, s, sprintf("n%d", i%4), skep.Cache, 1, true)
		requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(i, 3), 600))
		require.NoError(t, s.Purge(ctx, skep.Purge{Namespace: sc.Namespace}))
	}
	eventually(t, "what was purged is swept", func() bool {
		return s.index.Stats().Blocks == 0 && len(s.index.Dead()) == 0 && !s.naming.Sweeping()
	})
	require.Equal(t, 4, s.names.Len())
	require.NoError(t, s.Close())
}
