//go:build linux

package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
)

// What follows was found by TestOperator.

// A dry run leaves every byte as it is: it opens nothing for writing, and makes no catalog anew where one is lost.
func TestADryRunChangesNothing(t *testing.T) {
	t.Parallel()
	o, dir := heldIn(t, 2)
	dry := func(codes ...int) {
		t.Helper()
		before := fingerprint(t, o.place)
		for _, args := range [][]string{{"compact"}, {"device", "drain", "0"}, {"device", "remove", "0"}, {"device", "replace", "0", filepath.Join(dir, "device-9")},
			{"device", "add", filepath.Join(dir, "device-9")}, {"namespace", "delete", "t", "held", "--yes"}, {"scrub"}, {"rebuild"}} {
			said := skepRun(t, append(args, "--dry-run", "--dir", dir)...)
			assert.Contains(t, codes, said.Code, "%v: %s%s", args, said.Stdout, said.Stderr)
			assert.Empty(t, differences(before, fingerprint(t, o.place)), "%v", args)
		}
	}
	dry(0)
	moved := skepRun(t, "device", "drain", "0", "--dry-run", "--dir", dir, "--json").OK(t)["moved"].(map[string]any)
	assert.NotZero(t, moved["blocks"], "it says what would be moved")
	require.NoError(t, os.Rename(filepath.Join(dir, "catalog"), filepath.Join(o.place, "away")))
	dry(0, 3)
	require.NoDirExists(t, filepath.Join(dir, "catalog"))
	nowhere := filepath.Join(t.TempDir(), "no store")
	for _, args := range [][]string{{"device", "add", filepath.Join(nowhere, "device-0"), "--dry-run"}, {"recluster", "00000000", "--tenant", "t", "--namespace", "n"}} {
		said := skepRun(t, append(args, "--dir", nowhere)...)
		assert.Contains(t, []int{2, 3}, said.Code, "%v: %s", args, said.Stdout)
		assert.NoDirExists(t, nowhere, "%v", args)
	}
}

// A replacement that is refused has made no device: not where there is no such device to be replaced, nor where the store does not open
// without those that are missing.
func TestARefusedReplacementAddsNothing(t *testing.T) {
	t.Parallel()
	o, dir := heldIn(t, 1)
	said := skepRun(t, "device", "replace", "7", filepath.Join(dir, "device-9"), "--dir", dir)
	assert.Equal(t, 3, said.Code, "%s", said.Stderr)
	assert.NoFileExists(t, filepath.Join(dir, "device-9"))
	require.NoError(t, os.Remove(filepath.Join(dir, "device-1")))
	for _, args := range [][]string{{"replace", "1", filepath.Join(dir, "device-9")}, {"add", filepath.Join(dir, "device-9")}} {
		said = skepRun(t, append(append([]string{"device"}, args...), "--dir", dir)...)
		assert.Equal(t, 3, said.Code, "%s", said.Stderr)
		assert.Contains(t, said.Stderr, "durable blocks have no other copy")
		assert.NoFileExists(t, filepath.Join(dir, "device-9"))
	}

	// --force gives up what only the missing one holds, and no more.
	copied := filepath.Join(t.TempDir(), "copy")
	copyTree(t, o.place, copied)
	skepRun(t, "device", "remove", "1", "--force", "--dir", filepath.Join(copied, "store"), "--json").OK(t)
	skepRun(t, "device", "replace", "1", filepath.Join(dir, "device-9"), "--force", "--dir", dir, "--json").OK(t)
	for _, place := range []string{o.place, copied} {
		s, err := store.Open(t.Context(), o.optionsAt(place))
		require.NoError(t, err)
		for i := range o.blocks {
			if b := &o.blocks[i]; b.space == "twice" && !b.gone {
				data, err := readBlock(t.Context(), s, b)
				require.NoError(t, err)
				require.Equal(t, b.data, data)
			}
		}
		require.NoError(t, s.Close())
	}
}

