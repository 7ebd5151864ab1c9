package store

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/catalog"
)

// made makes a store with three blocks in a directory of its own, and closes it.
func made(t *testing.T) (Options, skep.Scope) {
	t.Helper()
	o := small(t.TempDir())
	s := openTest(t, o)
	sc := openSpace(t, s, "n", skep.Durable, 1, false)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, chainKeys(1, 3), 4<<10))
	require.NoError(t, s.Close())
	return o, sc
}

// letterIn writes somebody's file into a directory.
func letterIn(t *testing.T, dir string) string {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o755))
	letter := filepath.Join(dir, "letter")
	require.NoError(t, os.WriteFile(letter, []byte("dear"), 0o600))
	return letter
}

// A rebuild that is told of a wrong directory does not move the catalog of another store away, which goes on.
func TestARebuildLeavesAnotherStoresCatalogAlone(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	a, sc := made(t)
	b, _ := made(t)
	b.CatalogDir = filepath.Join(a.Dir, "catalog")
	running := openTest(t, a)
	for _, dry := range []bool{true, false} {
		_, err := Rebuild(ctx, b, dry, nil)
		requireKind(t, skep.Foreign, err)
		require.ErrorContains(t, err, "catalog directory")
	}
	aside, err := filepath.Glob(filepath.Join(a.Dir, "catalog.old-*"))
	require.NoError(t, err)
	require.Empty(t, aside)
	requireOutcome(t, skep.Committed, putRun(t, running, sc, chainKeys(2, 1), 4<<10))
	require.NoError(t, running.Close())

	again := openTest(t, a)
	n, _ := requireRight(t, again, sc, chainKeys(2, 1), 4<<10)
	require.Equal(t, 1, n)
	require.NoError(t, again.Close())
	_, err = Rebuild(ctx, b, false, nil)
	requireKind(t, skep.Foreign, err)
}

// Where somebody has the catalog open, though not the store's directory, it is not moved away.
func TestARebuildLeavesACatalogInUseAlone(t *testing.T) {
	t.Parallel()
	o, _ := made(t)
	lock, err := catalog.Lock(vfs.Default, o.catalogDir())
	require.NoError(t, err)
	_, err = Rebuild(testContext(t), o, false, nil)
	requireKind(t, skep.Locked, err)
	aside, err := filepath.Glob(o.catalogDir() + ".old-*")
	require.NoError(t, err)
	require.Empty(t, aside)
	require.NoError(t, lock.Close())
	_, err = Rebuild(testContext(t), o, false, nil)
	require.NoError(t, err)
}

// A rebuild moves neither a directory with somebody's files away nor the store's own, nor a file.
func TestARebuildLeavesOtherDirectoriesAlone(t *testing.T) {
	t.Parallel()
	o, _ := made(t)
	letter := letterIn(t, t.TempDir())
	for _, dir := range []string{filepath.Dir(letter), letter, o.Dir, filepath.Dir(o.Dir)} {
		for _, dry := range []bool{true, false} {
			o.CatalogDir = dir
			_, err := Rebuild(testContext(t), o, dry, nil)
			requireKind(t, skep.Invalid, err)
			require.ErrorContains(t, err, dir)
		}
	}
	require.FileExists(t, letter)
	require.FileExists(t, filepath.Join(o.Dir, "device-0"))
}

// The store's own directory is not moved away, though files of a catalog lie in it.
func TestARebuildLeavesACatalogAroundTheStoreAlone(t *testing.T) {
	t.Parallel()
	o, _ := made(t)
	require.NoError(t, os.WriteFile(filepath.Join(o.Dir, "MANIFEST-000001"), nil, 0o600))
	o.CatalogDir = o.Dir
	_, err := Rebuild(testContext(t), o, false, nil)
	requireKind(t, skep.Invalid, err)
	require.FileExists(t, filepath.Join(o.Dir, "device-0"))
}

// A rebuild makes the catalog where it is told to, and sets a catalog aside that was there.
func TestARebuildMakesTheCatalogElsewhere(t *testing.T) {
	t.Parallel()
	o, sc := made(t)
	o.CatalogDir = filepath.Join(t.TempDir(), "rows")
	for range 2 {
		_, err := Rebuild(testContext(t), o, false, nil)
		require.NoError(t, err)
	}
	aside, err := filepath.Glob(o.CatalogDir + ".old-*")
	require.NoError(t, err)
	require.Len(t, aside, 1)
	s := openTest(t, o)
	n, _ := requireRight(t, s, sc, chainKeys(1, 3), 4<<10)
	require.Equal(t, 3, n)
	require.NoError(t, s.Close())
}

