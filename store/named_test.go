package store

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// namedStore is a store whose devices are named, outside its directory, with blocks; log is what it logs.
func namedStore(t *testing.T) (o Options, drives string, log *bytes.Buffer) {
	t.Helper()
	ctx := testContext(t)
	drives = t.TempDir()
	o, log = small(tempRoot(t, "store")), &bytes.Buffer{}
	o.DeviceCount = 0
	o.Devices = []string{filepath.Join(drives, "a"), filepath.Join(drives, "b"), filepath.Join(drives, "c")}
	o.Logger = slog.New(slog.NewTextHandler(log, nil))
	s, err := Open(ctx, o)
	require.NoError(t, err)
	requireOutcome(t, skep.Committed, putRun(t, s, openSpace(t, s, "n", skep.Durable, 1, true), chainKeys(1, 20), faultBlock))
	require.NoError(t, s.Close())
	return o, drives, log
}

// changed has change done on the store, which then is closed.
func changed(t *testing.T, o Options, change func(s *Store) error) {
	t.Helper()
	s, err := Open(testContext(t), o)
	require.NoError(t, err)
	require.NoError(t, change(s))
	require.NoError(t, s.Close())
}

// A drive is replaced, and the settings still name the old one: the store opens with what it has, and says so when the
// drive is replaced and at each open.
func TestDevicesMayNameADriveThatWasReplaced(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	o, drives, log := namedStore(t)
	changed(t, o, func(s *Store) error {
		_, err := s.ReplaceDevice(ctx, "1", NewDevice{Path: filepath.Join(drives, "new")}, MoveOptions{})
		return err
	})
	require.Equal(t, 1, strings.Count(log.String(), "other devices than it was told to open"), "once: %s", log)

	s, err := Open(ctx, o)
	require.NoError(t, err)
	require.Equal(t, []string{o.Devices[0], o.Devices[2], filepath.Join(drives, "new")}, statsOf(t, s).ToName)
	requireChain(t, s, openSpace(t, s, "n", skep.Durable, 1, true), chainKeys(1, 20), faultBlock)
	require.Len(t, statsOf(t, s).Devices, 3)
	require.NoError(t, s.Close())
	require.Contains(t, log.String(), "drives that were taken out of the store")
}

// What is at the old drive's place now is another store's, or somebody's: it is refused.
func TestDevicesThatNameWhatIsNotTheStoresAreRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		kind skep.Kind
		put  func(t *testing.T, path string)
	}{
		{"another store's", skep.Foreign, func(t *testing.T, path string) {
			other := tempRoot(t, "other")
			makeStore(t, other)
			require.NoError(t, os.Rename(filepath.Join(other, "device-1"), path))
		}},
		{"somebody's", skep.Foreign, func(t *testing.T, path string) {
			require.NoError(t, os.WriteFile(path, bytes.Repeat([]byte("somebody's"), 1<<16), 0o600))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			o, drives, _ := namedStore(t)
			changed(t, o, func(s *Store) error {
				_, err := s.ReplaceDevice(ctx, "1", NewDevice{Path: filepath.Join(drives, "new")}, MoveOptions{})
				return err
			})
			tt.put(t, o.Devices[1])
			_, err := Open(ctx, o)
			require.Error(t, err)
			require.ErrorContains(t, err, "devices is")
		})
	}
}

// A drive was added, and the settings do not name it: the error says which the store has.
func TestAnErrorNamesTheDevicesThatTheStoreHas(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	o, drives, log := namedStore(t)
	added := filepath.Join(drives, "added")
	changed(t, o, func(s *Store) error { return s.AddDevice(ctx, NewDevice{Path: added}) })
	require.Contains(t, log.String(), "other devices than it was told to open")
	_, err := Open(ctx, o)
	requireKind(t, skep.Missing, err)
	for _, path := range append(o.Devices, added) {
		require.ErrorContains(t, err, path)
	}
	var e *skep.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "devices", e.Field)
	o.Devices = nil
	changed(t, o, func(*Store) error { return nil })
}

// A drive was taken out: as one that was replaced.
func TestDevicesMayNameADriveThatWasTakenOut(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	o, _, log := namedStore(t)
	changed(t, o, func(s *Store) error {
		p, err := s.RemoveDevice(ctx, "2", MoveOptions{})
		require.Positive(t, p.Found, "who is told of fewer that were moved can tell how many were not")
		return err
	})
	require.Contains(t, log.String(), "other devices than it was told to open")
	changed(t, o, func(*Store) error { return nil })
}

// Stats say which devices the settings should name, from the change on. A device that has the place of another one,
// by whatever name, is the one that is named.
func TestStatsSayWhichDevicesToName(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	o, drives, _ := namedStore(t)
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(drives, link))
	changed(t, o, func(s *Store) error {
		require.Empty(t, statsOf(t, s).ToName)
		_, err := s.RemoveDevice(ctx, "1", MoveOptions{})
		require.Equal(t, []string{o.Devices[0], o.Devices[2]}, statsOf(t, s).ToName)
		require.NoError(t, s.AddDevice(ctx, NewDevice{Path: filepath.Join(link, "b")}))
		require.Empty(t, statsOf(t, s).ToName, "it is where the one that was removed was")
		return err
	})
	o.Devices = nil
	changed(t, o, func(s *Store) error {
		require.Empty(t, statsOf(t, s).ToName)
		_, err := s.RemoveDevice(ctx, "2", MoveOptions{})
		require.Empty(t, statsOf(t, s).ToName, "none was named")
		return err
	})
}
