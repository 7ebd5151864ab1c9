package commit

import (
	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/segment"
)

// Block is a block whose row is to be written: what the catalog and the index are to know of it.
type Block struct {
	FP        index.Fingerprint
	Parent    index.Fingerprint // of the block before it in its chain
	HasParent bool
	Record    segment.Record
	Size      int64           // of its payload, in bytes
	Pages     int             // of the stored form, each part padded to 4 KiB; 0: it lives in its record
	At        layout.Location // of its first copy
	From      layout.Location // where it was, of one that is moved
	Result    *skep.PutResult
	Replaces  *index.Fingerprint
	Accepted  bool            // the index has it already, in memory
	Known     *segment.Record // of one that is accepted: what others see of it until it is committed
	Settled   func()          // of one that is accepted: it is committed now

	// What it replaces by name was only accepted, and its row may come yet; or that was deleted, unsynced.
	DropPending bool
	DropCovers  uint64 // the log has a tombstone of that, which covers up to this number; 0: none
	dropAt      uint64 // where it lay whose row goes with this one's commit; 0: there is none
	dropWritten uint64 // when that was written
	dropBytes   int64  // its payload
	dropForget  func() // takes it out of the DRAM tier

	replacedBytes int64 // the same of the block of its own key that it replaces
	forget        func()
	outdated      bool // a rival with a higher sequence number was committed first
}

// Durable says whether the block's namespace is.
func (b *Block) Durable() bool { return b.Record.Flags&segment.RecordDurable != 0 }

// tag is of the block's salt.
func (b *Block) tag() namespaces.Tag { return namespaces.Tag(b.Record.SaltTag) }

// Slots is what the block is charged in the index.
func (b *Block) Slots() int { return layout.SlotsOf(b.Pages, b.Size) }

// Entry is the block in the index.
func (b *Block) Entry(ns *namespaces.Namespace) index.Entry {
	return index.Entry{
		FP: b.FP, Parent: b.Parent, HasParent: b.HasParent, Depth: b.Record.Depth,
		Location: b.At.Pack(), Pages: uint32(b.Slots()), Namespace: ns.Instance, Tenant: ns.Tenant,
		Opaque: !ns.Info.Chained, Durable: ns.Info.Class == skep.Durable, Partial: b.Record.ValidTokens != 0,
		Odd: b.Record.Bytes() != ns.PartSize(skep.PartKV), Copies: uint8(ns.Info.Copies),
	}
}
