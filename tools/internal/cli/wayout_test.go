//go:build linux

package cli_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/tools/internal/command"
)

// What a command says last, and the code that it ends with, is what scripts and operators go by.

func TestADryRebuildWithoutWhatIsMissing(t *testing.T) {
	t.Parallel()
	_, dir := heldIn(t, 2)
	require.NoError(t, os.Remove(filepath.Join(dir, "device-1")))
	asked := skepRun(t, "rebuild", "--dir", dir, "--dry-run")
	assert.Equal(t, command.Faults, asked.Code)
	assert.Contains(t, asked.Stdout, "go on with --without-missing")
	told := skepRun(t, "rebuild", "--dir", dir, "--dry-run", "--without-missing")
	assert.Equal(t, command.Faults, told.Code)
	assert.NotContains(t, told.Stdout, "--without-missing", "that is what it was told")
	assert.Contains(t, told.Stdout, "goes on without them")
}

func TestANamespaceThatIsNotThereIsNotDeleted(t *testing.T) {
	t.Parallel()
	_, dir := heldIn(t, 1)
	for _, args := range [][]string{{}, {"--dry-run"}} {
		said := skepRun(t, append([]string{"namespace", "delete", "t", "nobody's", "--dir", dir}, args...)...)
		assert.Equal(t, command.NotFound, said.Code, "%v: %s", args, said.Stderr)
		assert.Contains(t, said.Stderr, "skep inspect namespaces", args)
	}
	s := serveUnder(t, ":", "--dir", dir, "--unix", "none")
	defer s.stop()
	said := skepRun(t, "namespace", "delete", "t", "nobody's", "--dir", dir)
	assert.Equal(t, command.NotFound, said.Code, said.Stderr)
	assert.Contains(t, said.Stderr, "skep: delete namespace: not found: namespace is nobody's")
	assert.Contains(t, said.Stderr, "skep inspect namespaces")
}

// Who deletes a namespace is told how much it is, and asked.
func TestANamespaceIsNotDeletedUnasked(t *testing.T) {
	t.Parallel()
	_, dir := heldIn(t, 1)
	blocks := func() string { return skepRun(t, "inspect", "namespaces", "--dir", dir).Stdout }
	was := blocks()
	said := skepRun(t, "namespace", "delete", "t", "held", "--dir", dir)
	assert.Equal(t, command.Input, said.Code, said.Stderr)
	assert.Regexp(t, `delete namespace held of tenant t: [1-9]\d* blocks, .*\? \[y/N\]`, said.Stderr)
	assert.Contains(t, was, "held")
	assert.Contains(t, blocks(), "held")
	skepRun(t, "namespace", "delete", "t", "held", "--dir", dir, "--yes", "--json").OK(t)
	assert.NotContains(t, blocks(), "held")
}

func TestADeviceWhereNoDirectoryIs(t *testing.T) {
	t.Parallel()
	_, dir := heldIn(t, 1)
	path := filepath.Join(t.TempDir(), "not there", "device")
	dry := skepRun(t, "device", "add", path, "--dir", dir, "--dry-run")
	add := skepRun(t, "device", "add", path, "--dir", dir)
	assert.NotZero(t, add.Code)
	assert.Equal(t, add.Code, dry.Code, "a dry run says what the add would: %s", dry.Stderr)
	assert.Contains(t, dry.Stderr, "no such file or directory")
}

// As many look at a store as may: who comes then is told so, and not to end the store's process.
func TestAllConnectionsOfAStoreAreTaken(t *testing.T) {
	t.Parallel()
	_, dir := heldIn(t, 1)
	s := serveUnder(t, ":", "--dir", dir, "--unix", "none")
	defer s.stop()
	for range 8 {
		c, err := net.Dial("unix", filepath.Join(dir, store.AdminSocket))
		require.NoError(t, err)
		defer c.Close()
	}
	for _, args := range [][]string{{"namespace", "delete", "t", "held"}, {"scrub"}, {"compact"}, {"inspect", "mrc"},
		{"device", "drain", "0"}} {
		said := skepRun(t, append(args, "--dir", dir)...)
		assert.Equal(t, command.TryAgain, said.Code, "%v: %s", args, said.Stderr)
		assert.Contains(t, said.Stderr, "ask again when one of them is over", args)
		assert.NotContains(t, said.Stderr, "end the process", args)
	}
}

func TestWhatIsNoStoreStaysAsItIs(t *testing.T) {
	t.Parallel()
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "bundle")
	for _, args := range [][]string{{"rebuild"}, {"rebuild", "--dry-run"}, {"support", "-o", file}, {"scrub"},
		{"compact"}} {
		said := skepRun(t, append(args, "--dir", dir)...)
		assert.Equal(t, command.NotFound, said.Code, "%v: %s%s", args, said.Stdout, said.Stderr)
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		assert.Empty(t, left, args)
	}
	assert.NoFileExists(t, file)
}

// A store whose directory does not lead to its catalog is told as that, and not as one whose devices are missing.
func TestADirectoryThatDoesNotLeadToItsCatalog(t *testing.T) {
	t.Parallel()
	_, dir := heldIn(t, 1)
	note := filepath.Join(dir, "catalog-dir.json")
	for _, text := range []string{"no JSON", `{"catalog":"/nowhere","of":"another"}`} {
		require.NoError(t, os.WriteFile(note, []byte(text), 0o600))
		said := skepRun(t, "verify", "--dir", dir)
		assert.NotZero(t, said.Code)
		assert.Contains(t, said.Stderr, "name the catalog's directory (--catalog-dir of skep serve, scrub, verify and rebuild)")
		assert.NotContains(t, said.Stderr, "--device")
		named := skepRun(t, "verify", "--dir", dir, "--catalog-dir", filepath.Join(dir, "catalog"))
		assert.Zero(t, named.Code, named.Stderr)
	}
}
