package shm

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"sync/atomic"
	"unsafe"

	"github.com/skepkv/skep"
)

// EntrySize is the size of a ring's entry in bytes.
const EntrySize = 64

// MaxEntries is the largest ring.
const MaxEntries = 1 << 20

// What an entry says.
const (
	Landed uint8 = 0 // the chunk's bytes are in its destination
	Miss   uint8 = 1 // the chunk will not come, for Kind
	End    uint8 = 2 // every chunk of the session was told of
)

// Entry is one completion.
//
//	offset size
//	 0     8    sequence: 1 for the first entry ever written, then one more each; written last
//	 8     8    session
//	16     4    chain
//	20     4    block
//	24     4    first layer
//	28     4    layer after the last
//	32     8    bytes
//	40     2    kind of a miss
//	42     1    what
//	43     1    tier
//	44     4    CRC-32 of bytes 8 to 43
//	48    16    zero
//
// This is part of the protocol and does not change.
type Entry struct {
	Session      uint64
	Chain, Block uint32
	Layers       [2]uint32
	Bytes        uint64
	Kind         skep.Kind
	What         uint8
	Tier         skep.Tier
}

var le = binary.LittleEndian

// Append adds bytes 8 to 63 of the entry.
func (e *Entry) Append(b []byte) []byte {
	at := len(b)
	b = le.AppendUint64(b, e.Session)
	b = le.AppendUint32(b, e.Chain)
	b = le.AppendUint32(b, e.Block)
	b = le.AppendUint32(b, e.Layers[0])
	b = le.AppendUint32(b, e.Layers[1])
	b = le.AppendUint64(b, e.Bytes)
	b = le.AppendUint16(b, uint16(e.Kind))
	b = append(b, e.What, uint8(e.Tier))
	b = le.AppendUint32(b, crc32.ChecksumIEEE(b[at:]))
	return append(b, make([]byte, 16)...)
}

// Parse reads what Append wrote.
func Parse(b []byte) (e Entry, err error) {
	if len(b) < EntrySize-8 {
		return e, damaged("entry length", len(b), EntrySize-8)
	}
	if s := crc32.ChecksumIEEE(b[:36]); s != le.Uint32(b[36:]) {
		return e, damaged("entry checksum", le.Uint32(b[36:]), s)
	}
	return Entry{Session: le.Uint64(b), Chain: le.Uint32(b[8:]), Block: le.Uint32(b[12:]), Layers: [2]uint32{le.Uint32(b[16:]), le.Uint32(b[20:])},
		Bytes: le.Uint64(b[24:]), Kind: skep.Kind(le.Uint16(b[32:])), What: b[34], Tier: skep.Tier(b[35])}, nil
}

func damaged(field string, value, limit any) error {
	return &skep.Error{Op: "shared ring", Kind: skep.Damaged, Field: field, Value: value, Limit: limit}
}

// CheckRing says whether a ring of so many entries at offset fits into size bytes.
func CheckRing(size, offset uint64, entries uint32) error {
	const op = "shared ring"
	if entries < 2 || entries > MaxEntries || entries&(entries-1) != 0 {
		return skep.Invalidf(op, "entries", entries, fmt.Sprintf("a power of two from 2 to %d", MaxEntries))
	}
	if need := uint64(entries) * EntrySize; offset%EntrySize != 0 || offset > size || size-offset < need {
		return skep.Invalidf(op, "offset", offset, fmt.Sprintf("a multiple of %d with room for %d bytes in %d", EntrySize, need, size))
	}
	return nil
}

// Writer puts entries into a ring. It never reads the ring. It is for one goroutine at a
// time.
type Writer struct {
	mem  []byte
	next uint64
}

// NewWriter writes to mem, which is as long as its entries, a power of two of them.
func NewWriter(mem []byte) *Writer { return &Writer{mem: mem} }

// Put writes the next entry, over what was there: that there is room is the caller's
// affair.
func (w *Writer) Put(e *Entry) {
	var b [EntrySize - 8]byte
	e.Append(b[:0])
	slot := slotOf(w.mem, w.next)
	w.next++
	copy(slot[8:], b[:])
	sequence(slot).Store(w.next)
}

// Reader takes entries out of a ring, in order. It is for one goroutine at a time.
type Reader struct {
	mem  []byte
	next uint64
}

// NewReader reads from mem, as long as NewWriter's.
func NewReader(mem []byte) *Reader { return &Reader{mem: mem} }

// Next gives the next entry, if there is one.
func (r *Reader) Next() (e Entry, ok bool, err error) {
	slot := slotOf(r.mem, r.next)
	if sequence(slot).Load() != r.next+1 {
		return e, false, nil
	}
	r.next++
	e, err = Parse(slot[8:])
	return e, true, err
}

func slotOf(mem []byte, n uint64) []byte {
	at := n % uint64(len(mem)/EntrySize) * EntrySize
	return mem[at : at+EntrySize : at+EntrySize]
}

func sequence(slot []byte) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(slot)))
}
