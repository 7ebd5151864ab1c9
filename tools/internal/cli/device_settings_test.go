package cli_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/tools/internal/command"
)

// The settings of a server name its drives, and the store gets others: the command says which to name from now on, and
// an open that is refused for it says what to do.
func TestAChangeOfDevicesSaysWhatTheSettingsMustName(t *testing.T) {
	t.Parallel()
	o := &original{name: t.Name(), place: t.TempDir(), outside: true}
	o.fill(t, 0, 12, 2)
	dir, drives := filepath.Join(o.place, "store"), filepath.Join(o.place, "drives")
	opt := o.optionsAt(o.place)
	opt.Admin, opt.DeviceCount = true, 0
	for _, name := range []string{"device-0", "device-1", "device-2"} {
		opt.Devices = append(opt.Devices, filepath.Join(drives, name))
	}
	s, err := store.Open(t.Context(), opt)
	require.NoError(t, err)
	fresh, added := filepath.Join(drives, "new"), filepath.Join(drives, "added")

	dry := skepRun(t, "device", "replace", "1", fresh, "--dir", dir, "--dry-run", "--json").OK(t)
	assert.Equal(t, []any{}, dry["settings"], "nothing was changed")
	said := skepRun(t, "device", "replace", "1", fresh, "--dir", dir, "--json").OK(t)
	assert.Equal(t, []any{opt.Devices[0], opt.Devices[2], fresh}, said["settings"])
	text := skepRun(t, "device", "add", added, "--dir", dir)
	assert.Contains(t, text.Stdout, "write devices: ["+opt.Devices[0]+", "+opt.Devices[2]+", "+fresh+", "+added+"]")
	require.NoError(t, s.Close())

	opt.Devices[1] = fresh
	_, err = store.Open(t.Context(), opt)
	require.Error(t, err, "one was added that is not named")
	assert.Contains(t, command.NextStep(err), "devices in the settings")
	assert.Contains(t, err.Error(), added)

	opt.Devices, opt.CapacityBytes = nil, 64<<20
	_, err = store.Open(t.Context(), opt)
	assert.Contains(t, command.NextStep(err), "store.change_capacity")
	opt.CapacityBytes = 0
	s, err = store.Open(t.Context(), opt)
	require.NoError(t, err)
	defer s.Close()
	served := skepRun(t, "device", "remove", "4", "--dir", dir, "--json").OK(t)
	assert.Equal(t, []any{}, served["settings"], "none was named")
	list := skepRun(t, "device", "list", "--dir", dir, "--json").OK(t)["devices"].([]any)
	assert.Equal(t, filepath.Join(drives, "device-1"), list[1].(map[string]any)["path"], "where the drive was")
}
