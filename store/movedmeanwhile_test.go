package store

import (
	"bytes"
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// A block is deleted after it was read to be written elsewhere. No copy of it is written, which the tombstone may not
// outlive: the group that the copy went to is newer.
func TestNoCopyIsWrittenOfWhatWasDeletedMeanwhile(t *testing.T) {
	t.Parallel()
	for name, move := range map[string]func(ctx context.Context, s *Store, g *space.Group) error{
		"by who compacts": func(ctx context.Context, s *Store, _ *space.Group) error {
			_, err := s.Compact(ctx, MoveOptions{All: true})
			return err
		},
		"by who cleans": func(ctx context.Context, s *Store, g *space.Group) error { return s.cleaner.Clean(ctx, g, true) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			s, r, o := openRig(t, func(o *Options) { well(o); o.CapacityBytes, o.taskEvery = 8<<20, hangs })
			sc, keys, g := putAway(t, s, skep.Durable)
			last := len(keys) - 1
			r.each(func(_ int, d *device.Fault) { d.Hold(device.Read) })
			done := make(chan error, 1)
			go func() { done <- move(ctx, s, g) }()
			require.NoError(t, waitHeld(r, 1))
			n, err := s.Delete(ctx, sc, keys[last:])
			require.NoError(t, err)
			require.Equal(t, 1, n)
			r.each(func(_ int, d *device.Fault) { d.Release() })
			require.NoError(t, <-done)
			eventually(t, "its group is freed", func() bool { return isFreed(g) })
			records := 0
			for _, g := range s.space.Groups() {
				require.NoError(t, s.space.ScanGroupLogs(ctx, g, func(_ *segment.Append, e segment.Entry) error {
					if e.Kind != segment.KindBlock {
						return nil
					}
					h, err := segment.PeekHead(e.Body)
					require.NotEqual(t, keys[last], h.Key)
					records++
					return err
				}))
			}
			require.Positive(t, records)
			requireChain(t, s, sc, keys[:last], faultBlock)
			require.False(t, s.space.AnyStale(), "there is nothing to be mended")
			require.NoError(t, s.Close())
			s = rebuilt(t, o)
			require.Equal(t, last, prefix(t, s, sc, keys))
			require.NoError(t, s.Close())
		})
	}
}

// A compaction moves all of one group, and a drive refuses what is written of another. It does not say that it is done.
func TestACompactionSaysWhatFailed(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, r, _ := openRig(t, func(o *Options) { well(o); o.CapacityBytes, o.taskEvery = 16<<20, hangs })
	defer func() { require.NoError(t, s.Close()) }()
	var scopes []skep.Scope
	for i := range 2 { // they are moved one after the other
		scopes = append(scopes, openSpace(t, s, "n"+itoa(i), skep.Cache, 1, true))
		requireOutcome(t, skep.Committed, putRun(t, s, scopes[i], chainKeys(i, 8), faultBlock))
		s.space.SealOpen(space.User)
	}
	eventually(t, "nobody writes to them", func() bool {
		return !slices.ContainsFunc(s.space.Groups(), func(g *space.Group) bool { return !s.space.IsIdle(g) })
	})
	refused := content(chainKeys(1, 1)[0], skep.PartKV, 1, faultBlock)[:64]
	r.each(func(_ int, d *device.Fault) {
		d.MustInject(device.Rule{Action: device.Fail, Kinds: device.Writes, Match: func(op *device.Op) bool {
			return slices.ContainsFunc(op.Bufs, func(b []byte) bool { return bytes.HasPrefix(b, refused) })
		}})
	})
	p, err := s.Compact(ctx, MoveOptions{All: true})
	requireKind(t, skep.DeviceFailed, err)
	require.Equal(t, 1, p.GroupsFreed)
	r.each(func(_ int, d *device.Fault) { d.Clear() })
	_, err = s.Compact(ctx, MoveOptions{All: true})
	require.NoError(t, err)
	for i, sc := range scopes {
		requireChain(t, s, sc, chainKeys(i, 8), faultBlock)
	}
}
