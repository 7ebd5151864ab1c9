package catalog

import (
	"github.com/RoaringBitmap/roaring/v2"

	"github.com/skepkv/skep"
)

// FormatVersion is the newest store format this program reads and writes. A store
// whose StoreState.Format is higher does not open (skep.Version).
//
//	1	the first
//	2	names, purges and deletions are on the devices too; rows 'j'
//	3	block rows may be sealed, and have larger parts in them
//	4	block rows may be of values that share a page
//	5	rows 'x' and 'y', which deletions and purges take along
const FormatVersion = 5

// GroupPhase is where a stripe group is in its life. The numbers are stored.
type GroupPhase uint8

const (
	GroupFree     GroupPhase = 0 // cleaned; the row goes once the headers are marked as freed
	GroupOpen     GroupPhase = 1 // being written, front to back
	GroupSealed   GroupPhase = 2 // written; read only
	GroupCleaning GroupPhase = 3 // sealed, and its log has records of blocks that are gone without a tombstone
)

func (p GroupPhase) String() string {
	switch p {
	case GroupFree:
		return "free"
	case GroupOpen:
		return "open"
	case GroupSealed:
		return "sealed"
	case GroupCleaning:
		return "cleaning"
	}
	return "unknown"
}

// Member is one segment of a stripe group.
type Member struct {
	Device  uint16 // index of the device
	Segment uint32 // index of the segment on it
}

// GroupState is row 'g'.
type GroupState struct {
	Group        uint32
	Generation   uint64 // reuse count; what does not carry it is not ours
	State        GroupPhase
	Devices      []Member // in striping order
	SegmentBytes int64    // of one member
	Copies       int
	OpenedSeq    uint64 // store-wide sequence number
	SealedSeq    uint64
	Blocks       int64           // when sealed
	Bytes        int64           // payload of them
	Live         *roaring.Bitmap // starts of live blocks, page × devices + device; written at seal, may be nil
}

// Namespace is row 'n'. Instance is the number blocks carry on devices: it changes
// when a namespace is purged, its id does not come back either.
type Namespace struct {
	skep.NamespaceInfo
	Instance uint32 `json:"instance"`
}

// Purge is a row 'p': what carries this instance (Whole), or this instance and salt
// tag, and a sequence number up to Seq is gone.
type Purge struct {
	Instance uint32
	Whole    bool
	Tag      [16]byte // zero when Whole
	Seq      uint64
}

// DeviceStatus is how a device stands. The numbers are stored.
type DeviceStatus uint8

const (
	DeviceInUse   DeviceStatus = 0 // read and written
	DeviceFenced  DeviceStatus = 1 // failed or too slow: nothing new goes there
	DeviceRemoved DeviceStatus = 2 // its index is not reused
	// DeviceDraining takes nothing new; what it holds is being moved elsewhere.
	DeviceDraining DeviceStatus = 3
)

func (s DeviceStatus) String() string {
	switch s {
	case DeviceInUse:
		return "in use"
	case DeviceFenced:
		return "fenced"
	case DeviceRemoved:
		return "removed"
	case DeviceDraining:
		return "draining"
	}
	return "unknown"
}

// DeviceState is row 'd'.
type DeviceState struct {
	Index        uint16
	ID           [16]byte // in its superblock
	Serial       string
	Path         string // where it was last seen
	Size         int64  // bytes
	SegmentBytes int64
	Segments     uint32
	State        DeviceStatus
}

// StoreState is row 's', the root of the catalog.
type StoreState struct {
	StoreID       [16]byte // in every superblock
	Secret        [16]byte // key of the salt and fingerprint hashes
	Format        uint32   // see FormatVersion
	Clean         bool     // closed in order; cleared by the first write after an open
	NextSeq       uint64   // no sequence number at or above it was given out; reserved ahead
	FlushedSeq    uint64   // everything below it is on the devices
	NextGroup     uint32
	NextInstance  uint32
	NextNamespace uint32
	Epoch         uint64 // opens
}
