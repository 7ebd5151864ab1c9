package consensus

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/tools/drawn"
)

// crashes carries something out on copies of a node's drive, and gives what a crash leaves of one before each write:
// what was synced alone, as with power, or all that was written, as with a process.
func crashes(t *testing.T, h *host, o Options, rng *rand.Rand, do func(o Options) error) (left []*vfs.MemFS) {
	t.Helper()
	whole := h.fs
	for n := 1; ; n++ {
		drive := whole.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng})
		var mu sync.Mutex
		var after *vfs.MemFS
		writes := 0
		o.FS = errorfs.Wrap(drive, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			if writes++; writes == n {
				after = drive.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100 * rng.IntN(2), RNG: rng})
			}
			return nil
		}))
		require.NoError(t, do(o))
		if after == nil {
			require.Greater(t, n, 5, "there were writes")
			return left
		}
		left = append(left, after)
	}
}

// Whenever a node crashes amid its recovery, it is of the old cluster, or recovered. Asked again, it is recovered, and
// agrees with itself.
func TestACrashAmidARecovery(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(drawn.Seed(t), 1))
	synctest.Test(t, func(t *testing.T) {
		w := three(t)
		defer w.end(t)
		change(t, w.nodes[1].m, *open1("s"))
		was := w.sameMaps(t, 2)
		for id := 1; id <= 3; id++ {
			w.stop(t, id)
		}
		h, o := w.nodes[1], w.options(1)
		old, err := Read(o)
		require.NoError(t, err)
		lost := []string{"n2", "n3"}
		done, undone := 0, 0
		for _, left := range crashes(t, h, o, rng, func(o Options) error { _, err := Recover(o, lost, false); return err }) {
			h.fs = left
			kept, err := Read(w.options(1))
			require.NoError(t, err)
			if kept.Cluster == old.Cluster {
				require.Equal(t, old, kept)
				undone++
			} else {
				require.Equal(t, was.Epoch+clustermap.RecoveryEpochs, kept.Map.Epoch)
				require.Equal(t, []uint64{1}, kept.Voters)
				done++
			}
			r := w.recover(t, 1, lost...)
			require.Equal(t, was.Epoch, r.From)
			m := w.start(t, 1, nil)
			require.Equal(t, r.Cluster, m.Cluster())
			require.Equal(t, r.Map.Epoch+1, change(t, m, *open1("later")))
			w.stop(t, 1)
		}
		require.Positive(t, done)
		require.Positive(t, undone)
	})
}

// Whenever a node crashes while it goes over to a recovered cluster, it is of the one or the other, with all that it
// knew, or without any of it.
func TestACrashAmidAnAdoption(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(drawn.Seed(t), 1))
	synctest.Test(t, func(t *testing.T) {
		w := three(t)
		defer w.end(t)
		for _, name := range []string{"s", "later"} {
			change(t, w.nodes[1].m, *open1(name))
		}
		was := w.sameMaps(t, 3)
		require.NoError(t, w.nodes[2].m.raft.Snapshot().Error())
		for id := 1; id <= 3; id++ {
			w.stop(t, id)
		}
		h, o := w.nodes[2], w.options(2)
		const other = "6c0f3a5e9b1d4827a3c5e7f90b2d4861"
		done, undone := 0, 0
		for _, left := range crashes(t, h, o, rng, func(o Options) error { return Adopt(o, other) }) {
			h.fs = left
			kept, err := Read(w.options(2))
			require.NoError(t, err)
			if kept.Cluster == other {
				require.Equal(t, Kept{Cluster: other}, kept)
				done++
			} else {
				require.Equal(t, was, kept.Map)
				undone++
			}
			require.NoError(t, Adopt(w.options(2), other))
			kept, err = Read(w.options(2))
			require.NoError(t, err)
			require.Equal(t, Kept{Cluster: other}, kept)
			m := w.start(t, 2, nil)
			require.Nil(t, m.Map(), "it waits for a leader of its cluster")
			w.stop(t, 2)
		}
		require.Positive(t, done)
		require.Positive(t, undone)
	})
}
