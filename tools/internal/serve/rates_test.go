package serve

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A rate of the settings is written as one of a command is, with /s or without.
func TestRatesOfSettingsAreWrittenAsThoseOfFlags(t *testing.T) {
	t.Parallel()
	text := "dir: /d\nstore: {scrub_rate: 10MB/s, background_rate: 1.5GiB/s}\n" +
		"peers: {repair_rate: 64MiB/s, repair_idle_rate: 2GiB/s}\n" +
		"tenants: {a: {bytes_per_second: 5MB/s}}\nbucket: {rate: 20MB/s}\n"
	c, err := Load(write(t, "skep.yaml", text), nil, nil)
	require.NoError(t, err)
	assert.EqualValues(t, []int64{10e6, 3 << 29, 64 << 20, 2 << 30, 5e6, 20e6}, []int64{int64(c.Store.ScrubRate),
		int64(c.Store.BackgroundRate), int64(c.Peers.RepairRate),
		int64(c.Peers.RepairIdleRate), int64(c.Tenants["a"].BytesPerSecond), int64(c.Bucket.Rate)})
	c, err = Load(write(t, "skep.yaml", "dir: /d\n"), []string{"SKEP_STORE_SCRUB_RATE=2MB/s"}, nil)
	require.NoError(t, err)
	assert.EqualValues(t, 2e6, c.Store.ScrubRate)
	_, err = Load(write(t, "skep.yaml", "dir: /d\nstore: {scrub_rate: 10MB/h}\n"), nil, nil)
	require.ErrorContains(t, err, "is not a rate, such as 200MB/s")
	for _, wrong := range []string{"1GiB/h", "-1", "much"} {
		_, err = Load(write(t, "skep.yaml", "dir: /d\npeers: {repair_idle_rate: "+wrong+"}\n"), nil, nil)
		require.ErrorContains(t, err, wrong)
		_, err = Load(write(t, "skep.yaml", "dir: /d\n"), []string{"SKEP_PEERS_REPAIR_IDLE_RATE=" + wrong}, nil)
		require.ErrorContains(t, err, "SKEP_PEERS_REPAIR_IDLE_RATE")
	}
}
