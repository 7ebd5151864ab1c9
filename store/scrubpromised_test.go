package store

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// What the catalog promises to tell the drives, as it does while they are full, is not missing: a scrub names a
// namespace that no log has, and does not once that is promised.
func TestAScrubDoesNotMissWhatIsPromised(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, _, _ := openRig(t, unjudged)
	defer func() { require.NoError(t, s.Close()) }()
	openSpace(t, s, "n", skep.Durable, 1, true)
	g := openedBy(s, space.User)
	for i, d := range g.Drives {
		harmDrive(t, d, d.SegmentOffset(g.Segments[i]+1)-layout.PageSize+200, 8)
	}
	missing := func() (n int) {
		rep, err := s.Scrub(ctx, ScrubOptions{DryRun: true})
		require.NoError(t, err)
		for _, f := range rep.Faults {
			if strings.Contains(f.Problem, "no log has") {
				n++
			}
		}
		return n
	}
	require.Equal(t, 1, missing())
	b := s.catalog.NewBatch()
	for ns := range s.names.All() {
		var w segment.LogWriter
		require.NoError(t, w.Namespace(ns.Entry(s.root.Next())))
		s.logs.Intents.Put(b, &w)
	}
	require.NoError(t, s.catalog.Commit(ctx, b, true))
	require.Zero(t, missing())
}