// A device that is there, and is not what it was, is not taken for a good one: it was cut short, or another is in its
// place, or nothing that could be read.
func TestADeviceThatIsNotWhatItWasIsBad(t *testing.T) {
	t.Parallel()
	for want, harm := range map[string]func(file string) error{
		"it was cut short": func(file string) error {
			st, err := os.Stat(file)
			if err != nil {
				return err
			}
			return os.Truncate(file, st.Size()/2)
		},
		"it is another device": func(file string) error {
			other, err := os.ReadFile(filepath.Join(filepath.Dir(file), "device-1"))
			if err != nil {
				return err
			}
			return os.WriteFile(file, other, 0o600)
		},
		"superblock": func(file string) error {
			st, err := os.Stat(file)
			if err != nil {
				return err
			}
			return os.WriteFile(file, make([]byte, st.Size()), 0o600)
		},
	} {
		_, dir := heldIn(t, 1)
		file := filepath.Join(dir, "device-0")
		require.NoError(t, harm(file))
		said := skepRun(t, "doctor", "--dir", dir)
		assert.Equal(t, 6, said.Code, "%s", said.Stdout)
		assert.Contains(t, said.Stdout, file+" is there, but ")
		assert.Contains(t, said.Stdout, want)
	}
}

// Of three devices two are lost. Each is replaced, by one command, that does what its dry run said; or is taken out after
// a rebuild that went on without them. Then the store is sound.
func TestTwoLostDevicesAreReplaced(t *testing.T) {
	t.Parallel()
	for _, copies := range []int{1, 2} {
		o, dir := heldIn(t, copies)
		require.NoError(t, os.Remove(filepath.Join(dir, "device-0")))
		if copies == 2 { // else it does not open
			said := skepRun(t, "scrub", "--dir", dir)
			assert.Equal(t, 6, said.Code, "a superblock cannot be read: %s", said.Stdout)
		}
		require.NoError(t, os.Remove(filepath.Join(dir, "device-2")))
		said := skepRun(t, "doctor", "--dir", dir)
		assert.Equal(t, 6, said.Code, "%s", said.Stdout)
		assert.Contains(t, said.Stdout, filepath.Join(dir, "device-0")+" is missing, "+filepath.Join(dir, "device-2")+" is missing")
		rebuilt := filepath.Join(t.TempDir(), "copy")
		copyTree(t, o.place, rebuilt)
		rebuilt = filepath.Join(rebuilt, "store")
		for _, lost := range []string{"0", "2"} {
			replace := []string{"device", "replace", lost, filepath.Join(dir, "device-1"+lost), "--force", "--dir", dir, "--json"}
			dry := skepRun(t, append(replace, "--dry-run")...).OK(t)["moved"].(map[string]any)
			moved := skepRun(t, replace...).OK(t)["moved"].(map[string]any)
			for _, n := range []string{"unreadable", "given_up"} { // what has copies is moved in the background, too
				assert.Equal(t, dry[n], moved[n], "%s of device %s", n, lost)
			}
		}
		skepRun(t, "rebuild", "--without-missing", "--dir", rebuilt, "--json").OK(t)
		for _, lost := range []string{"0", "2"} {
			skepRun(t, "device", "add", filepath.Join(rebuilt, "device-1"+lost), "--dir", rebuilt, "--json").OK(t)
			skepRun(t, "device", "remove", lost, "--force", "--dir", rebuilt, "--json").OK(t)
		}
		for _, dir := range []string{dir, rebuilt} {
			skepRun(t, "verify", "--dir", dir, "--json").OK(t)
			list := skepRun(t, "device", "list", "--dir", dir, "--json").OK(t)["devices"].([]any)
			require.Len(t, list, 5)
			for _, d := range list {
				d := d.(map[string]any)
				assert.Equal(t, d["state"] != "removed", d["present"], "%v", d)
			}
		}
	}
}

