package store

import (
	"context"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/space"
)

// A crash in the midst of cleaning can leave a store in which every group is in use, the one that
// cleaning keeps for itself too. A group in which nothing lives is free all the same, though what
// its log says of namespaces and deletions has nowhere to go: the catalog promises it until then.
func TestNoGroupLeftToCleanWith(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		until func(s *Store) bool
		held  bool // the segments are not free before the store is closing
	}{
		{"until all is on the devices", func(s *Store) bool { return s.logs.Intents.None() }, false},
		{"closed as soon as it is promised", func(s *Store) bool { return len(s.space.Numbers(0)) < 2 }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, r, o := openRig(t, func(o *Options) { o.CapacityBytes, o.SpaceTimeout = 2<<20, 50*time.Millisecond })
			sc := openSpace(t, s, "n", skep.Durable, 2, true)
			gone, kept := chainKeys(1, 3), chainKeys(2, 3)
			for _, keys := range [][]skep.Key{gone, kept} { // the first group's log names the namespace
				requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, 5000))
				s.space.SealOpen(space.User)
			}
			eventually(t, "the spares are made", func() bool { return !s.space.Sparing() })
			taken := takeAll(t, s)

			if tt.held { // and there is no other to clean
				last := s.space.Numbers(0)[1]
				s.claimed(t, last)
				r.each(func(_ int, d *device.Fault) { d.Hold(device.Write) })
				closing := s.closing
				go func() {
					<-closing
					r.each(func(_ int, d *device.Fault) { d.Release() })
				}()
			}
			_, err := s.Delete(testContext(t), sc, gone)
			require.NoError(t, err)
			eventually(t, tt.name, func() bool { return tt.until(s) })
			requireChain(t, s, sc, kept, 5000)
			s.unwant(taken)
			require.NoError(t, s.Close())

			o.CatalogFS = vfs.NewMem() // the catalog is lost
			_, err = Rebuild(testContext(t), o, false, nil)
			require.NoError(t, err)
			s, err = Open(context.Background(), o)
			require.NoError(t, err)
			defer func() { require.NoError(t, s.Close()) }()
			requireChain(t, s, sc, kept, 5000)
			n, _ := requireRight(t, s, sc, gone, 5000)
			require.Zero(t, n, "deleted blocks are back")
		})
	}
}

// takeAll takes every free group and spare.
func takeAll(t *testing.T, s *Store) (taken []*space.Group) {
	s.space.Inside().Lock()
	taken, s.space.Inside().Spares = s.space.Inside().Spares, nil
	s.space.Inside().Unlock()
	for {
		g, err := s.space.NewGroup(testContext(t), 0)
		if skep.KindOf(err) == skep.Full {
			return taken
		}
		require.NoError(t, err)
		taken = append(taken, g)
	}
}
