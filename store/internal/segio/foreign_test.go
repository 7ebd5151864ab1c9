package segio

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
)

// Some file systems and RAIDs leave the first 64 KiB of a device zero. What they have is not taken for a blank device.
func TestCheckBlankKnowsWhatLeavesTheFirstPagesZero(t *testing.T) {
	t.Parallel()
	const size = 1<<20 + 12<<10 // no multiple of 64 KiB
	for _, tt := range []struct {
		whose string
		off   int64
		magic string
	}{
		{"btrfs", 65536 + 64, "_BHRfS_M"},
		{"ReiserFS", 65536 + 52, "ReIsEr2Fs"},
		{"GFS2", 65536, "\x01\x16\x19\x70"},
		{"UFS", 65536 + 1372, "\x19\x01\x54\x19"},
		{"Linux RAID", 1<<20 - 65536, "\xfc\x4e\x2b\xa9\x00\x00\x00\x00\x5a"},
		{"Linux RAID", size - 8192, "\xfc\x4e\x2b\xa9\x01"},
		{"Intel RAID", size - 1024, "Intel Raid ISM Cfg Sig. 1.3.00"},
	} {
		d := mem(t, size)
		d.Unwrap().(*device.Memory).Poke(tt.off, []byte(tt.magic))
		err := CheckBlank(t.Context(), d, "/dev/x")
		requireKind(t, skep.Foreign, err)
		require.ErrorContains(t, err, tt.whose)
		require.ErrorContains(t, err, "wipefs -a /dev/x", "the way out")
	}
	err := CheckBlank(t.Context(), mem(t, 8<<10), "/dev/x")
	requireKind(t, skep.Invalid, err)
	require.ErrorContains(t, err, "size of /dev/x is 8192")
	for _, off := range []int64{65536, 65536 + 64, size - 8192, size - 1024} { // what an earlier store has left
		d := mem(t, size)
		d.Unwrap().(*device.Memory).Poke(off, []byte("SKEPsegm"))
		require.NoError(t, CheckBlank(t.Context(), d, "/dev/x"))
	}
}
