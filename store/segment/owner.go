package segment

import (
	"github.com/skepkv/skep"
)

// The owner's page, the third of a device. Part of the format and should not be changed; drawn in
// docs/reference/format.md.
const (
	OwnerOffset = 2 * PageSize // where it lies on a device

	owStore    = 16 // 16 bytes
	owDevice   = 32 // 16 bytes
	owOwner    = 48 // 16 bytes
	owPathSize = 64 // uint16
	owPath     = 66 // MaxOwnerPath bytes, zero after the path
	owSpare    = owPath + MaxOwnerPath

	// MaxOwnerPath is the longest path in it, in bytes; a longer one is cut.
	MaxOwnerPath = 1024
)

const magicOwner = "SKEP/own"

// Owner says which directory a device that lies outside it belongs to: two that are copies of each
// other must not both write to it.
type Owner struct {
	Store  StoreID
	Device DeviceID
	ID     [16]byte // of the directory's catalog; random, new where the directory is a copy
	Path   string   // of the directory, for people
}

// Encode writes o into page, which must be PageSize bytes.
func (o *Owner) Encode(page []byte) error {
	if err := beginPage("owner", magicOwner, page); err != nil {
		return err
	}
	copy(page[owStore:], o.Store[:])
	copy(page[owDevice:], o.Device[:])
	copy(page[owOwner:], o.ID[:])
	path := o.Path[:min(len(o.Path), MaxOwnerPath)]
	le.PutUint16(page[owPathSize:], uint16(len(path)))
	copy(page[owPath:], path)
	sealPage(page, 0)
	return nil
}

// DecodeOwner reads the page. Foreign: there is none; Damaged: a crash tore it.
func DecodeOwner(page []byte) (Owner, error) {
	if err := checkPage("owner", magicOwner, page); err != nil {
		return Owner{}, err
	}
	n := int(le.Uint16(page[owPathSize:]))
	if n > MaxOwnerPath {
		return Owner{}, fail(skep.Damaged, "owner", "path length in bytes", n, MaxOwnerPath)
	}
	return Owner{Store: StoreID(page[owStore:]), Device: DeviceID(page[owDevice:]), ID: [16]byte(page[owOwner:]), Path: string(page[owPath : owPath+n])}, nil
}
