package store

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
)

// Puts whose callers give up while a group is opened cost no space.
func TestGroupOpenedForNobody(t *testing.T) {
	t.Parallel()
	s, r, _ := openRig(t, nil)
	defer func() { require.NoError(t, s.Close()) }()
	sc := openSpace(t, s, "n", skep.Cache, 1, true)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1, 1), 5000))
	eventually(t, "the spares are made", func() bool { return !s.space.Sparing() })
	before := s.space.Free()
	over, cancel := context.WithCancel(context.Background())
	cancel()
	r.each(func(_ int, d *device.Fault) { d.Hold(device.Write) }) // or the headers may be there before anybody gives up
	for range 3 {
		_, err := s.space.NewGroup(over, 0)
		require.Equal(t, skep.Deadline, skep.KindOf(err), "%v", err)
	}
	r.each(func(_ int, d *device.Fault) { d.Release() })
	eventually(t, "the segments are back", func() bool { return s.space.Free() == before })
}