// Nor does one that the process is asked for which has the store open. A device may be replaced there though
// without its successor too few would be left.
func TestARefusedReplacementAddsNothingWhileTheStoreIsServed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := store.Open(t.Context(), store.Options{Dir: dir, DeviceCount: 2, CapacityBytes: 8 << 20,
		SegmentBytes: 128 << 10, BlockBytes: 8 << 10, IOBytes: 16 << 20, CacheBytes: -1, Admin: true})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	_, err = s.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "twice",
		Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}, Class: skep.Durable, Copies: 2})
	require.NoError(t, err)
	successor := filepath.Join(dir, "device-9")
	said := skepRun(t, "device", "replace", "7", successor, "--dir", dir)
	assert.Equal(t, 3, said.Code, "%s", said.Stderr)
	assert.Contains(t, said.Stderr, "7")
	assert.NoFileExists(t, successor)
	st, err := s.Stats(t.Context())
	require.NoError(t, err)
	require.Len(t, st.Devices, 2)

	skepRun(t, "device", "replace", "0", successor, "--dir", dir, "--json").OK(t)
	require.NoError(t, s.FindDevice(successor))
	require.ErrorIs(t, s.FindDevice("0"), skep.NotFound)
}

// Something that is no catalog in the catalog's place is set aside like a damaged one, and kept.
func TestACatalogThatIsAFile(t *testing.T) {
	t.Parallel()
	for _, cmd := range []string{"scrub", "rebuild"} {
		o, dir := heldIn(t, 2)
		require.NoError(t, os.RemoveAll(filepath.Join(dir, "catalog")))
		write(t, filepath.Join(dir, "catalog"), []byte("somebody's"))
		said := skepRun(t, "inspect", "groups", "--dir", dir, "--json")
		assert.Equal(t, 1, said.Code)
		assert.Equal(t, "damaged", said.JSON(t)["error"].(map[string]any)["kind"])
		skepRun(t, cmd, "--dir", dir, "--json").OK(t)
		o.requireAll(t)
		aside, err := filepath.Glob(filepath.Join(dir, "catalog.old-*"))
		require.NoError(t, err)
		require.Len(t, aside, 1)
		b, err := os.ReadFile(aside[0])
		require.NoError(t, err)
		require.Equal(t, "somebody's", string(b))
	}
}

// Who looks into a catalog that lacks files, or has another's among its own, is told that it is damaged, and does not wait for it to be quiet.
func TestInspectDoesNotWaitForWhatIsDamaged(t *testing.T) {
	t.Parallel()
	_, other := heldIn(t, 2)
	for name, harm := range map[string]func(t *testing.T, catalog string){
		"two catalogs in one": func(t *testing.T, catalog string) {
			write(t, filepath.Join(catalog, "marker.manifest.000099.MANIFEST-000099"), nil)
			copyTree(t, filepath.Join(other, "catalog"), catalog)
		},
		"a table is gone": func(t *testing.T, catalog string) {
			tables, err := filepath.Glob(filepath.Join(catalog, "*.sst"))
			require.NoError(t, err)
			require.NotEmpty(t, tables)
			for _, path := range tables {
				require.NoError(t, os.Remove(path))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			o, dir := heldIn(t, 2)
			o.fill(t, 12, 12, 2) // what was in the log is in tables now
			harm(t, filepath.Join(dir, "catalog"))
			said := skepRun(t, "inspect", "groups", "--dir", dir, "--json")
			e := said.JSON(t)["error"].(map[string]any)
			assert.Equal(t, "damaged", e["kind"], "%v", e["message"])
			assert.Equal(t, 1, said.Code)
			assert.Contains(t, e["next"], "skep verify")
		})
	}
}

// A device that may not be written to is whole: no rebuild gives it up, and the message says what to look at.
func TestARebuildGivesUpNoDeviceItMayNotWriteTo(t *testing.T) {
	t.Parallel()
	o, dir := heldIn(t, 1)
	device := filepath.Join(dir, "device-1")
	if err := lock(device); err != nil {
		t.Skip("files cannot be made immutable here:", err)
	}
	defer unlock(dir)
	before := fingerprint(t, o.place)
	for _, args := range [][]string{{"rebuild"}, {"rebuild", "--without-missing"}} {
		said := skepRun(t, append(args, "--dir", dir)...)
		assert.NotZero(t, said.Code)
		assert.Contains(t, said.Stderr, "check who owns "+device)
		assert.Empty(t, differences(before, fingerprint(t, o.place)))
	}
	_, err := store.Open(t.Context(), o.options())
	require.ErrorIs(t, err, skep.Missing, "there are durable blocks on it alone")
	require.True(t, strings.Contains(err.Error(), device))
	unlock(dir)
	o.requireAll(t)
}
