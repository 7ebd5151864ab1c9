package segment

import (
	"bytes"
	"fmt"
	"time"

	"github.com/skepkv/skep"
)

// Superblock, one page, twice on a device. Part of the format and should not be
// changed; drawn in docs/reference/format.md.
const (
	sbSpare0       = 12                       // 4 bytes, zero
	sbSequence     = 16                       // uint64
	sbStore        = 24                       // 16 bytes
	sbDevice       = 40                       // 16 bytes
	sbSecret       = 56                       // 16 bytes
	sbDeviceBytes  = 72                       // uint64
	sbSegmentBytes = 80                       // uint64
	sbFirstSegment = 88                       // uint64
	sbCreated      = 96                       // int64, Unix nanoseconds
	sbDeviceIndex  = 104                      // uint16
	sbDeviceCount  = 106                      // uint16
	sbSerialSize   = 108                      // uint16
	sbMadeCount    = 110                      // uint16
	sbSerial       = 112                      // 128 bytes, zero after the serial
	sbCapacity     = 240                      // uint64
	sbGivenUpCount = 248                      // uint16
	sbGivenUp      = 250                      // uint16 each, zero after the last
	sbSpare2       = sbGivenUp + 2*MaxGivenUp // zero up to the checksum
)

// Superblock says whose device this is and how it is cut. Sizes are bytes.
type Superblock struct {
	Sequence     uint64 // of the two copies the higher wins; at least 1
	Store        StoreID
	Device       DeviceID
	Serial       string // of the drive, at most MaxSerialSize bytes; may be empty
	DeviceIndex  int    // this device's number in the store
	DeviceCount  int    // devices of the store when this was written; more may have joined
	MadeCount    int    // devices it was made with; 0: not known
	DeviceBytes  int64
	SegmentBytes int64
	FirstSegment int64 // offset of segment 0, at least ReservedBytes
	HashSecret   Secret
	Capacity     int64     // that all devices together may have; 0: no cap, or not known
	Created      time.Time // of the device in this store; kept to the nanosecond, as UTC
	GivenUp      []uint16  // numbers, ascending, of devices that a rebuild went on without: they cannot come back
}

// Validate returns an Invalid error naming the first field outside its limits.
func (s *Superblock) Validate() error { return s.validate(skep.Invalid) }

func (s *Superblock) validate(kind skep.Kind) error {
	const op = "superblock"
	if s.Sequence == 0 {
		return fail(kind, op, "sequence", s.Sequence, "at least 1")
	}
	if len(s.Serial) > MaxSerialSize {
		return fail(kind, op, "serial length in bytes", len(s.Serial), fmt.Sprintf("at most %d", MaxSerialSize))
	}
	if bytes.IndexByte([]byte(s.Serial), 0) >= 0 {
		return fail(kind, op, "serial", fmt.Sprintf("%q", s.Serial), "free of zero bytes")
	}
	if s.DeviceCount < 1 || s.DeviceCount >= MaxDevices {
		return fail(kind, op, "device count", s.DeviceCount, fmt.Sprintf("1 to %d", MaxDevices-1))
	}
	if s.MadeCount < 0 || s.MadeCount >= MaxDevices {
		return fail(kind, op, "devices it was made with", s.MadeCount, fmt.Sprintf("0 to %d", MaxDevices-1))
	}
	if s.DeviceIndex < 0 || s.DeviceIndex >= MaxDevices {
		return fail(kind, op, "device index", s.DeviceIndex, fmt.Sprintf("0 to %d", MaxDevices-1))
	}
	if err := checkSegmentBytes(kind, op, s.SegmentBytes); err != nil {
		return err
	}
	if s.FirstSegment < ReservedBytes || s.FirstSegment%PageSize != 0 {
		return fail(kind, op, "first segment offset", s.FirstSegment, fmt.Sprintf("a multiple of %d, at least %d", PageSize, ReservedBytes))
	}
	if s.DeviceBytes < s.SegmentBytes || s.FirstSegment > s.DeviceBytes-s.SegmentBytes {
		return fail(kind, op, "device bytes", s.DeviceBytes, fmt.Sprintf("room for one segment of %d at %d", s.SegmentBytes, s.FirstSegment))
	}
	if s.Capacity < 0 {
		return fail(kind, op, "capacity", s.Capacity, "0 or more")
	}
	if len(s.GivenUp) > MaxGivenUp {
		return fail(kind, op, "devices given up", len(s.GivenUp), fmt.Sprintf("at most %d", MaxGivenUp))
	}
	for i, n := range s.GivenUp[min(1, len(s.GivenUp)):] {
		if n <= s.GivenUp[i] {
			return fail(kind, op, "device given up", n, fmt.Sprintf("above %d, which is before it", s.GivenUp[i]))
		}
	}
	if y := s.Created.UTC().Year(); y < 1970 || y > 2261 {
		return fail(kind, op, "year of creation", y, "1970 to 2261")
	}
	return nil
}

// Segments is how many whole segments the device holds.
func (s *Superblock) Segments() int { return int((s.DeviceBytes - s.FirstSegment) / s.SegmentBytes) }

// SegmentOffset is where segment n begins on the device, in bytes.
func (s *Superblock) SegmentOffset(n uint32) int64 { return s.FirstSegment + int64(n)*s.SegmentBytes }

