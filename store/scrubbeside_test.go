package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/space"
)

// What is made, purged or moved to another group's log while a scrub runs is not missing: the scrub judges what there
// was when it began, by all logs that may say it now.
func TestAScrubKnowsWhatHappensBesideIt(t *testing.T) {
	t.Parallel()
	for name, happens := range map[string]func(t *testing.T, s *Store, sc skep.Scope){
		"namespaces are made": func(t *testing.T, s *Store, _ skep.Scope) {
			openSpace(t, s, "later", skep.Durable, 1, true)
		},
		"a namespace is purged": func(t *testing.T, s *Store, sc skep.Scope) {
			require.NoError(t, s.Purge(testContext(t), skep.Purge{Namespace: sc.Namespace}))
		},
		"a salt is purged": func(t *testing.T, s *Store, sc skep.Scope) {
			sc.Salt = "salt"
			require.NoError(t, s.Purge(testContext(t), skep.Purge{Salt: &sc}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, sc, _ := openCopies(t, 1)
			defer func() { require.NoError(t, s.Close()) }()
			happened := 0
			rep, err := s.Scrub(testContext(t), ScrubOptions{DryRun: true, Progress: func(rep ScrubReport) {
				if rep.Groups == rep.OfGroups {
					happened++
					happens(t, s, sc)
				}
			}})
			require.NoError(t, err)
			require.Equal(t, 1, happened)
			require.True(t, rep.Sound(), "%+v", rep)
		})
	}
	t.Run("a group is cleaned before its turn", func(t *testing.T) {
		t.Parallel()
		ctx := testContext(t)
		s, _, _ := openCopies(t, 1)
		defer func() { require.NoError(t, s.Close()) }()
		s.space.SealOpen(space.User)
		sc := openSpace(t, s, "in the second group", skep.Durable, 1, true)
		sc.Salt = "salt"
		require.NoError(t, s.Purge(ctx, skep.Purge{Salt: &sc}))
		s.space.SealOpen(space.User)
		rep, err := s.Scrub(ctx, ScrubOptions{DryRun: true, Progress: func(rep ScrubReport) {
			if rep.Groups != 1 {
				return
			}
			require.GreaterOrEqual(t, rep.OfGroups, 2)
			for _, num := range s.space.Numbers(1) {
				eventually(t, "it is cleaned", func() bool {
					s.space.SealOpen(space.Kept) // the cleaner may have been quicker, and carried on what is kept
					g := s.space.Find(num)
					return g == nil || s.cleaner.Clean(ctx, g, true) == nil
				})
			}
		}})
		require.NoError(t, err)
		require.Less(t, rep.Groups, rep.OfGroups)
		require.True(t, rep.Sound(), "%+v", rep)
	})
}
