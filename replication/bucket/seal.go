package bucket

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"unicode/utf8"

	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep"
)

// Sizes of an object's parts, in bytes.
const (
	magic       = "skepobj1"
	saltSize    = 32
	trailerSize = len(magic) + keyIDSize + saltSize + 8 + 4
	keyIDSize   = 8
	recordSize  = skep.KeySize + 8 + 8 + 4 + 4
	tagSize     = 16
	maxHead     = 16 << 10 // of a block: its name, its parts' names and sizes
)

// Numbers of what an object seals: each is the nonce of it, and used once.
const (
	indexNumber = 1<<32 - 1
	textNumber  = 1<<32 - 2
)

// keyID says with which key an object is sealed.
func keyID(key []byte) (id [keyIDSize]byte) {
	h := sha256.Sum256(append([]byte("skep key\n"), key...))
	return [keyIDSize]byte(h[:])
}

// sealer seals what is in one object.
type sealer struct {
	aead cipher.AEAD
	salt [saltSize]byte
}

func newSealer(key []byte, name string, salt [saltSize]byte) *sealer {
	own, err := hkdf.Key(sha256.New, key, salt[:], "skep object "+name, KeySize)
	if err != nil {
		panic(err) // of lengths, which are constant
	}
	block, err := aes.NewCipher(own)
	if err != nil {
		panic(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	return &sealer{aead, salt}
}

func drawSealer(key []byte, name string) *sealer {
	var salt [saltSize]byte
	_, _ = rand.Read(salt[:])
	return newSealer(key, name, salt)
}

func nonceOf(number uint32) []byte {
	return binary.LittleEndian.AppendUint32(make([]byte, 8, 12), number)
}

// seal appends what b is, sealed, to to.
func (s *sealer) seal(to []byte, number uint32, b []byte) []byte {
	return s.aead.Seal(to, nonceOf(number), b, nil)
}

// open unseals b in place.
func (s *sealer) open(name string, number uint32, b []byte) ([]byte, error) {
	out, err := s.aead.Open(b[:0], nonceOf(number), b, nil)
	if err != nil {
		return nil, damaged(name, "sealed bytes", number, "those that were sealed")
	}
	return out, nil
}

func damaged(name, field string, value, limit any) error {
	return &skep.Error{Op: "read object " + name, Kind: skep.Damaged, Field: field, Value: value, Limit: limit}
}

// record is where a block is in an object.
type record struct {
	key    skep.Key
	parent uint64 // hash of its parent's key; 0: it has none
	off    int64
	size   uint32 // sealed
	bytes  uint32 // of its parts
}

// hashOf is of a parent's key, as a record has it.
func hashOf(key *skep.Key) uint64 {
	if key == nil {
		return 0
	}
	return max(xxh3.Hash(key[:]), 1)
}

// head is what is kept with a block.
type head struct {
	Parent   []byte        `json:"parent,omitempty"`
	Depth    int           `json:"depth,omitempty"`
	Name     []byte        `json:"name,omitempty"`
	Manifest skep.Manifest `json:"manifest"`
	Names    [][]byte      `json:"names,omitempty"` // of all parts, where one is not UTF-8: JSON would have another
}

// builder makes an object of blocks.
type builder struct {
	*sealer
	key     []byte
	name    string
	body    []byte
	records []record
	plain   []byte
}

func newBuilder(key []byte, name string) *builder {
	return &builder{sealer: drawSealer(key, name), key: key, name: name}
}

// add seals one more block, whose parts are whole.
func (b *builder) add(of *skep.StoredBlock, parts []skep.Part) error {
	h := head{Depth: of.Depth, Name: of.Name, Manifest: of.Manifest}
	if of.Parent != nil {
		h.Parent = of.Parent[:]
	}
	if slices.ContainsFunc(of.Manifest, func(p skep.PartSpec) bool { return !utf8.ValidString(p.Name) }) {
		for _, p := range of.Manifest {
			h.Names = append(h.Names, []byte(p.Name))
		}
	}
	text, err := json.Marshal(h)
	if err != nil {
		return err
	}
	b.plain = binary.LittleEndian.AppendUint32(b.plain[:0], uint32(len(text)))
	b.plain = append(b.plain, text...)
	size := 0
	for _, p := range parts {
		b.plain = append(b.plain, p.Bytes...)
		size += len(p.Bytes)
	}
	r := record{key: of.Key, parent: hashOf(of.Parent), off: int64(len(b.body)), bytes: uint32(size)}
	b.body = b.seal(b.body, uint32(len(b.records)), b.plain)
	r.size = uint32(int64(len(b.body)) - r.off)
	b.records = append(b.records, r)
	return nil
}

// end gives the object.
func (b *builder) end() []byte {
	index := make([]byte, 0, len(b.records)*recordSize)
	for _, r := range b.records {
		index = append(index, r.key[:]...)
		index = binary.LittleEndian.AppendUint64(index, r.parent)
		index = binary.LittleEndian.AppendUint64(index, uint64(r.off))
		index = binary.LittleEndian.AppendUint32(index, r.size)
		index = binary.LittleEndian.AppendUint32(index, r.bytes)
	}
	return trail(b.sealer, b.key, b.body, indexNumber, index)
}

// trail seals what comes last, and says where it is.
func trail(s *sealer, key, body []byte, number uint32, last []byte) []byte {
	at := len(body)
	body = s.seal(body, number, last)
	size := len(body) - at
	id := keyID(key)
	body = append(body, magic...)
	body = append(body, id[:]...)
	body = append(body, s.salt[:]...)
	body = binary.LittleEndian.AppendUint64(body, uint64(at))
	return binary.LittleEndian.AppendUint32(body, uint32(size))
}

// keyField is the field of the error for an object of a key that this node does not have.
const keyField = "key"

// trailer is an object's.
type trailer struct {
	salt [saltSize]byte
	at   int64
	size int64
}

// readTrailer reads the last bytes of an object of that size. Version: it is none of this version, or of another key.
func readTrailer(key []byte, name string, size int64, b []byte) (t trailer, err error) {
	version := func(field string, value any) error {
		return &skep.Error{Op: "read object " + name, Kind: skep.Version, Field: field, Value: value}
	}
	if len(b) != trailerSize || string(b[:len(magic)]) != magic {
		return t, version("format", fmt.Sprintf("%.8q", b))
	}
	b = b[len(magic):]
	if id := keyID(key); [keyIDSize]byte(b) != id {
		return t, version(keyField, fmt.Sprintf("%x", b[:keyIDSize]))
	}
	b = b[keyIDSize:]
	t.salt, b = [saltSize]byte(b), b[saltSize:]
	at, n := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:])
	t.at, t.size = int64(at), int64(n)
	if t.at < 0 || t.at > size || t.size < tagSize || t.at+t.size+int64(trailerSize) != size {
		return t, damaged(name, "place of the index", at, size)
	}
	return t, nil
}

