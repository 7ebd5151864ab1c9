package segment

import (
	"fmt"

	"github.com/skepkv/skep"
)

// Segment header, a segment's page 0. Part of the format and should not be changed;
// drawn in docs/reference/format.md.
const (
	shFlags        = 12  // uint32
	shStore        = 16  // 16 bytes
	shDevice       = 32  // 16 bytes
	shGeneration   = 48  // uint64
	shSeq          = 56  // uint64
	shSegmentBytes = 64  // uint64
	shGroup        = 72  // uint32
	shSegment      = 76  // uint32
	shPosition     = 80  // uint16
	shCount        = 82  // uint16
	shCopies       = 84  // uint16
	shSpare1       = 86  // 2 bytes, zero
	shDevices      = 88  // MaxGroupDevices slots, zero after the count
	shSpare2       = 600 // zero up to the checksum

	// A slot of the device list.
	slotSize    = 8
	slotDevice  = 0 // uint16
	slotSpare   = 2 // 2 bytes, zero
	slotSegment = 4 // uint32
)

// Constant only when the list fits before the spare bytes.
var _ uint = shSpare2 - (shDevices + MaxGroupDevices*slotSize)

// HeaderFlags qualify a segment header.
type HeaderFlags uint32

const (
	// HeaderFreed marks a segment whose group was cleaned: nothing in it counts any
	// more. One such header, or one of a later group, is enough to tell a rebuild that
	// the group is gone.
	HeaderFreed HeaderFlags = 1 << 0

	knownHeaderFlags = HeaderFreed
)

// Slot is one segment of a stripe group.
type Slot struct {
	Device  uint16 // the device's index in the store
	Segment uint32 // the segment's number on that device
}

// Header is a segment's first page, written and flushed before anything else of a
// new generation. The same list stands in each segment of the group.
type Header struct {
	Store        StoreID
	Device       DeviceID
	Group        uint32
	Generation   uint64 // of the group: how often its segments were opened; at least 1
	Segment      uint32 // this segment's number on its device
	Position     int    // of this device in Devices
	Devices      []Slot // 1 to MaxGroupDevices, all different
	SegmentBytes int64
	Copies       int    // 1 to skep.MaxCopies, of the blocks put here
	Seq          uint64 // store-wide sequence number at opening
	Flags        HeaderFlags
}

// Validate returns an Invalid error naming the first field outside its limits.
func (h *Header) Validate() error { return h.validate(skep.Invalid) }

func (h *Header) validate(kind skep.Kind) error {
	const op = "segment header"
	if h.Generation == 0 {
		return fail(kind, op, "generation", h.Generation, "at least 1")
	}
	if len(h.Devices) < 1 || len(h.Devices) > MaxGroupDevices {
		return fail(kind, op, "devices", len(h.Devices), fmt.Sprintf("1 to %d", MaxGroupDevices))
	}
	if h.Position < 0 || h.Position >= len(h.Devices) {
		return fail(kind, op, "position", h.Position, fmt.Sprintf("0 to %d", len(h.Devices)-1))
	}
	if got := h.Devices[h.Position].Segment; got != h.Segment {
		return fail(kind, op, "segment", h.Segment, fmt.Sprintf("%d, as in the device list", got))
	}
	for i, a := range h.Devices {
		for _, b := range h.Devices[:i] {
			if a.Device == b.Device {
				return fail(kind, op, "device list", fmt.Sprintf("device %d twice", a.Device), "each device once")
			}
		}
	}
	if h.Copies < 1 || h.Copies > skep.MaxCopies {
		return fail(kind, op, "copies", h.Copies, fmt.Sprintf("1 to %d", skep.MaxCopies))
	}
	if h.Flags&^knownHeaderFlags != 0 {
		return fail(kind, op, "flags", h.Flags, fmt.Sprintf("within %#x", uint32(knownHeaderFlags)))
	}
	return checkSegmentBytes(kind, op, h.SegmentBytes)
}

