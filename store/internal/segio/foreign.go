package segio

import (
	"bytes"
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
)

// mark is what a device of somebody else's says of itself outside its first pages, which that leaves zero.
type mark struct {
	whose string
	at    func(size int64) int64 // bytes from the device's start
	magic string
}

// beyondFirst is the page behind those that are to be blank; tailBytes is what marks at the end lie in.
const (
	beyondFirst = layout.SuperblockPages * layout.PageSize
	tailBytes   = 128 << 10
)

const raidMagic = "\xfc\x4e\x2b\xa9"

var marks = []mark{
	{"a btrfs file system", from(beyondFirst + 64), "_BHRfS_M"},
	{"a ReiserFS file system", from(beyondFirst + 52), "ReIsEr"},
	{"a ReiserFS file system", from(beyondFirst), "ReIsEr4"},
	{"a GFS2 file system", from(beyondFirst), "\x01\x16\x19\x70"},
	{"a UFS file system", from(beyondFirst + 1372), "\x19\x01\x54\x19"},
	{"a UFS file system", from(beyondFirst + 1372), "\x19\x54\x01\x19"},
	{"a member of a Linux RAID", func(size int64) int64 { return size&^(64<<10-1) - 64<<10 }, raidMagic},         // 0.90
	{"a member of a Linux RAID", func(size int64) int64 { return size&^(layout.PageSize-1) - 8<<10 }, raidMagic}, // 1.0
	{"a member of an Intel RAID", func(size int64) int64 { return size - 1<<10 }, "Intel Raid ISM Cfg Sig."},
}

func from(off int64) func(int64) int64 { return func(int64) int64 { return off } }

// whoseMark says whose a device is by such marks; empty: nobody's that is known.
func whoseMark(ctx context.Context, op string, dev device.Device, path string) (string, error) {
	size := dev.Size()
	if size < beyondFirst+tailBytes { // too small for any of them
		return "", nil
	}
	page, tail := device.AlignedBuffer(layout.PageSize), device.AlignedBuffer(tailBytes)
	for off, buf := range map[int64][]byte{beyondFirst: page, size - tailBytes: tail} {
		if err := device.ReadAt(ctx, dev, buf, off); err != nil {
			return "", &skep.Error{Op: op, Kind: skep.DeviceFailed, Field: path, Err: err}
		}
	}
	for _, m := range marks {
		off, in := m.at(size)-beyondFirst, page
		if off >= layout.PageSize {
			off, in = m.at(size)-(size-tailBytes), tail
		}
		if off >= 0 && bytes.HasPrefix(in[off:], []byte(m.magic)) {
			return m.whose, nil
		}
	}
	return "", nil
}
