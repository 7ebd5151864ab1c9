package store

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/making"
)

// leftList writes the list of a making that was cut off, as a store of dir would have left it.
func leftList(t *testing.T, o Options) {
	paths, err := filepath.Glob(filepath.Join(o.Dir, "device-*"))
	require.NoError(t, err)
	for i := range paths {
		paths[i], err = filepath.Abs(paths[i])
		require.NoError(t, err)
	}
	b, err := json.Marshal(paths)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(o.Dir, making.Name), b, 0o644))
}

// filled is a closed store with some blocks.
func filled(t *testing.T, o Options) (keys []skep.Key) {
	s, err := Open(context.Background(), o)
	require.NoError(t, err)
	keys = chainKeys(1, 20)
	putRun(t, s, openSpace(t, s, "n", skep.Durable, 1, true), keys, 5000)
	require.NoError(t, s.Close())
	return keys
}

func requireFilled(t *testing.T, o Options, keys []skep.Key) {
	s, err := Open(context.Background(), o)
	require.NoError(t, err)
	requireChain(t, s, openSpace(t, s, "n", skep.Durable, 1, true), keys, 5000)
	require.NoError(t, s.Close())
}

// A list of what a making was about to make is no leave to remove what holds data: whatever
// became of the catalog, the blocks are found.
func TestListOfAMakingNeverRemovesData(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(t *testing.T, o Options){
		"the catalog is lost": func(t *testing.T, o Options) {
			require.NoError(t, os.RemoveAll(filepath.Join(o.Dir, "catalog")))
		},
		"the catalog is damaged": func(t *testing.T, o Options) {
			list, err := filepath.Glob(filepath.Join(o.Dir, "catalog", "MANIFEST-*"))
			require.NoError(t, err)
			require.NotEmpty(t, list)
			for _, p := range list {
				require.NoError(t, os.WriteFile(p, []byte("damage"), 0o644))
			}
		},
		"the superblocks are gone with it": func(t *testing.T, o Options) {
			require.NoError(t, os.RemoveAll(filepath.Join(o.Dir, "catalog")))
			for _, d := range []string{"device-0", "device-1"} {
				f, err := os.OpenFile(filepath.Join(o.Dir, d), os.O_RDWR, 0)
				require.NoError(t, err)
				_, err = f.WriteAt(make([]byte, 64<<10), 0)
				require.NoError(t, errors.Join(err, f.Close()))
			}
		},
		"one device was never written to": func(t *testing.T, o Options) {
			require.NoError(t, os.RemoveAll(filepath.Join(o.Dir, "catalog")))
			require.NoError(t, os.Rename(filepath.Join(o.Dir, "device-1"), filepath.Join(o.Dir, "aside")))
			require.NoError(t, os.WriteFile(filepath.Join(o.Dir, "device-1"), make([]byte, 1<<20), 0o644))
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := small(tempRoot(t, "store"))
			keys := filled(t, o)
			leftList(t, o)
			lose(t, o)
			before := contents(t, o.Dir)
			s, err := Open(context.Background(), o)
			if err == nil {
				require.NoError(t, s.Close())
				requireFilled(t, o, keys)
				require.NoFileExists(t, filepath.Join(o.Dir, making.Name))
				return
			}
			require.NotEqual(t, "the catalog is lost", name)
			require.NotEqual(t, "the catalog is damaged", name)
			after := contents(t, o.Dir)
			for path, b := range before {
				if filepath.Base(filepath.Dir(path)) != "catalog" && filepath.Base(path) != "LOCK" {
					require.Equal(t, b, after[path], path)
				}
			}
		})
	}
}

// contents is every file under dir.
func contents(t *testing.T, dir string) map[string]string {
	out := map[string]string{}
	require.NoError(t, filepath.Walk(dir, func(path string, i os.FileInfo, err error) error {
		if err != nil || !i.Mode().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		out[path] = string(b)
		return err
	}))
	return out
}

// An open of a store that is there takes the list away, and so does a rebuild.
func TestListOfAMakingIsTakenAway(t *testing.T) {
	t.Parallel()
	o := small(tempRoot(t, "store"))
	keys := filled(t, o)
	leftList(t, o)
	requireFilled(t, o, keys)
	require.NoFileExists(t, filepath.Join(o.Dir, making.Name))
	leftList(t, o)
	_, err := Rebuild(context.Background(), o, false, nil)
	require.NoError(t, err)
	require.NoFileExists(t, filepath.Join(o.Dir, making.Name))
	requireFilled(t, o, keys)
}

// A store is made only once the list is durably gone: who cannot take it away says so, and
// what was made stays.
func TestListThatStaysIsToldOf(t *testing.T) {
	t.Parallel()
	o := small(tempRoot(t, "store"))
	o.removeList = func(string) error { return errors.New("no") }
	_, err := Open(context.Background(), o)
	require.ErrorContains(t, err, making.Name)
	require.FileExists(t, filepath.Join(o.Dir, making.Name))
	o.removeList = nil
	requireFilled(t, o, filled(t, o))
	require.NoFileExists(t, filepath.Join(o.Dir, making.Name))
}

// A directory copied with its list takes nothing from the original.
func TestListOfACopyIsNotTheOriginals(t *testing.T) {
	t.Parallel()
	o := small(tempRoot(t, "store"))
	keys := filled(t, o)
	c := o
	c.Dir = tempRoot(t, "copy")
	require.NoError(t, os.MkdirAll(c.Dir, 0o755))
	leftList(t, o)
	require.NoError(t, os.Rename(filepath.Join(o.Dir, making.Name), filepath.Join(c.Dir, making.Name)))
	filled(t, c)
	requireFilled(t, o, keys)
}
