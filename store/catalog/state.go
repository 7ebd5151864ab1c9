package catalog

import "github.com/skepkv/skep"

// FormatVersion is the format of the catalog that this program reads and writes, and it
// knows no other: a store whose root row says another does not open (skep.Version). A
// format's rows never change once released.
const FormatVersion = 1

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
}

// Namespace is row 'n'. Instance is the number blocks carry on devices: it changes
// when a namespace is purged, its id does not come back either.
type Namespace struct {
	skep.NamespaceInfo
	Instance uint32 `json:"instance"`
}

// Purge is a row 'p': what carries this instance and salt tag, and a sequence number up to
// Seq is gone. A purge of the whole instance has none: the namespace gets another instance.
type Purge struct {
	Instance uint32
	Tag      [16]byte
	Seq      uint64
}

// DeviceStatus is how a device stands. The numbers are stored.
type DeviceStatus uint8

const (
	DeviceInUse   DeviceStatus = 0 // read and written
	DeviceRemoved DeviceStatus = 1 // its index is not reused
	// DeviceDraining takes nothing new; what it holds is being moved elsewhere.
	DeviceDraining DeviceStatus = 2
)

func (s DeviceStatus) String() string {
	switch s {
	case DeviceInUse:
		return "in use"
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

// Owner is row 'o': whose the devices are that lie outside the store's directory. A copy of the
// directory has it, too, and is told from it by what a copy cannot have: the directory itself.
type Owner struct {
	ID      [16]byte           `json:"id"`        // random; a copy that is opened gets one of its own
	Dir     string             `json:"directory"` // what the system tells the directory by
	Path    string             `json:"path"`      // where it was, for people
	Outside map[string]Outside `json:"outside"`   // by device id in hexadecimal; all others lie in it
	Without []string           `json:"without"`   // ids of devices it lacked when it became one of its own
}

// Outside is a device outside the directory. What is written on it names one of Owners, the last
// of which is the owner now, or nobody.
type Outside struct {
	Path   string     `json:"path"`
	Owners [][16]byte `json:"owners"`
}

// Limits is what a store was made with, or was told since.
type Limits struct {
	Known    bool   // of stores that noted it
	Capacity uint64 // cap on all devices together, in bytes; 0: none
	Devices  uint32 // how many it was made with; 0: that is not known
}

// StoreState is row 's', the root of the catalog.
type StoreState struct {
	StoreID       [16]byte // in every superblock
	Secret        [16]byte // key of the salt and fingerprint hashes
	Clean         bool     // closed in order; cleared by the first write after an open
	Relog         bool     // what a rebuild knows and the devices' logs do not say is to be logged at the next open
	NextSeq       uint64   // no sequence number at or above it was given out; reserved ahead
	FlushedSeq    uint64   // everything below it is on the devices
	NextGroup     uint32
	NextInstance  uint32
	NextNamespace uint32
	Epoch         uint64 // opens
	Lasting       uint64 // the latest time a store of it knew, in ms since 1970
	Limits        Limits
}
