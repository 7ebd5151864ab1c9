package frames

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/skepkv/skep"
)

// HeaderSize is the length of a frame's header in bytes.
const HeaderSize = 40

// Version is the protocol's version. A peer offers a range of versions in its Hello.
const Version = 1

// magic opens every frame: "SKEP" in bytes.
const magic = 0x50454b53

// Type says what a frame is. An answer has its call's type with the highest bit set.
// The numbers are append-only.
type Type uint8

// The frames. Numbers not listed are answered with Unsupported.
const (
	TypeHello           Type = 0x01
	TypePing            Type = 0x02
	TypeCancel          Type = 0x03 // no answer of its own
	TypeGoodbye         Type = 0x04 // no answer
	TypeOpenNamespace   Type = 0x10
	TypeNamespaces      Type = 0x11
	TypeLookup          Type = 0x12
	TypeRenew           Type = 0x13
	TypeRelease         Type = 0x14
	TypeWant            Type = 0x15
	TypePut             Type = 0x16
	TypeBegin           Type = 0x17
	TypeWrite           Type = 0x18
	TypeCommit          Type = 0x19
	TypeAbort           Type = 0x1a
	TypeFlush           Type = 0x1b
	TypeLookupRuns      Type = 0x1c // a Lookup of many runs of keys
	TypePutEach         Type = 0x1d // a Put of blocks that each begin a chain
	TypeRestore         Type = 0x20
	TypeCredit          Type = 0x21 // no answer
	TypeClaim           Type = 0x22
	TypeReprioritise    Type = 0x23
	TypeStop            Type = 0x24
	TypeEnd             Type = 0x25 // of a session or a stream of events
	TypeChunks          Type = 0x26 // server to client, with the number of the Restore
	TypeCostedRestore   Type = 0x27 // a Restore of chains that say what computing them costs
	TypeClaimWhen       Type = 0x28 // a Claim by an engine that says whether it is idle
	TypeComputed        Type = 0x29
	TypeBoard           Type = 0x2a // claims through a word in shared memory
	TypeDirection       Type = 0x2b // by which way a chain goes that could go either
	TypeHint            Type = 0x30
	TypeDelete          Type = 0x31
	TypePurge           Type = 0x32
	TypeStats           Type = 0x33
	TypeEvents          Type = 0x34
	TypeEventBatch      Type = 0x35 // server to client, with the number of the Events
	TypeAdmin           Type = 0x36
	TypeDeleteNamespace Type = 0x37
	TypeClusterMap      Type = 0x38
	TypeList            Type = 0x39 // what a namespace holds
	TypeAttach          Type = 0x40 // shared memory
	TypeDetach          Type = 0x41
	TypeAttachMemory    Type = 0x42 // a file in memory, beside the shared memory
	TypeDetachMemory    Type = 0x43
	TypeSelect          Type = 0x50 // reserved: sparse reads
	TypeAppend          Type = 0x51 // reserved: entries during decoding
	TypeError           Type = 0xff

	Answer Type = 0x80
)

var TypeText = map[Type]string{
	TypeHello: "hello", TypePing: "ping", TypeCancel: "cancel", TypeGoodbye: "goodbye",
	TypeOpenNamespace: "open namespace", TypeNamespaces: "namespaces", TypeLookup: "lookup", TypeRenew: "renew",
	TypeRelease: "release", TypeWant: "want", TypePut: "put", TypeBegin: "begin", TypeWrite: "write",
	TypeCommit: "commit", TypeAbort: "abort", TypeFlush: "flush", TypeLookupRuns: "lookup runs",
	TypePutEach: "put each", TypeRestore: "restore", TypeCredit: "credit",
	TypeClaim: "claim", TypeReprioritise: "reprioritise", TypeStop: "stop", TypeEnd: "end", TypeChunks: "chunks",
	TypeCostedRestore: "costed restore", TypeClaimWhen: "claim when", TypeComputed: "computed", TypeBoard: "board",
	TypeDirection: "direction",
	TypeHint:      "hint", TypeDelete: "delete", TypePurge: "purge", TypeStats: "stats", TypeEvents: "events",
	TypeEventBatch: "event batch", TypeAdmin: "admin", TypeDeleteNamespace: "delete namespace", TypeClusterMap: "cluster map", TypeList: "list",
	TypeAttach: "attach", TypeDetach: "detach", TypeAttachMemory: "attach memory", TypeDetachMemory: "detach memory",
	TypeSelect: "select", TypeAppend: "append", TypeError: "error",
}

func (t Type) String() string {
	if s, ok := TypeText[t]; ok {
		return s
	}
	if s, ok := TypeText[t&^Answer]; ok {
		return s + " answer"
	}
	return fmt.Sprintf("frame type %#02x", uint8(t))
}

