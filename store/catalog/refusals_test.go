package catalog

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// A row whose key is not one of its kind is damage, whatever its value is.
func TestKeysOfNoKind(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		key  []byte
		list func(c *Catalog) error
	}{
		"a block": {[]byte{rowBlock, 0, 0, 0, 1, 9}, func(c *Catalog) error {
			return c.ScanGroup(bg, 1, func(layout.Location, []byte) error { return nil })
		}},
		"a group":     {[]byte{rowGroup, 1}, func(c *Catalog) error { _, err := c.Groups(bg); return err }},
		"a namespace": {[]byte{rowNamespace, 1}, func(c *Catalog) error { _, err := c.Namespaces(bg); return err }},
		"a purge":     {[]byte{rowPurge, 1}, func(c *Catalog) error { _, err := c.Purges(bg); return err }},
		"a sealing":   {[]byte{rowSealing, 1}, func(c *Catalog) error { _, err := c.Sealings(bg); return err }},
		"an intent":   {[]byte{rowIntent, 1}, func(c *Catalog) error { _, err := c.Intents(bg); return err }},
		"a device":    {[]byte{rowDevice}, func(c *Catalog) error { _, err := c.Devices(bg); return err }},
	} {
		c := c
		t.Run(name, func(t *testing.T) {
			k := open(t, vfs.NewMem())
			require.NoError(t, k.db.Set(c.key, seal(c.key, []byte("body")), pebble.Sync))
			require.ErrorIs(t, c.list(k), skep.Damaged)
		})
	}
}

// Pebble's errors have a kind of ours.
func TestPebblesErrorsHaveAKind(t *testing.T) {
	t.Parallel()
	for err, kind := range map[error]skep.Kind{
		pebble.ErrReadOnly: skep.ReadOnly, pebble.ErrClosed: skep.Closed, pebble.ErrCorruption: skep.Damaged, errBroken: skep.Other,
	} {
		got := translate("test", err)
		require.Equal(t, kind, skep.KindOf(got))
		require.True(t, errors.Is(got, err))
	}
}

// A commit for which there is no room among those in flight waits, until the catalog fails
// or its time is over: then it has not happened, and the error says so. What its caller's context
// ends may have, as far as the caller is told.
func TestACommitWaitsForItsTurn(t *testing.T) {
	t.Parallel()
	c := open(t, vfs.NewMem(), func(o *Options) { o.Timeout = 20 * time.Millisecond })
	defer func() { c.timeout = time.Minute }() // its Close may take longer on a busy machine
	for range maxCommits {
		c.commits <- struct{}{}
	}
	require.ErrorIs(t, c.Commit(bg, c.NewBatch(), true), skep.Full)
	ended, cancel := context.WithCancel(bg)
	cancel()
	require.ErrorIs(t, c.Commit(ended, c.NewBatch(), true), skep.Deadline)
	for range maxCommits {
		<-c.commits
	}

	failed := &Catalog{guard: newGuard(&Options{Logger: quiet(), Timeout: time.Minute}), commits: make(chan struct{})}
	failed.fail(errBroken)
	require.ErrorIs(t, failed.slot(bg, "commit"), skep.Failed)
	require.ErrorIs(t, failed.Err(), skep.Failed)
}

// Of a catalog whose OPTIONS cannot be read the open says so, by the file's name.
func TestDamagedOptions(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem()
	c, err := Open(testDir, Options{FS: mem, Logger: quiet()})
	require.NoError(t, err)
	require.NoError(t, c.Close())
	names, err := mem.List(testDir)
	require.NoError(t, err)
	for _, name := range names {
		if strings.HasPrefix(name, "OPTIONS-") {
			f, err := mem.Create(mem.PathJoin(testDir, name), vfs.WriteCategoryUnspecified)
			require.NoError(t, err)
			_, err = f.Write([]byte("[Options]\n  comparer=none\n"))
			require.NoError(t, err)
			require.NoError(t, f.Close())
		}
	}
	_, err = Open(testDir, Options{FS: mem, Logger: quiet()})
	require.ErrorIs(t, err, skep.Damaged)
	require.ErrorContains(t, err, "OPTIONS-")
}

// A catalog whose keys are in another order, by all its files, is not damaged: it is another program's, and is not made
// anew over it.
func TestAnotherOrderOfKeys(t *testing.T) {
	t.Parallel()
	mem, another := vfs.NewMem(), *pebble.DefaultComparer
	another.Name = "another.order"
	db, err := pebble.Open(testDir, &pebble.Options{FS: mem, Comparer: &another, FormatMajorVersion: pebble.FormatTableFormatV6,
		Logger: pebbleLogger{newGuard(&Options{Logger: quiet(), Timeout: time.Minute})}})
	require.NoError(t, err)
	require.NoError(t, db.Set([]byte{rowStore}, []byte("another's"), pebble.Sync))
	require.NoError(t, db.Close())
	_, err = Open(testDir, Options{FS: mem, Logger: quiet()})
	require.ErrorIs(t, err, skep.Version)
	require.ErrorContains(t, err, "another.order")
}