// Encode writes s into page, which must be PageSize bytes. Invalid when a field is
// outside its limits; page is not touched then.
func (s *Superblock) Encode(page []byte) error {
	if err := s.Validate(); err != nil {
		return err
	}
	if err := beginPage("superblock", magicSuperblock, page); err != nil {
		return err
	}
	le.PutUint64(page[sbSequence:], s.Sequence)
	copy(page[sbStore:], s.Store[:])
	copy(page[sbDevice:], s.Device[:])
	copy(page[sbSecret:], s.HashSecret[:])
	le.PutUint64(page[sbDeviceBytes:], uint64(s.DeviceBytes))
	le.PutUint64(page[sbSegmentBytes:], uint64(s.SegmentBytes))
	le.PutUint64(page[sbFirstSegment:], uint64(s.FirstSegment))
	le.PutUint64(page[sbCreated:], uint64(s.Created.UnixNano()))
	le.PutUint16(page[sbDeviceIndex:], uint16(s.DeviceIndex))
	le.PutUint16(page[sbDeviceCount:], uint16(s.DeviceCount))
	le.PutUint16(page[sbMadeCount:], uint16(s.MadeCount))
	le.PutUint16(page[sbSerialSize:], uint16(len(s.Serial)))
	copy(page[sbSerial:], s.Serial)
	le.PutUint64(page[sbCapacity:], uint64(s.Capacity))
	le.PutUint16(page[sbGivenUpCount:], uint16(len(s.GivenUp)))
	for i, n := range s.GivenUp {
		le.PutUint16(page[sbGivenUp+2*i:], n)
	}
	sealPage(page, 0)
	return nil
}

// DecodeSuperblock reads one copy. Foreign: the page is blank or somebody else's;
// Version: of another format; Damaged: ours and broken. The page is lent.
func DecodeSuperblock(page []byte) (Superblock, error) {
	const op = "superblock"
	if err := checkPage(op, magicSuperblock, page); err != nil {
		return Superblock{}, err
	}
	n := int(le.Uint16(page[sbSerialSize:]))
	if n > MaxSerialSize {
		return Superblock{}, damaged(op, "serial length in bytes", n, fmt.Sprintf("at most %d", MaxSerialSize))
	}
	gone := int(le.Uint16(page[sbGivenUpCount:]))
	if gone > MaxGivenUp {
		return Superblock{}, damaged(op, "devices given up", gone, fmt.Sprintf("at most %d", MaxGivenUp))
	}
	if !Blank(page[sbSpare0:sbSequence]) || !Blank(page[sbSerial+n:sbCapacity]) ||
		!Blank(page[sbGivenUp+2*gone:offChecksum]) {
		return Superblock{}, damaged(op, "spare bytes", "set", "zero")
	}
	s := Superblock{
		Sequence:     le.Uint64(page[sbSequence:]),
		Store:        StoreID(page[sbStore:]),
		Device:       DeviceID(page[sbDevice:]),
		HashSecret:   Secret(page[sbSecret:]),
		DeviceBytes:  int64(le.Uint64(page[sbDeviceBytes:])),
		SegmentBytes: int64(le.Uint64(page[sbSegmentBytes:])),
		FirstSegment: int64(le.Uint64(page[sbFirstSegment:])),
		Created:      time.Unix(0, int64(le.Uint64(page[sbCreated:]))).UTC(),
		DeviceIndex:  int(le.Uint16(page[sbDeviceIndex:])),
		DeviceCount:  int(le.Uint16(page[sbDeviceCount:])),
		MadeCount:    int(le.Uint16(page[sbMadeCount:])),
		Serial:       string(page[sbSerial : sbSerial+n]),
		Capacity:     int64(le.Uint64(page[sbCapacity:])),
	}
	for i := range gone {
		s.GivenUp = append(s.GivenUp, le.Uint16(page[sbGivenUp+2*i:]))
	}
	return s, s.validate(skep.Damaged)
}

// ChooseSuperblock reads both copies and returns the newest valid one and which it
// is (0 for a, 1 for b): an update overwrites the other one, so that one is whole
// at any time. One bad copy is overlooked, another format is not: the older copy may be
// all that is left of what was there before it. With no valid copy the error
// is Version before Damaged before Foreign. Two valid copies of different stores
// or devices are Foreign: making a store must clear b before it writes a.
func ChooseSuperblock(a, b []byte) (Superblock, int, error) {
	const op = "superblock"
	sa, errA := DecodeSuperblock(a)
	sb, errB := DecodeSuperblock(b)
	for _, err := range []error{errA, errB} {
		if k := skep.KindOf(err); err != nil && (k == skep.Version || k == skep.Invalid) {
			return Superblock{}, 0, err
		}
	}
	switch {
	case errA != nil && errB != nil:
		if skep.KindOf(errB) == skep.Damaged && skep.KindOf(errA) == skep.Foreign {
			errA = errB
		}
		return Superblock{}, 0, errA
	case errB != nil:
		return sa, 0, nil
	case errA != nil:
		return sb, 1, nil
	case sa.Store != sb.Store:
		return Superblock{}, 0, fail(skep.Foreign, op, "store of the second copy", sb.Store, sa.Store)
	case sa.Device != sb.Device:
		return Superblock{}, 0, fail(skep.Foreign, op, "device of the second copy", sb.Device, sa.Device)
	case sa.Sequence == sb.Sequence && !bytes.Equal(a, b):
		return Superblock{}, 0, damaged(op, "sequence of two different copies", sa.Sequence, "different")
	case sb.Sequence > sa.Sequence:
		return sb, 1, nil
	}
	return sa, 0, nil
}
