package store

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/making"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/segment"
)

// leftover is what an interrupted step, or somebody, has left in a store's directory.
type leftover struct {
	name  string
	leave func(t testing.TB, dir string)
}

func leftFile(name, text string) func(t testing.TB, dir string) {
	return func(t testing.TB, dir string) {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(filepath.Dir(path)); err != nil {
			return // its directory is what the other took
		}
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
}

func leftovers() []leftover {
	return []leftover{
		{"the list of a making", func(t testing.TB, dir string) { leftList(t.(*testing.T), Options{Dir: dir}) }},
		{"a torn list of a making", leftFile(making.Name, `["/dev`)},
		{"no catalog", func(t testing.TB, dir string) { require.NoError(t, os.RemoveAll(filepath.Join(dir, "catalog"))) }},
		{"a catalog that was begun", func(t testing.TB, dir string) {
			require.NoError(t, os.RemoveAll(filepath.Join(dir, "catalog")))
			require.NoError(t, os.Mkdir(filepath.Join(dir, "catalog"), 0o755))
			leftFile("catalog/LOCK", "")(t, dir)
		}},
		{"a damaged manifest", func(t testing.TB, dir string) {
			list, err := filepath.Glob(filepath.Join(dir, "catalog", "MANIFEST-*"))
			require.NoError(t, err)
			for _, p := range list {
				require.NoError(t, os.WriteFile(p, []byte("damage"), 0o644))
			}
		}},
		{"a catalog set aside", func(t testing.TB, dir string) {
			if _, err := os.Stat(filepath.Join(dir, "catalog")); err == nil {
				copyStore(t, filepath.Join(dir, "catalog"), filepath.Join(dir, "catalog.old-20200101T000000.000"))
			}
		}},
		{"a file of the catalog half written", leftFile("catalog/OPTIONS-999999.dbtmp", "half")},
		{"the lock of a process that is gone", leftFile("LOCK", "process 1 (skep) on nowhere since 1970-01-01T00:00:00Z\n")},
		{"a socket nobody listens on", leftFile("admin.sock", "")},
		{"a device half added", leftFile("device-7", string(make([]byte, 192<<10)))},
		{"a device added without a row", func(t testing.TB, dir string) {
			b, err := os.ReadFile(filepath.Join(dir, "device-0"))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "device-8"), b, 0o644))
		}},
		{"a device of an add that was cut short", func(t testing.TB, dir string) {
			sb, err := segio.PeekSuperblock(filepath.Join(dir, "device-0"))
			require.NoError(t, err)
			sb.Sequence, sb.Device, sb.DeviceIndex, sb.DeviceCount = 1, segment.DeviceID{9}, 3, 4
			path := filepath.Join(dir, "device-3")
			leftFile("device-3", string(make([]byte, sb.DeviceBytes)))(t, dir)
			page := make([]byte, layout.PageSize)
			require.NoError(t, sb.Encode(page))
			overwrite(t, path, append(page, page...))
		}},
		{"a torn superblock", func(t testing.TB, dir string) { overwrite(t, filepath.Join(dir, "device-1"), make([]byte, 512)) }},
	}
}

// Whatever two interrupted steps have left, every acknowledged block is found by the open that
// follows and by the one after that, and no device loses a byte that a rebuild could use.
// SKEP_LEFTOVERS=all has every pair tried, not a few.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	o := threeDrives(tempRoot(t, "store"))
	keys := heldStore(t, o)
	list := leftovers()
	type pair struct{ a, b leftover }
	var pairs []pair
	for i, a := range list {
		for j, b := range list {
			if i != j {
				pairs = append(pairs, pair{a, b})
			}
		}
	}
	if os.Getenv("SKEP_LEFTOVERS") == "" {
		rng := newRand(testSeed(t))
		rng.Shuffle(len(pairs), func(i, j int) { pairs[i], pairs[j] = pairs[j], pairs[i] })
		pairs = pairs[:min(16, len(pairs))]
	}
	for _, p := range pairs {
		t.Run(p.a.name+" and "+p.b.name, func(t *testing.T) {
			c := o
			c.Dir = tempRoot(t, "store")
			copyStore(t, o.Dir, c.Dir)
			p.a.leave(t, c.Dir)
			p.b.leave(t, c.Dir)
			for range 2 {
				s, err := Open(ctx, c)
				require.NoError(t, err)
				requireChain(t, s, openSpace(t, s, "n", skep.Durable, 2, true), keys, 5000)
				require.Empty(t, s.space.AbsentDrives())
				require.NoError(t, s.Close())
				require.NoFileExists(t, filepath.Join(c.Dir, making.Name))
			}
			rep, err := Rebuild(ctx, c, true, nil)
			require.NoError(t, err)
			require.EqualValues(t, len(keys), rep.Blocks)
			require.Zero(t, rep.Missing)
			left, err := filepath.Glob(filepath.Join(c.Dir, "device-?"))
			require.NoError(t, err)
			require.True(t, slices.Contains(left, filepath.Join(c.Dir, "device-2")))
		})
	}
	t.Logf("%d pairs of %d leftovers", len(pairs), len(list))
}
