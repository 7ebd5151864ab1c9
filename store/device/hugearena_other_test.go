//go:build !linux

package device_test

import (
	"testing"

	"github.com/skepkv/skep/store/device"
)

func hugeArena(_ *testing.B, n int) ([]byte, func()) { return device.AlignedBuffer(n), func() {} }