// LogID is the identity of the log in this segment, with the secret of the store.
func (h *Header) LogID(secret Secret) LogID {
	return LogID{Store: h.Store, Secret: secret, Group: h.Group, Generation: h.Generation, Position: uint16(h.Position)}
}

// Expect checks that h is the header of this segment of this device: Foreign when
// it is another store's or device's, Damaged when it was written to the wrong place.
func (h *Header) Expect(store StoreID, device DeviceID, segment uint32) error {
	const op = "segment header"
	switch {
	case h.Store != store:
		return fail(skep.Foreign, op, "store", h.Store, store)
	case h.Device != device:
		return fail(skep.Foreign, op, "device", h.Device, device)
	case h.Segment != segment:
		return damaged(op, "segment", h.Segment, segment)
	}
	return nil
}

// Encode writes h into page, which must be PageSize bytes. Invalid when a field is
// outside its limits; page is not touched then.
func (h *Header) Encode(page []byte) error {
	if err := h.Validate(); err != nil {
		return err
	}
	if err := beginPage("segment header", magicHeader, page); err != nil {
		return err
	}
	le.PutUint32(page[shFlags:], uint32(h.Flags))
	copy(page[shStore:], h.Store[:])
	copy(page[shDevice:], h.Device[:])
	le.PutUint64(page[shGeneration:], h.Generation)
	le.PutUint64(page[shSeq:], h.Seq)
	le.PutUint64(page[shSegmentBytes:], uint64(h.SegmentBytes))
	le.PutUint32(page[shGroup:], h.Group)
	le.PutUint32(page[shSegment:], h.Segment)
	le.PutUint16(page[shPosition:], uint16(h.Position))
	le.PutUint16(page[shCount:], uint16(len(h.Devices)))
	le.PutUint16(page[shCopies:], uint16(h.Copies))
	for i, s := range h.Devices {
		slot := page[shDevices+i*slotSize:]
		le.PutUint16(slot[slotDevice:], s.Device)
		le.PutUint32(slot[slotSegment:], s.Segment)
	}
	sealPage(page, 0)
	return nil
}

// DecodeHeader reads a segment's page 0. Foreign: the segment was never opened or
// is not skep's; Version: of another format; Damaged: ours and broken. The
// page is lent.
func DecodeHeader(page []byte) (Header, error) {
	const op = "segment header"
	if err := checkPage(op, magicHeader, page); err != nil {
		return Header{}, err
	}
	n := int(le.Uint16(page[shCount:]))
	if n > MaxGroupDevices {
		return Header{}, damaged(op, "devices", n, fmt.Sprintf("1 to %d", MaxGroupDevices))
	}
	if !Blank(page[shSpare1:shDevices]) || !Blank(page[shDevices+n*slotSize:offChecksum]) {
		return Header{}, damaged(op, "spare bytes", "set", "zero")
	}
	h := Header{
		Flags:        HeaderFlags(le.Uint32(page[shFlags:])),
		Store:        StoreID(page[shStore:]),
		Device:       DeviceID(page[shDevice:]),
		Generation:   le.Uint64(page[shGeneration:]),
		Seq:          le.Uint64(page[shSeq:]),
		SegmentBytes: int64(le.Uint64(page[shSegmentBytes:])),
		Group:        le.Uint32(page[shGroup:]),
		Segment:      le.Uint32(page[shSegment:]),
		Position:     int(le.Uint16(page[shPosition:])),
		Copies:       int(le.Uint16(page[shCopies:])),
		Devices:      make([]Slot, n),
	}
	for i := range h.Devices {
		slot := page[shDevices+i*slotSize : shDevices+(i+1)*slotSize]
		if le.Uint16(slot[slotSpare:]) != 0 {
			return Header{}, damaged(op, "spare bytes", "set", "zero")
		}
		h.Devices[i] = Slot{Device: le.Uint16(slot[slotDevice:]), Segment: le.Uint32(slot[slotSegment:])}
	}
	return h, h.validate(skep.Damaged)
}
