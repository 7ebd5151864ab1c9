package consensus

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/drawn"
)

// A cluster that is to be founded without space is founded once there is, also where an earlier version left a term.
func TestAFoundingWithoutSpaceIsDoneAgain(t *testing.T) {
	t.Parallel()
	for _, term := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			defer w.end(t)
			o := w.options(1)
			o.Found = mapOf(1)
			w.nodes[1].space(leastSpace - 1)
			_, err := Open(o)
			require.ErrorIs(t, err, skep.Full)
			s, err := openLogs(o.FS, "data/raft/log", quiet)
			require.NoError(t, err)
			_, err = s.GetUint64(termKey)
			require.ErrorIs(t, err, errNoValue, "nothing is left of it")
			if term {
				require.NoError(t, s.SetUint64(termKey, 1))
			}
			require.NoError(t, s.Close())

			w.nodes[1].space(2 * leastSpace)
			m := w.start(t, 1, mapOf(1))
			eventually(t, "it is founded", func() bool { return m.Map() != nil })
		})
	}
}

// Whenever a node crashes amid a founding, the cluster is founded by the next one.
func TestACrashAmidAFounding(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(drawn.Seed(t), 1))
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		defer w.end(t)
		o := w.options(1)
		h := w.nodes[1]
		left := crashes(t, h, o, rng, func(o Options) error {
			o.Found, o.Listener, h.snapshots = mapOf(1), w.listen("n1:1"), map[string]raft.SnapshotStore{}
			m, err := Open(o)
			if err != nil {
				return err
			}
			eventually(t, "it is founded", func() bool { return m.Map() != nil })
			return m.Close()
		})
		for _, fs := range left {
			h.fs, h.snapshots = fs, map[string]raft.SnapshotStore{}
			m := w.start(t, 1, mapOf(1))
			eventually(t, "it is founded", func() bool { return m.Map() != nil })
			w.stop(t, 1)
		}
	})
}
