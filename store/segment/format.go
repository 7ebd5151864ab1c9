package segment

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"log/slog"

	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep"
)

// FormatVersion is the format this program reads and writes, and it knows no other. A
// format's layout never changes once released.
const FormatVersion = 1

// formatSealing is the format that the log pages of an append say that has a Sealing, and only those: a program from
// before there were any refuses them by that, and reads the rest.
const formatSealing = 2

// formatOf is the format of log pages with an entry of a kind.
func formatOf(k Kind) uint32 {
	if k == KindSealing {
		return formatSealing
	}
	return FormatVersion
}

// Sizes and limits that are part of the format and should not be changed.
const (
	// PageSize is the unit of everything here and the alignment of all I/O, in bytes.
	PageSize = 4096
	// SuperblockOffsetA and B are where the two copies lie on a device.
	SuperblockOffsetA = 0
	SuperblockOffsetB = PageSize
	// ReservedBytes is the start of a device that segments keep clear of; the first
	// segment lies at or after it.
	ReservedBytes = 64 << 10

	// MaxSerialSize is the longest drive serial number, in bytes.
	MaxSerialSize = 128
	// MaxDevices is the most devices of a store.
	MaxDevices = 1 << 16
	// MaxGivenUp is the most numbers of devices that a superblock says were given up.
	MaxGivenUp = 1024
	// MaxGroupDevices is the most devices of a stripe group.
	MaxGroupDevices = 64
	// MinSegmentPages and MaxSegmentPages bound a segment (16 KiB to 4 GiB).
	MinSegmentPages = 4
	MaxSegmentPages = 1 << 20
	// SubsPerPage is how many small values can share a page (512 bytes each).
	SubsPerPage = 8
	// MaxInlineSize is the largest part kept in its record, in bytes.
	MaxInlineSize = 3584
	// MaxGranules is the most granule checksums in one record.
	MaxGranules = 1 << 18
	// MaxSealedGranules is the same of a sealed record, whose granules take four times as much.
	MaxSealedGranules = MaxGranules / 4
	// MaxRecordSize is the longest encoded record, in bytes.
	MaxRecordSize = 8*MaxGranules + 64<<10
	// MaxAppendPages is the longest append, in log pages.
	MaxAppendPages = 4096
	// MaxNamespaceSize is the longest encoded Namespace entry, in bytes.
	MaxNamespaceSize = 32 << 10
	// InlineDevice, as the device of a location, says that there are no cells: the value is in the record.
	InlineDevice = 255
)

// What every page of every format has in the same place.
const (
	offMagic    = 0            // 8 bytes
	offFormat   = 8            // uint32
	offChecksum = PageSize - 8 // uint64, over all bytes before it
)

const (
	magicSuperblock = "SKEP/dev"
	magicHeader     = "SKEP/seg"
	magicLog        = "SKEP/log"

	// magicUnreleased begins the superblocks of builds from before the first release, whose
	// formats were numbered 1 to 4 and are not read.
	magicUnreleased = "skep/dev"
)

// StoreID names a store; it is random and made once.
type StoreID [16]byte

// DeviceID names a device of a store; it is random and made when the device joins.
type DeviceID [16]byte

// SaltTag is what a salt leaves in stored keys; zero for the empty salt.
type SaltTag [16]byte

func (s StoreID) String() string  { return hex.EncodeToString(s[:]) }
func (d DeviceID) String() string { return hex.EncodeToString(d[:]) }

// Secret is a store's hash secret. It keys the hash of salts and keys, and seeds
// the checksum of log pages, so that payload cannot be made to look like one. It
// shows as "hidden".
type Secret [16]byte

// String hides the secret.
func (Secret) String() string { return "hidden" }

// GoString hides the secret from %#v.
func (Secret) GoString() string { return "segment.Secret(hidden)" }

// LogValue hides the secret from slog.
func (Secret) LogValue() slog.Value { return slog.StringValue("hidden") }

var le = binary.LittleEndian

func fail(kind skep.Kind, op, field string, value, limit any) error {
	return &skep.Error{Op: op, Kind: kind, Field: field, Value: value, Limit: limit}
}

func damaged(op, field string, value, limit any) error {
	return fail(skep.Damaged, op, field, value, limit)
}

// beginPage clears page and writes what every page begins with.
func beginPage(op, magic string, page []byte) error {
	if len(page) != PageSize {
		return skep.Invalidf(op, "page length in bytes", len(page), PageSize)
	}
	clear(page)
	copy(page[offMagic:], magic)
	le.PutUint32(page[offFormat:], FormatVersion)
	return nil
}

// sealPage writes the checksum.
func sealPage(page []byte, seed uint64) {
	le.PutUint64(page[offChecksum:], pageSum(page, seed))
}

func pageSum(page []byte, seed uint64) uint64 {
	return xxh3.HashSeed(page[:offChecksum], seed)
}

// checkPage tells not ours, damaged and of another format apart. The checksum comes
// before the format, whose place is the same in all of them, so that a flipped bit there
// is not taken for another format.
func checkPage(op, magic string, page []byte) error {
	if len(page) != PageSize {
		return skep.Invalidf(op, "page length in bytes", len(page), PageSize)
	}
	got := string(page[offMagic : offMagic+8])
	unreleased := magic == magicSuperblock && got == magicUnreleased
	if got != magic && !unreleased {
		if Blank(page) {
			return fail(skep.Foreign, op, "magic", "blank", fmt.Sprintf("%q", magic))
		}
		return fail(skep.Foreign, op, "magic", fmt.Sprintf("%q", got), fmt.Sprintf("%q", magic))
	}
	if got, want := le.Uint64(page[offChecksum:]), pageSum(page, 0); got != want {
		return damaged(op, "checksum", fmt.Sprintf("%016x", got), fmt.Sprintf("%016x", want))
	}
	n := le.Uint32(page[offFormat:])
	if unreleased {
		return fail(skep.Version, op, "format", fmt.Sprintf("%d of a build from before the first release", n), limitFormat)
	}
	return checkFormat(op, n)
}

// limitFormat says which format is read, and what to do with another.
var limitFormat = fmt.Sprintf("%d, the one that this program reads: use the skep that wrote the store, or make the store anew", FormatVersion)

func checkFormat(op string, n uint32) error {
	if n != FormatVersion {
		return fail(skep.Version, op, "format", n, limitFormat)
	}
	return nil
}

// Blank reports whether p is all zeros, as a page never written to is.
func Blank(p []byte) bool {
	for len(p) > PageSize {
		if !bytes.Equal(p[:PageSize], zeros[:]) {
			return false
		}
		p = p[PageSize:]
	}
	return bytes.Equal(p, zeros[:len(p)])
}

// zeros is what Blank compares with, many bytes at a time. Never written to.
var zeros [PageSize]byte

func checkSegmentBytes(kind skep.Kind, op string, n int64) error {
	if n%PageSize != 0 || n < MinSegmentPages*PageSize || n > MaxSegmentPages*PageSize {
		return fail(kind, op, "segment bytes", n,
			fmt.Sprintf("a multiple of %d from %d to %d", PageSize, MinSegmentPages*PageSize, int64(MaxSegmentPages)*PageSize))
	}
	return nil
}
