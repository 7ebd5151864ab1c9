package catalog

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// rowVersion is the version byte of every value written. Another one is
// skep.Version; each row kind's version 1 is documented at its encode function.
const rowVersion = 1

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(key, body []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, body)
}

// seal makes a value:
//
//	version u8 | body | crc32c u32 little-endian over key, version and body
//
// The key is in the checksum so that a value under another key does not pass.
func seal(key, body []byte) []byte {
	v := make([]byte, 0, len(body)+5)
	v = append(append(v, rowVersion), body...)
	return binary.LittleEndian.AppendUint32(v, checksum(key, v))
}

// unseal checks a value and returns its body, which aliases it.
func unseal(key, value []byte) ([]byte, error) {
	if len(value) < 5 {
		return nil, damaged(key, fmt.Errorf("value of %d bytes", len(value)))
	}
	body, sum := value[:len(value)-4], binary.LittleEndian.Uint32(value[len(value)-4:])
	if got := checksum(key, body); got != sum {
		return nil, damaged(key, fmt.Errorf("checksum %08x, recorded %08x", got, sum))
	}
	if body[0] != rowVersion {
		return nil, &skep.Error{Op: "catalog", Kind: skep.Version, Field: fmt.Sprintf("version of row %q", key),
			Value: body[0], Limit: rowVersion}
	}
	return body[1:], nil
}

func damaged(key []byte, err error) error {
	return &skep.Error{Op: "catalog", Kind: skep.Damaged, Field: fmt.Sprintf("row %q", key), Err: err}
}

// DamagedRow is what whoever reads the row of a block at l ends with when the row cannot be read: the block is in the
// logs, so that nothing may be freed, compared or dropped for the lack of it. Nil when err is.
func DamagedRow(l layout.Location, err error) error {
	if err == nil {
		return nil
	}
	return &skep.Error{Op: "catalog", Kind: skep.Damaged, Field: "row of a block", Value: l.String(),
		Limit: "whole: close the store and open it with all its devices, or skep rebuild it: its catalog is made anew",
		Err:   err}
}

var errShort = errors.New("value ends early")

// reader takes a body apart; after the first error everything reads as zero.
type reader struct {
	b   []byte
	err error
}