// An open makes no second catalog: where a directory was named in which none is, while the store has one, it is
// refused, and so is a directory with somebody's files, or a file. Nothing is left there.
func TestAnOpenWithAWrongCatalogDirTouchesNothing(t *testing.T) {
	t.Parallel()
	o, _ := made(t)
	letter := letterIn(t, t.TempDir())
	typo := filepath.Join(t.TempDir(), "typo")
	for dir, kind := range map[string]skep.Kind{typo: skep.Conflict, letter: skep.Invalid,
		filepath.Dir(letter): skep.Invalid} {
		wrong := o
		wrong.CatalogDir, wrong.MustExist = dir, true
		_, err := Open(testContext(t), wrong)
		requireKind(t, kind, err)
		require.ErrorContains(t, err, o.catalogDir(), "the way out")
	}
	require.NoDirExists(t, typo)
	left, err := os.ReadDir(filepath.Dir(letter))
	require.NoError(t, err)
	require.Len(t, left, 1)

	fresh := small(filepath.Join(t.TempDir(), "fresh"))
	fresh.CatalogDir = letter
	_, err = Open(testContext(t), fresh)
	requireKind(t, skep.Invalid, err)
	require.NoDirExists(t, fresh.Dir, "a store that could not be made leaves nothing")
}

// A rebuild does not put the catalog of another program in the way of that program, which is told as the way out.
func TestARebuildLeavesACatalogOfAnotherFormatAlone(t *testing.T) {
	t.Parallel()
	o, _ := made(t)
	formatCatalog(t, o.Dir, catalog.FormatVersion+1, false)
	for _, dry := range []bool{true, false} {
		_, err := Rebuild(testContext(t), o, dry, nil)
		requireKind(t, skep.Version, err)
		require.ErrorContains(t, err, "use the skep that wrote it")
	}
	aside, err := filepath.Glob(o.catalogDir() + ".old-*")
	require.NoError(t, err)
	require.Empty(t, aside)

	require.NoError(t, os.Rename(o.catalogDir(), o.catalogDir()+".mine"))
	_, err = Rebuild(testContext(t), o, false, nil)
	require.NoError(t, err)
}

// The store's directory remembers where its catalog was put: who names the directory alone opens the same store. A copy
// of the directory does not lead there, and no second catalog is made.
func TestTheDirectoryLeadsToItsCatalog(t *testing.T) {
	t.Parallel()
	o, sc := made(t)
	fast := filepath.Join(t.TempDir(), "rows")
	inside := o.catalogDir()
	require.NoError(t, os.Rename(inside, fast))
	opens := func(o Options) {
		t.Helper()
		s := openTest(t, o)
		n, _ := requireRight(t, s, sc, chainKeys(1, 3), 4<<10)
		require.Equal(t, 3, n)
		require.NoError(t, s.Close())
	}
	named := o
	named.CatalogDir = fast
	opens(named)
	opens(o)
	require.NoDirExists(t, inside)
	o.ReadOnly = true
	opens(o)
	o.ReadOnly = false

	wrong := o
	wrong.CatalogDir = inside
	_, err := Open(testContext(t), wrong)
	requireKind(t, skep.Conflict, err)
	require.ErrorContains(t, err, fast)
	twin := o
	twin.Dir, twin.MustExist = t.TempDir(), true
	require.NoError(t, os.CopyFS(twin.Dir, os.DirFS(o.Dir)))
	for _, readOnly := range []bool{false, true} {
		twin.ReadOnly = readOnly
		_, err = Open(testContext(t), twin)
		requireKind(t, skep.Foreign, err)
	}
	require.NoError(t, os.Rename(fast, fast+".away"))
	_, err = Open(testContext(t), o)
	requireKind(t, skep.Missing, err)
	require.NoError(t, os.Rename(fast+".away", inside))
	wrong.Dir = o.Dir
	opens(wrong)
	opens(o)
}
