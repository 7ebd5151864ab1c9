package segment

import (
	"bytes"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// Record: a head of fixed size with what an open needs, then the rest. Part of the
// format and should not be changed; drawn in docs/reference/format.md.
const (
	recSize        = 0   // uint32, of the whole record with its checksum
	recFlags       = 4   // uint8, RecordFlags
	recHas         = 5   // uint8, has*
	recCopies      = 6   // uint8
	recParts       = 7   // uint8
	recSeq         = 8   // uint64
	recInstance    = 16  // uint32
	recNamespace   = 20  // uint32
	recSaltTag     = 24  // 16 bytes
	recKey         = 40  // 32 bytes
	recParent      = 72  // 32 bytes, zero without hasParent
	recDepth       = 104 // uint32
	recValidTokens = 108 // uint32
	recVersion     = 112 // uint32
	recPages       = 116 // uint32
	recBytes       = 120 // uint64
	recPlace       = 128 // place of the first copy, zero without copies
	recNameSize    = 140 // uint16
	recSpare       = 142 // 2 bytes, zero
	recTail        = 144 // other places, replaced key, name, parts, checksum

	// A place.
	placeGroup  = 0  // uint32
	placePage   = 4  // uint32
	placeDevice = 8  // uint8
	placeSub    = 9  // uint8
	placeSpare  = 10 // 2 bytes, zero
	placeSize   = 12

	// A part, before its name, inline bytes and checksums.
	partNameSize = 0 // uint8
	partInline   = 1 // uint8, 1 when the bytes follow the name
	partSpare    = 2 // 2 bytes, zero
	partSums     = 4 // uint32, number of granule checksums
	partBytes    = 8 // uint64
	partHead     = 16

	checksumSize = 8

	hasParent   = 1 << 0
	hasReplaces = 1 << 1
	hasSeal     = 1 << 2
	knownHas    = hasParent | hasReplaces | hasSeal

	minRecordSize = recTail + partHead + 1 + checksumSize
)

// RecordFlags say what a block's record cannot say otherwise.
type RecordFlags uint8

const (
	// RecordSalted marks a block put under a salt.
	RecordSalted RecordFlags = 1 << 0
	// RecordDurable marks a block whose class was Durable when it was put.
	RecordDurable RecordFlags = 1 << 1
	// RecordMoved marks a copy written by the cleaner, repair or reclustering.
	RecordMoved RecordFlags = 1 << 2
	// RecordSuccessor marks a block that was put over an older one of its key, whose
	// record may still lie on a device: when this one goes, a tombstone must take its
	// place.
	RecordSuccessor RecordFlags = 1 << 3

	knownRecordFlags = RecordSalted | RecordDurable | RecordMoved | RecordSuccessor
)

// RecordPart is one part of a block.
type RecordPart struct {
	Name   string
	Size   int64    // bytes
	Sums   []uint64 // granule checksums, see GranuleSum
	Inline []byte   // the part's bytes, when it lives in the record; nil: they are at the Copies
	Seal   []byte   // of a sealed record: SealSize(len(Sums)) bytes
}

// Record is all there is to know about one stored block.
type Record struct {
	Seq         uint64 // store-wide; of two records of a block the newer wins
	Instance    uint32 // of the namespace: changes when it is purged
	NamespaceID uint32
	SaltTag     SaltTag
	Key         skep.Key
	Parent      *skep.Key // nil exactly when Depth is 0
	Depth       uint32
	ValidTokens uint32 // of a partial tail; 0 means all
	Version     uint32 // write version, bound into granule checksums
	Flags       RecordFlags
	Pages       uint32 // 4 KiB pages each copy takes on devices; 0 exactly when there are no Copies
	Name        []byte // the engine's own name
	Parts       []RecordPart
	Copies      []layout.Location // none exactly when no part has bytes outside the record
	Replaces    *skep.Key         // a partial tail this block makes superfluous
	Sealed      *Seal             // the payload is encrypted; nil: it is not
}

// Written is the sequence number the block's bytes were first written under: its version,
// completed from the record's own number, which grows each time the block is moved. Of
// two records of a block the one written later is newer, and of two written at once the
// one moved last.
func (r *Record) Written() uint64 { return written(r.Seq, r.Version) }

// Written is Record.Written.
func (h *Head) Written() uint64 { return written(h.Seq, h.Version) }

// written holds as long as a block is not moved 2^32 appends after it was written.
func written(seq uint64, version uint32) uint64 { return seq - uint64(uint32(seq)-version) }

// Seed is what the checksums of a part's granules are seeded with.
func (r *Record) Seed(part int) Seed {
	return NewSeed(r.Instance, r.SaltTag, r.Key, r.Parts[part].Name, r.Version)
}

// Block is what the record says of its block, which is not the record's memory; First is not known.
func (r *Record) Block() skep.StoredBlock {
	b := skep.StoredBlock{Key: r.Key, Depth: int(r.Depth), ValidTokens: int(r.ValidTokens), Name: bytes.Clone(r.Name)}
	if r.Parent != nil {
		p := *r.Parent
		b.Parent = &p
	}
	for i := range r.Parts {
		b.Manifest = append(b.Manifest, skep.PartSpec{Name: r.Parts[i].Name, Size: r.Parts[i].Size})
	}
	return b
}

// Bytes is the payload size of all parts.
func (r *Record) Bytes() int64 {
	var n int64
	for i := range r.Parts {
		n += r.Parts[i].Size
	}
	return n
}

// Len is the length of the encoded record, in bytes.
func (r *Record) Len() int {
	n := recTail + len(r.Name) + checksumSize
	if len(r.Copies) > 1 {
		n += (len(r.Copies) - 1) * placeSize
	}
	if r.Replaces != nil {
		n += skep.KeySize
	}
	if r.Sealed != nil {
		n += sealSize
	}
	for i := range r.Parts {
		p := &r.Parts[i]
		n += partHead + len(p.Name) + len(p.Inline) + 8*len(p.Sums) + len(p.Seal)
	}
	return n
}

// Validate returns an Invalid error naming the first field outside its limits.
func (r *Record) Validate() error { return r.validate(skep.Invalid) }

func (r *Record) validate(kind skep.Kind) error {
	const op = "record"
	if (r.Parent == nil) != (r.Depth == 0) || r.Depth > skep.MaxDepth {
		return fail(kind, op, "depth", r.Depth, fmt.Sprintf("0 exactly when there is no parent, at most %d", skep.MaxDepth))
	}
	if r.ValidTokens > skep.MaxBlockTokens {
		return fail(kind, op, "valid tokens", r.ValidTokens, fmt.Sprintf("at most %d", skep.MaxBlockTokens))
	}
	if r.Flags&^knownRecordFlags != 0 {
		return fail(kind, op, "flags", uint8(r.Flags), fmt.Sprintf("within %#x", uint8(knownRecordFlags)))
	}
	if len(r.Name) > skep.MaxBlockNameSize {
		return fail(kind, op, "name length in bytes", len(r.Name), fmt.Sprintf("at most %d", skep.MaxBlockNameSize))
	}
	placed, err := r.validateParts(kind)
	if err != nil {
		return err
	}
	if len(r.Copies) > skep.MaxCopies || (len(r.Copies) != 0) != placed {
		return fail(kind, op, "copies", len(r.Copies), fmt.Sprintf("at most %d, none exactly when all bytes are in the record", skep.MaxCopies))
	}
	if (r.Pages != 0) != placed {
		return fail(kind, op, "pages", r.Pages, "0 exactly when there are no copies")
	}
	for i, p := range r.Copies {
		if p.Page < 1 || p.Page >= MaxSegmentPages || p.Device >= MaxGroupDevices || p.Sub >= SubsPerPage {
			return fail(kind, op, "copy", fmt.Sprintf("%+v", p),
				fmt.Sprintf("page 1 to %d, device below %d, sub below %d", MaxSegmentPages-1, MaxGroupDevices, SubsPerPage))
		}
		for _, q := range r.Copies[:i] {
			if p == q {
				return fail(kind, op, "copy", fmt.Sprintf("%+v", p), "named once")
			}
		}
	}
	return nil
}

func (r *Record) validateParts(kind skep.Kind) (placed bool, err error) {
	const op = "record"
	if len(r.Parts) < 1 || len(r.Parts) > skep.MaxParts {
		return false, fail(kind, op, "parts", len(r.Parts), fmt.Sprintf("1 to %d", skep.MaxParts))
	}
	var bytes int64
	var sums int
	for i := range r.Parts {
		p := &r.Parts[i]
		if len(p.Name) < 1 || len(p.Name) > skep.MaxPartNameSize {
			return false, fail(kind, op, "part name length in bytes", len(p.Name), fmt.Sprintf("1 to %d", skep.MaxPartNameSize))
		}
		for j := range i {
			if r.Parts[j].Name == p.Name {
				return false, fail(kind, op, "part "+p.Name, "named twice", "named once")
			}
		}
		if p.Size < 0 || p.Size > skep.MaxPartBytes {
			return false, fail(kind, op, "size of part "+p.Name, p.Size, fmt.Sprintf("0 to %d", int64(skep.MaxPartBytes)))
		}
		if p.Inline != nil && (int64(len(p.Inline)) != p.Size || p.Size > MaxInlineSize) {
			return false, fail(kind, op, "inline bytes of part "+p.Name, len(p.Inline), fmt.Sprintf("its size %d, at most %d", p.Size, MaxInlineSize))
		}
		want := 0
		if r.Sealed != nil {
			want = SealSize(len(p.Sums))
		}
		if len(p.Seal) != want {
			return false, fail(kind, op, "seal of part "+p.Name+" in bytes", len(p.Seal), want)
		}
		bytes += p.Size
		sums += len(p.Sums)
		placed = placed || p.Inline == nil && p.Size > 0
	}
	if bytes > skep.MaxPartBytes {
		return false, fail(kind, op, "block size in bytes", bytes, fmt.Sprintf("at most %d", int64(skep.MaxPartBytes)))
	}
	most := MaxGranules
	if r.Sealed != nil {
		most = MaxSealedGranules
	}
	if sums > most {
		return false, fail(kind, op, "granule checksums", sums, fmt.Sprintf("at most %d", most))
	}
	return placed, nil
}

// Append appends r's encoding to dst and returns the longer slice; it allocates
// only when dst lacks Len bytes of capacity. r must be valid (see Validate): what an
// invalid record encodes to is unspecified.
func (r *Record) Append(dst []byte) []byte {
	start := len(dst)
	dst = append(dst, make([]byte, recTail)...)
	h := dst[start:]
	le.PutUint32(h[recSize:], uint32(r.Len()))
	h[recFlags] = byte(r.Flags)
	h[recCopies] = byte(len(r.Copies))
	h[recParts] = byte(len(r.Parts))
	le.PutUint64(h[recSeq:], r.Seq)
	le.PutUint32(h[recInstance:], r.Instance)
	le.PutUint32(h[recNamespace:], r.NamespaceID)
	copy(h[recSaltTag:], r.SaltTag[:])
	copy(h[recKey:], r.Key[:])
	if r.Parent != nil {
		h[recHas] |= hasParent
		copy(h[recParent:], r.Parent[:])
	}
	if r.Replaces != nil {
		h[recHas] |= hasReplaces
	}
	if r.Sealed != nil {
		h[recHas] |= hasSeal
	}
	le.PutUint32(h[recDepth:], r.Depth)
	le.PutUint32(h[recValidTokens:], r.ValidTokens)
	le.PutUint32(h[recVersion:], r.Version)
	le.PutUint32(h[recPages:], r.Pages)
	le.PutUint64(h[recBytes:], uint64(r.Bytes()))
	le.PutUint16(h[recNameSize:], uint16(len(r.Name)))
	for i, p := range r.Copies {
		if i == 0 {
			appendPlace(h[recPlace:recPlace], p)
		} else {
			dst = appendPlace(dst, p)
		}
	}
	if r.Replaces != nil {
		dst = append(dst, r.Replaces[:]...)
	}
	if r.Sealed != nil {
		dst = append(append(dst, r.Sealed.Key[:]...), r.Sealed.Nonce[:]...)
	}
	dst = append(dst, r.Name...)
	for i := range r.Parts {
		dst = r.Parts[i].append(dst)
	}
	return le.AppendUint64(dst, xxh3.Hash(dst[start:]))
}

func appendPlace(dst []byte, p layout.Location) []byte {
	dst = le.AppendUint32(dst, p.Group)
	dst = le.AppendUint32(dst, p.Page)
	return append(dst, p.Device, p.Sub, 0, 0)
}

func (p *RecordPart) append(dst []byte) []byte {
	var inline byte
	if p.Inline != nil {
		inline = 1
	}
	dst = append(dst, byte(len(p.Name)), inline, 0, 0)
	dst = le.AppendUint32(dst, uint32(len(p.Sums)))
	dst = le.AppendUint64(dst, uint64(p.Size))
	dst = append(dst, p.Name...)
	dst = append(dst, p.Inline...)
	for _, s := range p.Sums {
		dst = le.AppendUint64(dst, s)
	}
	return append(dst, p.Seal...)
}