func (r *reader) take(n int) []byte {
	if r.err != nil || n < 0 || n > len(r.b) {
		r.err = errShort
		return nil
	}
	p := r.b[:n]
	r.b = r.b[n:]
	return p
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if r.err != nil || n <= 0 {
		r.err = errShort
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) string() string { return string(r.take(int(min(r.uvarint(), 1<<20)))) }
func (r *reader) id() (id [16]byte) {
	copy(id[:], r.take(16))
	return id
}
func (r *reader) end() error {
	if r.err == nil && len(r.b) != 0 {
		r.err = fmt.Errorf("%d bytes too many", len(r.b))
	}
	return r.err
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// encode: all numbers uvarint, in the order of the struct; device count before the
// members.
func (g *GroupState) encode() []byte {
	b := make([]byte, 0, 64+8*len(g.Devices))
	for _, n := range []uint64{g.Generation, uint64(g.State), uint64(g.SegmentBytes), uint64(g.Copies), g.OpenedSeq,
		g.SealedSeq, uint64(len(g.Devices))} {
		b = binary.AppendUvarint(b, n)
	}
	for _, m := range g.Devices {
		b = binary.AppendUvarint(b, uint64(m.Device))
		b = binary.AppendUvarint(b, uint64(m.Segment))
	}
	return b
}

func (g *GroupState) decode(body []byte) error {
	r := reader{b: body}
	g.Generation, g.State = r.uvarint(), GroupPhase(r.uvarint())
	g.SegmentBytes, g.Copies = int64(r.uvarint()), int(r.uvarint())
	g.OpenedSeq, g.SealedSeq = r.uvarint(), r.uvarint()
	n := r.uvarint()
	if r.err != nil || n > uint64(len(r.b))/2 { // a member is at least two bytes
		return errShort
	}
	g.Devices = make([]Member, n)
	for i := range g.Devices {
		g.Devices[i] = Member{Device: uint16(r.uvarint()), Segment: uint32(r.uvarint())}
	}
	return r.end()
}

// encode: the id, then strings and numbers in the order of the struct.
func (d *DeviceState) encode() []byte {
	b := append([]byte(nil), d.ID[:]...)
	b = appendString(appendString(b, d.Serial), d.Path)
	for _, n := range []uint64{uint64(d.Size), uint64(d.SegmentBytes), uint64(d.Segments), uint64(d.State)} {
		b = binary.AppendUvarint(b, n)
	}
	return b
}

func (d *DeviceState) decode(body []byte) error {
	r := reader{b: body}
	d.ID, d.Serial, d.Path = r.id(), r.string(), r.string()
	d.Size, d.SegmentBytes = int64(r.uvarint()), int64(r.uvarint())
	d.Segments, d.State = uint32(r.uvarint()), DeviceStatus(r.uvarint())
	return r.end()
}

// encode: the magic and the format first, which never move, so that any program can tell that
// a store is not of its own; then the ids, the flags, and the numbers in the order of the struct.
func (s *StoreState) encode() []byte {
	b := binary.LittleEndian.AppendUint32([]byte(rootMagic), FormatVersion)
	b = append(append(b, s.StoreID[:]...), s.Secret[:]...)
	flags := uint64(0)
	if s.Clean {
		flags |= rootClean
	}
	if s.Relog {
		flags |= rootRelog
	}
	if s.Limits.Known {
		flags |= rootLimits
	}
	for _, n := range []uint64{flags, s.NextSeq, s.FlushedSeq, uint64(s.NextGroup), uint64(s.NextInstance),
		uint64(s.NextNamespace), s.Epoch, s.Lasting} {
		b = binary.AppendUvarint(b, n)
	}
	if s.Limits.Known {
		b = binary.AppendUvarint(binary.AppendUvarint(b, s.Limits.Capacity), uint64(s.Limits.Devices))
	}
	return b
}

// rootMagic begins the root row's body.
const rootMagic = "SKEP/cat"

// Flags of the root row. They are stored: do not change.
const (
	rootClean  = 1 << 0
	rootRelog  = 1 << 1
	rootLimits = 1 << 2
)

func (s *StoreState) decode(body []byte) error {
	r := reader{b: body}
	if err := checkFormat(&r); err != nil {
		return err
	}
	s.StoreID, s.Secret = r.id(), r.id()
	flags := r.uvarint()
	if flags&^(rootClean|rootRelog|rootLimits) != 0 {
		return fmt.Errorf("flags %#x", flags)
	}
	s.Clean, s.Relog = flags&rootClean != 0, flags&rootRelog != 0
	s.NextSeq, s.FlushedSeq = r.uvarint(), r.uvarint()
	s.NextGroup, s.NextInstance, s.NextNamespace = uint32(r.uvarint()), uint32(r.uvarint()), uint32(r.uvarint())
	s.Epoch, s.Lasting = r.uvarint(), r.uvarint()
	if flags&rootLimits != 0 {
		s.Limits = Limits{Known: true, Capacity: r.uvarint(), Devices: uint32(r.uvarint())}
	}
	return r.end()
}

// lastUnreleased is the last of the formats of builds from before the first release. Their root rows began
// with the number, which is 1 and up; none is read.
const lastUnreleased = 6

// checkFormat takes magic and format off a root row's body.
func checkFormat(r *reader) error {
	rest, ok := bytes.CutPrefix(r.b, []byte(rootMagic))
	r.b = rest
	f := r.take(4)
	if f == nil {
		return r.err
	}
	n := binary.LittleEndian.Uint32(f)
	value := strconv.FormatUint(uint64(n), 10)
	switch {
	case ok && n == FormatVersion:
		return nil
	case !ok && (n < 1 || n > lastUnreleased):
		return fmt.Errorf("not %q at its front", rootMagic)
	case !ok:
		value += " of a build from before the first release"
	}
	return &skep.Error{Op: "catalog", Kind: skep.Version, Field: "store format", Value: value,
		Limit: fmt.Sprintf("%d, the one that this program reads: use the skep that wrote the store, or make the store anew", FormatVersion)}
}

func (n *Namespace) encode() ([]byte, error)  { return json.Marshal(n) }
func (n *Namespace) decode(body []byte) error { return json.Unmarshal(body, n) }

func (p *Purge) encode() []byte { return binary.AppendUvarint(nil, p.Seq) }
func (p *Purge) decode(body []byte) error {
	r := reader{b: body}
	p.Seq = r.uvarint()
	return r.end()
}

// decodeRow checks a value and hands its body to decode; what decode finds wrong
// is damage, unless it says otherwise.
func decodeRow(key, value []byte, decode func(body []byte) error) error {
	body, err := unseal(key, value)
	if err != nil {
		return err
	}
	err = decode(body)
	var known *skep.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	return damaged(key, err)
}
