package store

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/space"
)

// An orderly end leaves a mark on the devices that an older catalog does not know, also
// when the group that is open has no page left for it.
func TestAFullGroupLeavesALastMark(t *testing.T) {
	t.Parallel()
	o := small(tempRoot(t, "store"))
	o.CacheBytes, o.FlushInterval = -1, time.Hour
	s, err := Open(testContext(t), o)
	require.NoError(t, err)
	sc, key := openSpace(t, s, "keys", skep.Cache, 1, false), keyOf(1)
	put := func(version int) {
		res, err := s.Put(testContext(t), &skep.PutRequest{Scope: sc, Blocks: []skep.Block{{Key: key, Parts: []skep.Part{{Bytes: content(key, "", version, 900)}}}}})
		require.NoError(t, err)
		requireOutcome(t, skep.Committed, res)
	}
	put(1)
	old := tempRoot(t, "old")
	copyDir(t, filepath.Join(o.Dir, "catalog"), old)
	put(2)
	eventually(t, "a spare is ready", func() bool {
		s.space.Inside().Lock()
		defer s.space.Inside().Unlock()
		return len(s.space.Inside().Spares) > 0
	})
	s.space.Inside().Lock()
	g := s.space.Inside().Open[space.User]
	for d := range g.Drives {
		for {
			if _, ok := g.Filler.Log(d, 1); !ok {
				break
			}
		}
	}
	s.space.Inside().Unlock()
	require.NoError(t, s.Close())

	require.NoError(t, os.RemoveAll(filepath.Join(o.Dir, "catalog")))
	copyDir(t, old, filepath.Join(o.Dir, "catalog"))
	s, err = Open(testContext(t), o)
	require.NoError(t, err)
	list, err := fetch(testContext(t), s, skep.Chain{Scope: sc, Keys: []skep.Key{key}})
	require.NoError(t, err)
	require.NoError(t, list[0].err)
	require.Equal(t, content(key, "", 2, 900), list[0].data)
	require.NoError(t, s.Close())
}
