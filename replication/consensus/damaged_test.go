package consensus

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
)

// refused has a node say with what kind of error it does not start.
func (w *world) refused(t *testing.T, kind skep.Kind) {
	t.Helper()
	_, err := Open(w.options(1))
	require.Equal(t, kind, skep.KindOf(err), "%v", err)
	_, err = Read(w.options(1))
	require.Equal(t, kind, skep.KindOf(err), "%v", err)
}

// A node with an entry that is none, or of another version, does not start, and says so. It does where that is mended.
func TestANodeWithADamagedEntryDoesNotStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		defer w.end(t)
		m := w.start(t, 1, mapOf(1))
		for i := range 10 {
			change(t, m, *open1(fmt.Sprint("s", i)))
		}
		was := m.Map()
		w.stop(t, 1)
		set := func(index uint64, row []byte) (old []byte) {
			s := open(t, w.nodes[1].fs)
			b, closer, err := s.db.Get(entryKey(index))
			if err == nil {
				old = append(old, b...)
				require.NoError(t, closer.Close())
			}
			require.NoError(t, s.db.DeleteRange(entryKey(index), entryKey(index+1), pebble.Sync))
			if row != nil {
				require.NoError(t, s.db.Set(entryKey(index), row, pebble.Sync))
			}
			require.NoError(t, s.Close())
			return old
		}
		no, err := encodeEntry(&raft.Log{Term: 1, Type: raft.LogConfiguration, Data: []byte("no configuration")})
		require.NoError(t, err)
		for _, c := range []struct {
			index uint64
			row   []byte
			kind  skep.Kind
		}{
			{5, []byte("no entry"), skep.Damaged}, {5, append([]byte{entryVersion + 1}, no[1:]...), skep.Version},
			{5, nil, skep.Damaged}, {1, no, skep.Damaged},
		} {
			old := set(c.index, c.row)
			w.refused(t, c.kind)
			set(c.index, old)
		}
		m = w.start(t, 1, nil)
		eventually(t, "it has its map", func() bool { return epochOf(m.Map()) == was.Epoch })
		require.Equal(t, was, m.Map())
	})
}

// A node whose newest snapshot is damaged starts with the one before, as entries since that are kept. One that has none
// which can be read does not start, and says so.
func TestANodeWithADamagedSnapshot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		defer w.end(t)
		begin := func(found *clustermap.Map) (*Member, error) {
			o := w.options(1)
			o.SnapshotsIn = func(string) (raft.SnapshotStore, error) {
				return raft.NewFileSnapshotStoreWithLogger(dir, snapshotsKept, hclogOf(quiet))
			}
			o.Found = found
			return Open(o)
		}
		m, err := begin(mapOf(1))
		require.NoError(t, err)
		w.nodes[1].m = m
		n := 0
		snapshot := func() string {
			for range 10 {
				change(t, m, *open1(fmt.Sprint("s", n)))
				n++
			}
			f := m.raft.Snapshot()
			require.NoError(t, f.Error())
			meta, r, err := f.Open()
			require.NoError(t, err)
			require.NoError(t, r.Close())
			return meta.ID
		}
		snapshot()
		older, newest := snapshot(), snapshot()
		epoch := change(t, m, *open1("last"))
		first, err := m.logs.FirstIndex()
		require.NoError(t, err)
		require.Greater(t, first, uint64(1), "what both have is not kept")
		w.stop(t, 1)

		flip := func(id string) {
			at := filepath.Join(dir, "snapshots", id, "state.bin")
			b, err := os.ReadFile(at)
			require.NoError(t, err)
			b[len(b)/2] ^= 1
			require.NoError(t, os.WriteFile(at, b, 0o600))
		}
		flip(newest)
		m, err = begin(nil)
		require.NoError(t, err)
		w.nodes[1].m = m
		eventually(t, "it has its map", func() bool { return epochOf(m.Map()) == epoch })
		w.stop(t, 1)
		flip(older)
		_, err = begin(nil)
		require.Equal(t, skep.Damaged, skep.KindOf(err), "%v", err)
		for _, id := range []string{older, newest} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "snapshots", id, "meta.json"), []byte("{"), 0o600))
		}
		_, err = begin(nil)
		require.Equal(t, skep.Damaged, skep.KindOf(err), "%v", err)
	})
}

