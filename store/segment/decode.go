package segment

import (
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// Head is what an open needs of a record to fill the index. It is a value; nothing
// in it points into the encoded record.
type Head struct {
	Seq         uint64
	Instance    uint32
	NamespaceID uint32
	SaltTag     SaltTag
	Key         skep.Key
	Parent      skep.Key // when HasParent
	HasParent   bool
	Sealed      bool // the payload is encrypted
	Flags       RecordFlags
	Copies      uint8 // number of them; 0: the bytes are in the record and Place is zero
	Parts       uint8
	Depth       uint32
	ValidTokens uint32
	Version     uint32
	Pages       uint32          // 4 KiB pages each copy takes
	Bytes       int64           // payload size of all parts
	Place       layout.Location // of the first copy
}

// DecodeHead reads the head of a record that is exactly b, after checking the
// checksum over all of b; Damaged when that or a field of the head is wrong. It
// does not parse what follows the head and does not allocate. b is lent.
func DecodeHead(b []byte) (Head, error) {
	if err := checkRecordSum(b); err != nil {
		return Head{}, err
	}
	return PeekHead(b)
}

// PeekHead is DecodeHead without the checksum, for bytes that something else has
// just verified (a log page, a catalog block), or to be verified later by
// DecodeRecord: its cost does not depend on the record's length.
func PeekHead(b []byte) (Head, error) {
	if err := checkRecordSize(b); err != nil {
		return Head{}, err
	}
	_ = b[recTail-1]
	if b[recHas]&^knownHas != 0 || RecordFlags(b[recFlags])&^knownRecordFlags != 0 || le.Uint16(b[recSpare:]) != 0 {
		return Head{}, damaged("record", "flags or spare bytes", "unknown", "known and zero")
	}
	if b[recCopies] > skep.MaxCopies || b[recParts] > skep.MaxParts {
		return Head{}, damaged("record", "copies and parts", fmt.Sprint(b[recCopies], b[recParts]), fmt.Sprintf("at most %d and %d", skep.MaxCopies, skep.MaxParts))
	}
	h := Head{
		Seq:         le.Uint64(b[recSeq:]),
		Instance:    le.Uint32(b[recInstance:]),
		NamespaceID: le.Uint32(b[recNamespace:]),
		SaltTag:     SaltTag(b[recSaltTag:]),
		Key:         skep.Key(b[recKey:]),
		Parent:      skep.Key(b[recParent:]),
		HasParent:   b[recHas]&hasParent != 0,
		Sealed:      b[recHas]&hasSeal != 0,
		Flags:       RecordFlags(b[recFlags]),
		Copies:      b[recCopies],
		Parts:       b[recParts],
		Depth:       le.Uint32(b[recDepth:]),
		ValidTokens: le.Uint32(b[recValidTokens:]),
		Version:     le.Uint32(b[recVersion:]),
		Pages:       le.Uint32(b[recPages:]),
		Bytes:       int64(le.Uint64(b[recBytes:])),
		Place:       decodePlace(b[recPlace:]),
	}
	if le.Uint16(b[recPlace+placeSpare:]) != 0 {
		return Head{}, damaged("record", "spare bytes", "set", "zero")
	}
	return h, nil
}

func checkRecordSize(b []byte) error {
	if len(b) < minRecordSize || len(b) > MaxRecordSize {
		return damaged("record", "length in bytes", len(b), fmt.Sprintf("%d to %d", minRecordSize, MaxRecordSize))
	}
	if n := le.Uint32(b[recSize:]); uint64(n) != uint64(len(b)) {
		return damaged("record", "length in bytes", len(b), n)
	}
	return nil
}

func checkRecordSum(b []byte) error {
	if err := checkRecordSize(b); err != nil {
		return err
	}
	end := len(b) - checksumSize
	if got, want := le.Uint64(b[end:]), xxh3.Hash(b[:end]); got != want {
		return damaged("record", "checksum", fmt.Sprintf("%016x", got), fmt.Sprintf("%016x", want))
	}
	return nil
}

func decodePlace(b []byte) layout.Location {
	_ = b[placeSize-1]
	return layout.Location{Group: le.Uint32(b[placeGroup:]), Page: le.Uint32(b[placePage:]), Device: b[placeDevice], Sub: b[placeSub]}
}

// DecodeRecord reads the record that is exactly b into r: Damaged when the checksum
// or any field is wrong, and r's content is unspecified then. b is lent; r points
// to memory of its own afterwards. The slices r had (Name, Copies, Parts and theirs)
// are overwritten and reused, so give it a zero Record or one decoded before; Parent
// and Replaces are new.
func DecodeRecord(b []byte, r *Record) error {
	const op = "record"
	h, err := DecodeHead(b)
	if err != nil {
		return err
	}
	r.Seq, r.Instance, r.NamespaceID = h.Seq, h.Instance, h.NamespaceID
	r.SaltTag, r.Key, r.Depth = h.SaltTag, h.Key, h.Depth
	r.ValidTokens, r.Version, r.Flags, r.Pages = h.ValidTokens, h.Version, h.Flags, h.Pages
	r.Parent, r.Replaces, r.Sealed = nil, nil, nil
	if h.HasParent {
		r.Parent = new(h.Parent)
	} else if h.Parent != (skep.Key{}) {
		return damaged(op, "parent", h.Parent, "zero without its flag")
	}
	d := decoder{rest: b[recTail : len(b)-checksumSize]}
	r.Copies = r.Copies[:0]
	if h.Copies > 0 {
		r.Copies = append(r.Copies, h.Place)
	} else if h.Place != (layout.Location{}) {
		return damaged(op, "copy", fmt.Sprintf("%+v", h.Place), "zero without copies")
	}
	for range int(h.Copies) - 1 {
		p := d.take(placeSize)
		if d.short || le.Uint16(p[placeSpare:]) != 0 {
			return damaged(op, "copies", "short or spare bytes set", "whole")
		}
		r.Copies = append(r.Copies, decodePlace(p))
	}
	if b[recHas]&hasReplaces != 0 {
		k := d.take(skep.KeySize)
		if d.short {
			return damaged(op, "replaced key", "short", "whole")
		}
		r.Replaces = new(skep.Key(k))
	}
	if b[recHas]&hasSeal != 0 {
		k := d.take(sealSize)
		if d.short {
			return damaged(op, "seal", "short", "whole")
		}
		r.Sealed = &Seal{Key: KeyID(k), Nonce: [NonceSize]byte(k[KeyIDSize:])}
	}
	r.Name = append(r.Name[:0], d.take(int(le.Uint16(b[recNameSize:])))...)
	if n := int(h.Parts); cap(r.Parts) >= n {
		r.Parts = r.Parts[:n]
	} else {
		r.Parts = append(r.Parts[:cap(r.Parts)], make([]RecordPart, n-cap(r.Parts))...)
	}
	for i := range r.Parts {
		if err := r.Parts[i].decode(&d, r.Sealed != nil); err != nil {
			return err
		}
	}
	if d.short || len(d.rest) != 0 {
		return damaged(op, "bytes after the parts", len(d.rest), "none, and none missing")
	}
	if err := r.validate(skep.Damaged); err != nil {
		return err
	}
	if n := r.Bytes(); n != h.Bytes {
		return damaged(op, "block size in bytes", h.Bytes, n)
	}
	return nil
}

// decoder takes bytes off the front and remembers when there were too few.
type decoder struct {
	rest  []byte
	short bool
}

func (d *decoder) take(n int) []byte {
	if d.short || n > len(d.rest) {
		d.short = true
		return nil
	}
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}

func (p *RecordPart) decode(d *decoder, sealed bool) error {
	const op = "record"
	head := d.take(partHead)
	if d.short {
		return damaged(op, "part", "short", "whole")
	}
	size, sums := le.Uint64(head[partBytes:]), uint64(le.Uint32(head[partSums:]))
	if head[partInline] > 1 || le.Uint16(head[partSpare:]) != 0 {
		return damaged(op, "part flags or spare bytes", "unknown", "known and zero")
	}
	if size > skep.MaxPartBytes || sums > MaxGranules {
		return damaged(op, "part size and checksums", fmt.Sprint(size, sums), fmt.Sprintf("at most %d and %d", int64(skep.MaxPartBytes), MaxGranules))
	}
	p.Size = int64(size)
	// Most parts are called the same as the one decoded here before: no new string.
	if name := d.take(int(head[partNameSize])); string(name) != p.Name {
		if string(name) == skep.PartKV {
			p.Name = skep.PartKV
		} else {
			p.Name = string(name)
		}
	}
	if head[partInline] == 1 {
		p.Inline = append(p.Inline[:0], d.take(int(size))...)
		if p.Inline == nil {
			p.Inline = []byte{} // an empty part that lives in its record
		}
	} else {
		p.Inline = nil
	}
	raw := d.take(8 * int(sums))
	p.Seal = p.Seal[:0]
	if sealed {
		p.Seal = append(p.Seal, d.take(SealSize(int(sums)))...)
	}
	if d.short {
		return damaged(op, "part", "short", "whole")
	}
	if cap(p.Sums) < int(sums) {
		p.Sums = make([]uint64, sums)
	}
	p.Sums = p.Sums[:sums]
	for i := range p.Sums {
		p.Sums[i] = le.Uint64(raw[8*i:])
	}
	return nil
}