// Flags of a header.
const (
	FlagLast      = 1 // the last Chunks frame of a session
	FlagUncounted = 2 // a Lookup or LookupRuns that Stats do not count; with FeatureUncounted only, as the next
	FlagContinued = 4 // one that Reuse alone sees
	FlagRecall    = 8 // a Delete or DeleteNamespace of what a node sent to another one; with FeatureRecall only
)

// Header begins every frame.
//
//	offset size
//	 0     4    magic, the bytes "SKEP"
//	 4     1    version
//	 5     1    type
//	 6     2    flags
//	 8     8    call: the number of the call the frame belongs to
//	16     4    body length in bytes
//	20     4    payload length in bytes
//	24     4    deadline: milliseconds the sender waits for the answer; 0 none
//	28     4    CRC-32 of the body
//	32     4    epoch of the map that the sender computed with; 0 none
//	36     4    CRC-32 of bytes 0 to 35
//
// This is part of the protocol and does not change. CRC-32 is IEEE 802.3's, which every
// language has.
type Header struct {
	Version  uint8
	Type     Type
	Flags    uint16
	Call     uint64
	Body     uint32
	Payload  uint32
	Deadline uint32
	BodySum  uint32
	Epoch    uint32
}

var LittleEndian = binary.LittleEndian

// Append adds the header's 40 bytes to b.
func (h *Header) Append(b []byte) []byte {
	at := len(b)
	b = LittleEndian.AppendUint32(b, magic)
	b = append(b, h.Version, byte(h.Type))
	b = LittleEndian.AppendUint16(b, h.Flags)
	b = LittleEndian.AppendUint64(b, h.Call)
	b = LittleEndian.AppendUint32(b, h.Body)
	b = LittleEndian.AppendUint32(b, h.Payload)
	b = LittleEndian.AppendUint32(b, h.Deadline)
	b = LittleEndian.AppendUint32(b, h.BodySum)
	b = LittleEndian.AppendUint32(b, h.Epoch)
	return LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b[at:]))
}

// Errors of what arrives. They end the connection: where the next frame begins is
// unknown.
func Broken(field string, value, limit any) error {
	return &skep.Error{Op: "frame", Kind: skep.Damaged, Field: field, Value: value, Limit: limit}
}

// ParseHeader reads the header in the first 40 bytes of b. A wrong magic or checksum is Damaged; another version is
// Version.
func ParseHeader(b []byte) (h Header, err error) {
	if len(b) < HeaderSize {
		return h, Broken("header length", len(b), HeaderSize)
	}
	if m := LittleEndian.Uint32(b); m != magic {
		return h, Broken("magic", fmt.Sprintf("%#x", m), fmt.Sprintf("%#x", uint32(magic)))
	}
	if s := crc32.ChecksumIEEE(b[:36]); s != LittleEndian.Uint32(b[36:]) {
		return h, Broken("header checksum", LittleEndian.Uint32(b[36:]), s)
	}
	h = Header{Version: b[4], Type: Type(b[5]), Flags: LittleEndian.Uint16(b[6:]), Call: LittleEndian.Uint64(b[8:]),
		Body:    LittleEndian.Uint32(b[16:]),
		Payload: LittleEndian.Uint32(b[20:]), Deadline: LittleEndian.Uint32(b[24:]), BodySum: LittleEndian.Uint32(b[28:]), Epoch: LittleEndian.Uint32(b[32:])}
	if h.Version != Version && h.Type != TypeHello {
		return h, &skep.Error{Op: "frame", Kind: skep.Version, Field: "version", Value: h.Version, Limit: Version}
	}
	return h, nil
}

// Message is what a body holds. walk names its fields in order, for reading and for
// writing (coder).
type Message interface{ Walk(c *Coder) }

// AppendFrame adds a whole frame but for its payload to b.
func AppendFrame(b []byte, h Header, m Message) ([]byte, error) {
	at := len(b)
	b = append(b, make([]byte, HeaderSize)...)
	c := Coder{Body: b}
	if m != nil {
		m.Walk(&c)
	}
	if c.err != nil {
		return b[:at], c.err
	}
	body := c.Body[at+HeaderSize:]
	h.Version, h.Body, h.BodySum = Version, uint32(len(body)), crc32.ChecksumIEEE(body)
	h.Append(c.Body[at:at])
	return c.Body, nil
}

// Decode reads a body that was compared with its checksum. What is not exactly a
// message is Invalid.
func Decode(t Type, body []byte, m Message) error { return DecodePaid(t, body, m, nil) }

// DecodePaid is decode with p paying for what it makes.
func DecodePaid(t Type, body []byte, m Message, p purse) error {
	c := Coder{Body: body, reading: true, purse: p}
	if m != nil {
		m.Walk(&c)
	}
	if c.err == nil && c.At != len(body) {
		c.err = skep.Invalidf(t.String(), "body length", len(body), c.At)
	}
	return c.err
}