// A node that was sent a snapshot has no gap in its log.
func TestALogHasNoGapAfterASnapshot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := three(t)
		defer w.end(t)
		lead := w.awaitLeader(t)
		behind := 1 + lead%3
		w.cut(behind)
		for i := range 40 {
			change(t, w.nodes[lead].m, *open1(fmt.Sprint("s", i)))
		}
		require.NoError(t, w.nodes[lead].m.raft.Snapshot().Error())
		w.heal(behind)
		w.sameMaps(t, 41)
		w.sameMaps(t, change(t, w.nodes[w.awaitLeader(t)].m, *open1("later")))
		s := w.nodes[behind].m.logs
		first, err := s.FirstIndex()
		require.NoError(t, err)
		last, err := s.LastIndex()
		require.NoError(t, err)
		require.Greater(t, first, uint64(20), "it was sent a snapshot")
		for i := first; i <= last; i++ {
			require.NoError(t, s.GetLog(i, &raft.Log{}))
		}
	})
}

// inFiles is the options of a node that has its snapshots in files below dir.
func (w *world) inFiles(id int, dir string) Options {
	o := w.options(id)
	o.Dir, o.SnapshotsIn = dir, nil
	return o
}

// twice founds a cluster of nodes of which the first runs alone, and has it take two snapshots, which have no entry
// before. It gives the newest one's directory.
func twice(t *testing.T, w *world, nodes int, dir string) (newest string) {
	t.Helper()
	o := w.inFiles(1, dir)
	o.Found = mapOf(nodes)
	m, err := Open(o)
	require.NoError(t, err)
	w.nodes[1].m = m
	for i := range 40 {
		change(t, m, *open1(fmt.Sprint("s", i)))
		if i%20 == 19 {
			f := m.raft.Snapshot()
			require.NoError(t, f.Error())
			meta, r, err := f.Open()
			require.NoError(t, err)
			require.NoError(t, r.Close())
			newest = filepath.Join(dir, "snapshots", meta.ID)
		}
	}
	w.stop(t, 1)
	return newest
}

// A node whose newest snapshot is damaged sets it aside: a new node is sent the older one, and that stays when the next
// one comes.
func TestADamagedSnapshotIsSetAside(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		defer w.end(t)
		newest := twice(t, w, 2, dir)
		require.NoError(t, os.WriteFile(filepath.Join(newest, "state.bin"), []byte("none"), 0o600))
		m, err := Open(w.inFiles(1, dir))
		require.NoError(t, err)
		w.nodes[1].m = m
		require.FileExists(t, filepath.Join(dir, damagedDir, filepath.Base(newest), "state.bin"))
		first, err := m.logs.FirstIndex()
		require.NoError(t, err)
		require.Greater(t, first, uint64(1), "the log is sent")
		list, err := m.snapshots.List()
		require.NoError(t, err)
		w.start(t, 2, nil)
		w.sameMaps(t, 41)
		require.NoError(t, m.raft.Snapshot().Error())
		_, r, err := m.snapshots.Open(list[0].ID)
		require.NoError(t, err)
		require.NoError(t, r.Close())
	})
}

// A node with a snapshot that cannot be read, and whose log does not reach it, has forgotten what it agreed to: it does
// not start, also where no snapshot is in the list.
func TestANodeThatHasForgottenDoesNotStart(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(t *testing.T, newest string){
		"state.bin": func(t *testing.T, newest string) {
			require.NoError(t, os.WriteFile(filepath.Join(newest, "state.bin"), nil, 0o600))
		},
		"meta.json": func(t *testing.T, newest string) {
			list, err := filepath.Glob(filepath.Join(filepath.Dir(newest), "*", "meta.json"))
			require.NoError(t, err)
			require.Len(t, list, 2)
			for _, at := range list {
				require.NoError(t, os.WriteFile(at, []byte("{"), 0o600))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				newest := twice(t, w, 1, dir)
				s, err := openLogs(w.nodes[1].fs, filepath.Join(dir, "log"), quiet)
				require.NoError(t, err)
				require.NoError(t, s.db.DeleteRange([]byte{rowEntry}, []byte{rowEntry + 1}, pebble.Sync))
				require.NoError(t, s.Close())
				damage(t, newest)
				_, err = Open(w.inFiles(1, dir))
				require.Equal(t, skep.Damaged, skep.KindOf(err), "%v", err)
				_, err = Read(w.inFiles(1, dir))
				require.NoError(t, err, "a recovery goes on from what is left")
			})
		})
	}
}
