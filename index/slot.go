package index

import (
	"encoding/binary"
	"unsafe"

	"github.com/skepkv/skep"
)

// Fingerprint is 96 bits of a keyed hash of (namespace instance, salt, key), computed by
// the caller under a secret no client knows. The index keeps all of them, so that what it
// gives out names the same block wherever else blocks are known by fingerprint. At 10 M
// blocks the chance that any two agree is 2^-50, and a read checks the whole key in the
// record in any case.
type Fingerprint [12]byte

// ID names a slot; 0 is none. It is good as long as its block stays: what outlives
// a call is checked against the fingerprint again.
type ID uint32

// Tick is time as the cleaner counts it: 1/65,536 of the capacity put.
type Tick uint32

// ticksPerCapacity is the resolution of Tick.
const ticksPerCapacity = 1 << 16

// Limits of what a slot can hold.
const (
	MaxDepth = 1<<24 - 1
	maxUses  = 255
)

// Entry is a block as callers see it.
type Entry struct {
	FP        Fingerprint
	Parent    Fingerprint // when HasParent
	HasParent bool        // false: the first block of a chain, or an opaque key
	Depth     uint32      // blocks before it in the chain; 0 exactly when HasParent is false
	// Location is layout.Location packed: the stripe group in the upper 32 bits. 0 is
	// nowhere yet: the block was accepted and is in DRAM only.
	Location  uint64
	Pages     uint32 // on the devices, of Config.PageBytes each, of one copy
	Namespace uint32 // namespace instance, never reused
	Tenant    uint16
	Opaque    bool // of a namespace without parents
	Partial   bool // a tail with fewer valid tokens than a block holds
	Odd       bool // its payload is not of the size that its namespace gives blocks, or that gives none
	Rooted    bool // all its ancestors are stored; set in entries the index returns
	Durable   bool // the cleaner must keep it
	Touched   bool // used since it was written where it is
	Uses      uint8
	Copies    uint8 // on as many devices, 1 to skep.MaxCopies; 0: 1
	Last      Tick  // when it was put or last touched; 0 in an entry given to Insert means now
}

// Group is the stripe group the block lies in; meaningless while Location is 0.
func (e *Entry) Group() uint32 { return groupOf(e.Location) }

// Accepted says that the block is in DRAM only.
func (e *Entry) Accepted() bool { return e.Location == 0 }

func groupOf(loc uint64) uint32 { return uint32(loc >> 32) }

const (
	flagLive      uint16 = 1 << iota // holds a block
	flagStub                         // holds the place of an absent parent
	flagRooted                       //
	flagHasParent                    // the block has a parent, absent or not
	flagOpaque
	flagDurable
	flagTouched // since it was written
	flagHinted  // Index.hints has a row
	flagPartial
	flagOdd

	copiesShift = 14 // the two bits above hold one less than the copies
)

var _ [0]struct{} = [skep.MaxCopies - 4]struct{}{}

// fp96 is a fingerprint as slots keep it.
type fp96 [3]uint32

// slot is a block's row, 56 bytes without a pointer.
type slot struct {
	fp        fp96
	next      uint32 // in the hash bucket, or on the free list
	parent    uint32
	child     uint32 // first of the children
	sibNext   uint32
	sibPrev   uint32 // 0 for the first child
	loc       uint64
	last      uint32 // Tick
	depthUses uint32 // depth<<8 | uses
	pages     uint32
	owner     uint16 // row of Index.owners: (namespace, tenant)
	flags     uint16
}

var _ [0]struct{} = [56 - unsafe.Sizeof(slot{})]struct{}{}

func cut(fp *Fingerprint) fp96 {
	return fp96{binary.LittleEndian.Uint32(fp[:4]), binary.LittleEndian.Uint32(fp[4:8]), binary.LittleEndian.Uint32(fp[8:])}
}

func (f fp96) full() (fp Fingerprint) {
	binary.LittleEndian.PutUint32(fp[:4], f[0])
	binary.LittleEndian.PutUint32(fp[4:8], f[1])
	binary.LittleEndian.PutUint32(fp[8:], f[2])
	return fp
}

func (s *slot) has(f uint16) bool { return s.flags&f != 0 }
func (s *slot) depth() uint32     { return s.depthUses >> 8 }
func (s *slot) uses() uint8       { return uint8(s.depthUses) }
func (s *slot) copies() int64     { return int64(s.flags>>copiesShift) + 1 }
func (s *slot) setCopies(n uint8) {
	s.flags = s.flags&^(3<<copiesShift) | uint16(max(n, 1)-1)&3<<copiesShift
}

// follows says that s may be seen behind parent: one deeper, and parent is no partial
// tail, behind which a chain has a gap.
func (s *slot) follows(parent *slot) bool {
	return s.depth() == parent.depth()+1 && !parent.has(flagPartial)
}
