package serve

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/skepkv/skep"
)

// A device that is fenced or dead is unwell, whatever the reason behind the colon; why is not told to everybody.
func TestDevicesThatAreUnwell(t *testing.T) {
	t.Parallel()
	st := &skep.Stats{}
	for i, state := range []string{"online", "fenced: write failed on /dev/secret", "dead", "missing", "draining", "fenced",
		"dead: it hangs", "slow"} {
		st.Devices = append(st.Devices, skep.DeviceStats{Index: i, State: state})
	}
	assert.Equal(t, []string{"device 1: fenced", "device 2: dead", "device 5: fenced", "device 6: dead"}, unwell(st))
	assert.Empty(t, unwell(&skep.Stats{}))
}