// readIndex reads an object's index, which it may change. at is where that begins.
func readIndex(s *sealer, name string, at int64, b []byte) ([]record, error) {
	b, err := s.open(name, indexNumber, b)
	if err != nil {
		return nil, err
	}
	if len(b)%recordSize != 0 {
		return nil, damaged(name, "size of the index", len(b), fmt.Sprintf("a multiple of %d", recordSize))
	}
	out := make([]record, 0, len(b)/recordSize)
	for ; len(b) > 0; b = b[recordSize:] {
		rest := b[skep.KeySize:]
		r := record{key: skep.Key(b[:skep.KeySize]), parent: binary.LittleEndian.Uint64(rest),
			off: int64(binary.LittleEndian.Uint64(rest[8:])), size: binary.LittleEndian.Uint32(rest[16:]),
			bytes: binary.LittleEndian.Uint32(rest[20:])}
		if r.off < 0 || r.off > at-int64(r.size) || int64(r.bytes)+4+tagSize > int64(r.size) {
			return nil, damaged(name, "place of a block", r.off, at)
		}
		out = append(out, r)
	}
	return out, nil
}

// readBlock reads a sealed block, the number-th of its object, whose bytes it takes.
func readBlock(s *sealer, name string, number uint32, r *record, b []byte) (*skep.Key, int, skep.Block, error) {
	out := skep.Block{Key: r.key}
	b, err := s.open(name, number, b)
	if err != nil {
		return nil, 0, out, err
	}
	if len(b) < 4 {
		return nil, 0, out, damaged(name, "size of a block", len(b), "4 or more")
	}
	n := int(binary.LittleEndian.Uint32(b))
	if n > maxHead || n > len(b)-4 {
		return nil, 0, out, damaged(name, "size of a block's head", n, len(b)-4)
	}
	var h head
	if err := json.Unmarshal(b[4:4+n], &h); err != nil {
		return nil, 0, out, damaged(name, "a block's head", err, "JSON")
	}
	b = b[4+n:]
	var parent *skep.Key
	if h.Parent != nil {
		k, err := skep.ParseKey(h.Parent)
		if err != nil {
			return nil, 0, out, damaged(name, "a block's parent", len(h.Parent), skep.KeySize)
		}
		parent = &k
	}
	out.Name = h.Name
	for i, p := range h.Manifest {
		if len(h.Names) == len(h.Manifest) {
			p.Name = string(h.Names[i])
		}
		if p.Size < 0 || p.Size > int64(len(b)) {
			return nil, 0, out, damaged(name, "size of part "+p.Name, p.Size, len(b))
		}
		out.Parts = append(out.Parts, skep.Part{Name: p.Name, Bytes: b[:p.Size:p.Size]})
		b = b[p.Size:]
	}
	if len(b) > 0 {
		return nil, 0, out, damaged(name, "bytes after a block's parts", len(b), 0)
	}
	return parent, h.Depth, out, nil
}

// sealText is an object of one text.
func sealText(key []byte, name string, v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return trail(drawSealer(key, name), key, nil, textNumber, b), nil
}

// openText reads what sealText made with one of these keys.
func openText(keys [][]byte, name string, b []byte, v any) error {
	if len(b) < trailerSize {
		return damaged(name, "size", len(b), io.ErrUnexpectedEOF)
	}
	key := keys[0]
	for _, k := range keys[1:] {
		if at := b[len(b)-trailerSize+len(magic):]; keyID(k) == [keyIDSize]byte(at) {
			key = k
		}
	}
	t, err := readTrailer(key, name, int64(len(b)), b[len(b)-trailerSize:])
	if err != nil {
		return err
	}
	text, err := newSealer(key, name, t.salt).open(name, textNumber, b[t.at:t.at+t.size])
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return damaged(name, "text", err, "JSON")
	}
	return nil
}
