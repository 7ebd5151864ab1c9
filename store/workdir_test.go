package store

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// A store that was opened by relative paths stays where it is when the process changes its working directory:
// its devices, its catalog, its socket, and what is made while it is open.
//
// Alone: the working directory is the process's.
func TestTheWorkingDirectoryMayChange(t *testing.T) {
	root, elsewhere := t.TempDir(), t.TempDir()
	t.Chdir(root)
	var mu sync.Mutex
	var relative []string
	path := regexp.MustCompile(`[\w./-]*catalog[\w./-]*`)
	o := Options{Dir: "st", DeviceCount: 1, CapacityBytes: 64 << 20, BlockBytes: 64 << 10, IOBytes: 16 << 20, CacheBytes: -1, Admin: true,
		CatalogFS: vfs.WithLogging(vfs.Default, func(format string, args ...any) {
			for _, p := range path.FindAllString(fmt.Sprintf(format, args...), -1) {
				if mu.Lock(); !filepath.IsAbs(p) {
					relative = append(relative, p)
				}
				mu.Unlock()
			}
		})}
	s, err := Open(t.Context(), o)
	require.NoError(t, err)
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	keys, later := chainKeys(1, 10), chainKeys(2, 10)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, faultBlock))

	t.Chdir(elsewhere)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, later, faultBlock))
	require.NoError(t, s.AddDevice(t.Context(), NewDevice{Path: "added"}))
	t.Chdir(root)
	require.ErrorContains(t, s.FindDevice("added"), "device")
	t.Chdir(elsewhere)
	require.NoError(t, s.FindDevice("added"), "a name is of the directory it is given in")
	t.Chdir(root)
	var st skep.Stats
	require.NoError(t, AskAdmin(t.Context(), filepath.Join(root, "st"), "stats", &st))
	t.Chdir(elsewhere)
	require.NoError(t, s.Close())
	require.NoFileExists(t, filepath.Join(root, "st", AdminSocket))
	require.Empty(t, relative, "the catalog is kept by absolute paths")
	list, err := os.ReadDir(elsewhere)
	require.NoError(t, err)
	require.Len(t, list, 1, "the device that was added, and nothing else")

	o.CatalogFS, o.Dir = nil, filepath.Join(root, "st")
	s, err = Open(t.Context(), o)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	requireChain(t, s, sc, keys, faultBlock)
	requireChain(t, s, sc, later, faultBlock)
	require.NoError(t, s.FindDevice(filepath.Join(elsewhere, "added")))
}

// Devices and a catalog that are named by relative paths, too.
//
// Alone: the working directory is the process's.
func TestNamedPathsAreOfTheWorkingDirectoryAtTheOpen(t *testing.T) {
	root := t.TempDir()
	t.Chdir(root)
	o := Options{Dir: "st", CatalogDir: "rows", Devices: []string{"d0", "d1"}, CapacityBytes: 64 << 20, BlockBytes: 64 << 10, IOBytes: 16 << 20, CacheBytes: -1}
	s, err := Open(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, []string{"d0", "d1"}, o.Devices, "the caller's own list is left alone")
	t.Chdir(t.TempDir())
	for _, d := range s.members.All() {
		require.Equal(t, filepath.Join(root, filepath.Base(d.Path)), d.Path)
	}
	require.Equal(t, filepath.Join(root, "rows"), s.options.catalogDir())
	require.NoError(t, s.Close())
	_, err = os.Stat(filepath.Join(root, "rows"))
	require.NoError(t, err)
}

// One registry shows the metrics of one store: a second is refused before anything is made, and has a way.
// One that was closed is let go of.
func TestOneRegistryIsOfOneStore(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	o := Options{Dir: t.TempDir(), DeviceCount: 1, CapacityBytes: 64 << 20, BlockBytes: 64 << 10, IOBytes: 16 << 20, CacheBytes: -1, Registerer: reg}
	a, err := Open(t.Context(), o)
	require.NoError(t, err)
	second := o
	second.Dir = filepath.Join(t.TempDir(), "second")
	_, err = Open(t.Context(), second)
	requireKind(t, skep.Conflict, err)
	require.ErrorContains(t, err, "WrapRegistererWith")
	require.NoFileExists(t, second.Dir)
	names := func() map[string]int {
		families, err := reg.Gather()
		require.NoError(t, err)
		n := map[string]int{}
		for _, f := range families {
			n[f.GetName()] = len(f.GetMetric())
		}
		return n
	}
	require.Equal(t, 1, names()["skep_blocks"], "the first is as it was")

	both, third := prometheus.NewRegistry(), second
	third.Dir = filepath.Join(t.TempDir(), "third")
	second.Registerer = prometheus.WrapRegistererWith(prometheus.Labels{"store": "second"}, both)
	third.Registerer = prometheus.WrapRegistererWith(prometheus.Labels{"store": "third"}, both)
	b, err := Open(t.Context(), second)
	require.NoError(t, err)
	c, err := Open(t.Context(), third)
	require.NoError(t, err, "a label tells them apart")
	require.NoError(t, c.Close())
	require.NoError(t, b.Close())

	require.NoError(t, a.Close())
	require.Empty(t, names())
	a, err = Open(t.Context(), o)
	require.NoError(t, err, "the registry is free again")
	require.Equal(t, 1, names()["skep_blocks"])
	require.NoError(t, a.Close())

	none := o
	none.MustExist, none.Dir = true, filepath.Join(t.TempDir(), "none")
	_, err = Open(t.Context(), none)
	requireKind(t, skep.NotFound, err)
	a, err = Open(t.Context(), o)
	require.NoError(t, err, "an open that failed has left nothing")
	require.NoError(t, a.Close())
}
