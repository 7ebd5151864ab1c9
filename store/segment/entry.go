package segment

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/skepkv/skep"
)

// Kind says what a log entry is. Part of the format and should not be changed; a
// kind this format does not know is Damaged.
type Kind uint8

const (
	KindBlock     Kind = 1 // a Record: this block is stored
	KindTombstone Kind = 2 // a Tombstone: this block is gone
	KindPurge     Kind = 3 // a Purge: this instance, or a salt of it, is gone
	KindNamespace Kind = 4 // a Namespace: what an instance is
	KindMark      Kind = 5 // a Mark: what was on the drives when this was written
	KindSealing   Kind = 6 // a Sealing: things of this instance are encrypted

	lastKind = KindSealing
)

func (k Kind) String() string {
	switch k {
	case KindBlock:
		return "block"
	case KindTombstone:
		return "tombstone"
	case KindPurge:
		return "purge"
	case KindNamespace:
		return "namespace"
	case KindMark:
		return "mark"
	case KindSealing:
		return "sealing"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Entry is one entry of an append, not yet decoded.
type Entry struct {
	Kind Kind
	Body []byte // for DecodeRecord, DecodeTombstone, DecodePurge, DecodeNamespace, DecodeMark or DecodeSealing
}

// Tombstone. Part of the format and should not be changed; drawn in docs/reference/format.md.
const (
	tsSeq      = 0  // uint64
	tsCovers   = 8  // uint64
	tsInstance = 16 // uint32
	tsExact    = 20 // uint8, 1 when only the record with Seq = Covers is meant
	tsSpare    = 21 // 3 bytes, zero
	tsSaltTag  = 24 // 16 bytes
	tsKey      = 40 // 32 bytes
	tsSize     = 72
)

// Tombstone says that a block was deleted or replaced. It is carried on until no
// record it covers can be found on any device.
type Tombstone struct {
	Seq      uint64 // store-wide
	Covers   uint64 // records of the block written (see Record.Written) up to this are gone
	Exact    bool   // only that with Seq = Covers, or such a tombstone: it was written and never committed
	Instance uint32
	SaltTag  SaltTag
	Key      skep.Key
}

func (t *Tombstone) append(dst []byte) []byte {
	dst = le.AppendUint64(dst, t.Seq)
	dst = le.AppendUint64(dst, t.Covers)
	dst = le.AppendUint32(dst, t.Instance)
	var exact byte
	if t.Exact {
		exact = 1
	}
	dst = append(dst, exact, 0, 0, 0)
	dst = append(dst, t.SaltTag[:]...)
	return append(dst, t.Key[:]...)
}

// DecodeTombstone reads an entry's body; Damaged when it is not a tombstone's.
func DecodeTombstone(b []byte) (Tombstone, error) {
	if len(b) != tsSize {
		return Tombstone{}, damaged("tombstone", "length in bytes", len(b), tsSize)
	}
	if !Blank(b[tsSpare:tsSaltTag]) || b[tsExact] > 1 {
		return Tombstone{}, damaged("tombstone", "exact flag or spare bytes", "set", "0 or 1, and zero")
	}
	return Tombstone{
		Seq:      le.Uint64(b[tsSeq:]),
		Covers:   le.Uint64(b[tsCovers:]),
		Exact:    b[tsExact] == 1,
		Instance: le.Uint32(b[tsInstance:]),
		SaltTag:  SaltTag(b[tsSaltTag:]),
		Key:      skep.Key(b[tsKey:]),
	}, nil
}

// Purge. Part of the format and should not be changed; drawn in docs/reference/format.md.
const (
	pgSeq      = 0  // uint64
	pgCovers   = 8  // uint64
	pgInstance = 16 // uint32
	pgSalted   = 20 // uint8, 1 when only the tag's blocks are meant
	pgSpare    = 21 // 3 bytes, zero
	pgSaltTag  = 24 // 16 bytes, zero unless salted
	pgSize     = 40
)

// Purge says that everything of a namespace instance, or of one salt in it, is gone.
// Tenants and models are purged instance by instance.
//
// A salt has two kinds of them. The one with Seq above 0 stands under the salt's first
// tag and says, by that number, which tag it has now; those with Seq 0 say only that a
// later tag is dead.
type Purge struct {
	Seq      uint64 // store-wide; 0: a later tag of a salt
	Covers   uint64 // records with Seq up to this are gone
	Instance uint32
	Salted   bool    // only blocks under SaltTag
	SaltTag  SaltTag // zero unless Salted
}

func (p *Purge) append(dst []byte) []byte {
	dst = le.AppendUint64(dst, p.Seq)
	dst = le.AppendUint64(dst, p.Covers)
	dst = le.AppendUint32(dst, p.Instance)
	var salted byte
	if p.Salted {
		salted = 1
	}
	dst = append(dst, salted, 0, 0, 0)
	return append(dst, p.SaltTag[:]...)
}

// DecodePurge reads an entry's body; Damaged when it is not a purge's.
func DecodePurge(b []byte) (Purge, error) {
	if len(b) != pgSize {
		return Purge{}, damaged("purge", "length in bytes", len(b), pgSize)
	}
	if !Blank(b[pgSpare:pgSaltTag]) || b[pgSalted] > 1 || b[pgSalted] == 0 && !Blank(b[pgSaltTag:]) {
		return Purge{}, damaged("purge", "salted flag, salt tag or spare bytes", "set", "0 or 1, and zero")
	}
	return Purge{
		Seq:      le.Uint64(b[pgSeq:]),
		Covers:   le.Uint64(b[pgCovers:]),
		Instance: le.Uint32(b[pgInstance:]),
		Salted:   b[pgSalted] == 1,
		SaltTag:  SaltTag(b[pgSaltTag:]),
	}, nil
}

// Namespace. Part of the format and should not be changed; drawn in docs/reference/format.md.
const (
	nsSeq      = 0  // uint64
	nsInstance = 8  // uint32
	nsSpare    = 12 // 4 bytes, zero
	nsJSON     = 16 // skep.NamespaceInfo as JSON
)

// Namespace says what a namespace instance is, so that a rebuild needs no catalog.
type Namespace struct {
	Seq      uint64 // store-wide
	Instance uint32
	Info     skep.NamespaceInfo
	Deleted  bool // the namespace ended with this instance
}

// namespaceJSON is what nsJSON holds.
type namespaceJSON struct {
	skep.NamespaceInfo
	Deleted bool `json:"deleted,omitempty"`
}

func (n *Namespace) append(dst []byte) ([]byte, error) {
	const op = "namespace entry"
	if err := n.Info.Validate(); err != nil {
		return dst, err
	}
	info, err := json.Marshal(namespaceJSON{n.Info, n.Deleted})
	if err != nil {
		return dst, &skep.Error{Op: op, Kind: skep.Invalid, Field: "info", Err: err}
	}
	if len(info) > MaxNamespaceSize-nsJSON {
		return dst, skep.Invalidf(op, "length in bytes", nsJSON+len(info), fmt.Sprintf("at most %d", MaxNamespaceSize))
	}
	dst = le.AppendUint64(dst, n.Seq)
	dst = le.AppendUint32(dst, n.Instance)
	dst = append(dst, 0, 0, 0, 0)
	return append(dst, info...), nil
}

// DecodeNamespace reads an entry's body; Damaged when it is not a valid namespace's.
func DecodeNamespace(b []byte) (Namespace, error) {
	const op = "namespace entry"
	if len(b) < nsJSON || len(b) > MaxNamespaceSize {
		return Namespace{}, damaged(op, "length in bytes", len(b), fmt.Sprintf("%d to %d", nsJSON, MaxNamespaceSize))
	}
	if !Blank(b[nsSpare:nsJSON]) {
		return Namespace{}, damaged(op, "spare bytes", "set", "zero")
	}
	n := Namespace{Seq: le.Uint64(b[nsSeq:]), Instance: le.Uint32(b[nsInstance:])}
	dec := json.NewDecoder(bytes.NewReader(b[nsJSON:]))
	dec.DisallowUnknownFields()
	var v namespaceJSON
	if err := dec.Decode(&v); err != nil {
		return Namespace{}, &skep.Error{Op: op, Kind: skep.Damaged, Field: "info", Err: err}
	}
	n.Info, n.Deleted = v.NamespaceInfo, v.Deleted
	if dec.InputOffset() != int64(len(b)-nsJSON) {
		return Namespace{}, damaged(op, "bytes after the info", int64(len(b)-nsJSON)-dec.InputOffset(), "none")
	}
	if err := n.Info.Validate(); err != nil {
		return Namespace{}, &skep.Error{Op: op, Kind: skep.Damaged, Field: "info", Err: err}
	}
	return n, nil
}

// TombstoneSize is the length of an encoded Tombstone, in bytes.
const TombstoneSize = tsSize

// MarkSize is the length of an encoded Mark, in bytes: its one field, Flushed.
const MarkSize = 8

// Mark says how far the drives had been flushed when its append was written. Every
// append begins with one, so that a rebuild knows which records a crash may have left
// without their payload: those above the highest mark it finds.
type Mark struct {
	Flushed uint64 // everything with a sequence number up to this was on the drives
}

func (m *Mark) append(dst []byte) []byte { return le.AppendUint64(dst, m.Flushed) }

// DecodeMark reads an entry's body; Damaged when it is not a mark's.
func DecodeMark(b []byte) (Mark, error) {
	if len(b) != MarkSize {
		return Mark{}, damaged("mark", "length in bytes", len(b), MarkSize)
	}
	return Mark{Flushed: le.Uint64(b)}, nil
}

// Sealing. Part of the format and should not be changed; drawn in docs/reference/format.md.
const (
	slInstance = 0 // uint32
	slSpare    = 4 // 4 bytes, zero
	slKey      = 8 // 16 bytes
	slSize     = 24
)

// Sealing says that things of a namespace instance are encrypted with a key, or were: so a rebuild knows it when none
// of them is left. It goes with the instance. The key's id is derived from it, and so tells another key.
type Sealing struct {
	Instance uint32
	Key      KeyID
}

func (s *Sealing) append(dst []byte) []byte {
	dst = le.AppendUint32(dst, s.Instance)
	dst = append(dst, 0, 0, 0, 0)
	return append(dst, s.Key[:]...)
}

// DecodeSealing reads an entry's body; Damaged when it is not a sealing's.
func DecodeSealing(b []byte) (Sealing, error) {
	if len(b) != slSize {
		return Sealing{}, damaged("sealing", "length in bytes", len(b), slSize)
	}
	if !Blank(b[slSpare:slKey]) {
		return Sealing{}, damaged("sealing", "spare bytes", "set", "zero")
	}
	return Sealing{Instance: le.Uint32(b[slInstance:]), Key: KeyID(b[slKey:])}, nil
}
