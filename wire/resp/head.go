package resp

import (
	"encoding/binary"
	"time"

	"github.com/skepkv/skep"
)

// A key's head is a block of its own, named by the hash of the key. It holds what is
// not the value's bytes, and the value itself when it is small.
//
//	 0  1   version, 1
//	 1  3   zero
//	 4  4   length of the key, K
//	 8  8   size of the value in bytes, V
//	16  8   expiry in milliseconds since 1970; 0: none
//	24 16   id of the pieces; zero: the value is in the head
//	40  4   bytes a piece, the last one excepted; 0 when there are none
//	44  K   the key
//	..  V   the value, when it is in the head
//
// Integers are little-endian. These bytes are stored: do not change them, add a version.
const (
	headVersion = 1
	headFixed   = 44
)

// pieceBytes is how a value that is not in its head is cut. What a restore delivers is
// checked piece by piece, so nothing of a piece is sent before all of it was checked.
const pieceBytes = 1 << 20

// inlineBytes is the largest value kept in its head.
const inlineBytes = 16 << 10

// pieceID names the pieces of one value, and of no other ever.
type pieceID [16]byte

// head is what is known of a key.
type head struct {
	key    []byte
	size   int64
	expiry int64 // ms; 0: none
	id     pieceID
	piece  int64
	inline []byte
}

func (h *head) pieces() int {
	if h.piece == 0 {
		return 0
	}
	return int((h.size + h.piece - 1) / h.piece)
}

// pieceKey is the key of piece i.
func (id pieceID) key(i int) (k skep.Key) {
	copy(k[:], id[:])
	binary.BigEndian.PutUint32(k[16:], uint32(i))
	return k
}

// pieceKeys are the keys of pieces [from, to).
func (h *head) pieceKeys(from, to int) []skep.Key {
	out := make([]skep.Key, 0, to-from)
	for i := from; i < to; i++ {
		out = append(out, h.id.key(i))
	}
	return out
}

// pieceSize is the size of piece i.
func (h *head) pieceSize(i int) int64 { return min(h.piece, h.size-int64(i)*h.piece) }

func (h *head) expired(now time.Time) bool { return h.expiry != 0 && now.UnixMilli() >= h.expiry }

func (h *head) encode() []byte {
	b := make([]byte, headFixed, headFixed+len(h.key)+len(h.inline))
	b[0] = headVersion
	binary.LittleEndian.PutUint32(b[4:], uint32(len(h.key)))
	binary.LittleEndian.PutUint64(b[8:], uint64(h.size))
	binary.LittleEndian.PutUint64(b[16:], uint64(h.expiry))
	copy(b[24:40], h.id[:])
	binary.LittleEndian.PutUint32(b[40:], uint32(h.piece))
	b = append(b, h.key...)
	return append(b, h.inline...)
}

// decodeHead reads a head; the result shares b. What is not one, or of a later version,
// is an error and to its reader a miss.
func decodeHead(b []byte) (*head, error) {
	const op = "decode RESP head"
	if len(b) < headFixed {
		return nil, skep.Invalidf(op, "length in bytes", len(b), "at least 44")
	}
	if b[0] != headVersion {
		return nil, &skep.Error{Op: op, Kind: skep.Version, Field: "version", Value: b[0], Limit: headVersion}
	}
	h := &head{
		size:   int64(binary.LittleEndian.Uint64(b[8:])),
		expiry: int64(binary.LittleEndian.Uint64(b[16:])),
		id:     pieceID(b[24:40]),
		piece:  int64(binary.LittleEndian.Uint32(b[40:])),
	}
	n := int64(binary.LittleEndian.Uint32(b[4:]))
	rest := b[headFixed:]
	if n > MaxKeyBytes || n > int64(len(rest)) {
		return nil, skep.Invalidf(op, "key length in bytes", n, "at most what follows")
	}
	h.key, rest = rest[:n:n], rest[n:]
	if h.size < 0 || h.size > MaxValueBytes || h.expiry < 0 {
		return nil, skep.Invalidf(op, "size or expiry", h.size, "not negative, at most 512 MiB")
	}
	if h.piece == 0 {
		if int64(len(rest)) != h.size || h.id != (pieceID{}) {
			return nil, skep.Invalidf(op, "value in the head, bytes", len(rest), h.size)
		}
		h.inline = rest
		return h, nil
	}
	if h.piece < 4096 || len(rest) != 0 || h.size == 0 {
		return nil, skep.Invalidf(op, "bytes a piece", h.piece, "at least 4096, with nothing in the head")
	}
	return h, nil
}
