package skep

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
)

// KeySize is the length of a Key in bytes.
const KeySize = 32

// Key names a block: the engine's chained prefix hash, or what a name of another
// form is hashed into by KeyOf. It is a value: compare with ==, use as a map key.
type Key [KeySize]byte

// ParseKey makes a Key of exactly KeySize bytes; any other length is Invalid.
func ParseKey(b []byte) (Key, error) {
	if len(b) != KeySize {
		return Key{}, Invalidf("parse key", "key length in bytes", len(b), KeySize)
	}
	return Key(b), nil
}

// ParseHexKey makes a Key of 64 hexadecimal digits.
func ParseHexKey(s string) (Key, error) {
	b, err := hex.DecodeString(s)
	if err != nil {
		return Key{}, &Error{Op: "parse key", Kind: Invalid, Field: "key", Value: s, Limit: "64 hexadecimal digits", Err: err}
	}
	return ParseKey(b)
}

// KeyOf hashes an engine's own name for a block (SHA-256) into a Key.
func KeyOf(name []byte) Key { return sha256.Sum256(name) }

// ChainKey is the key of the block that holds tokens and follows parent (nil for
// the first block of a chain): SHA-256 over the parent's bytes and the token ids as
// little-endian uint32, which is what SGLang's HiCache computes for its pages.
func ChainKey(parent *Key, tokens []uint32) Key {
	b := make([]byte, 0, KeySize+4*len(tokens))
	if parent != nil {
		b = append(b, parent[:]...)
	}
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	return sha256.Sum256(b)
}

// String is the key in hexadecimal.
func (k Key) String() string { return hex.EncodeToString(k[:]) }

// Short is the first eight hexadecimal digits, for people.
func (k Key) Short() string { return hex.EncodeToString(k[:4]) }

// MaxSaltSize is the longest Salt, in bytes.
const MaxSaltSize = 256

// Salt is a per-user secret: blocks put under one salt are found under the same
// salt only. The empty salt is the namespace's common room. A salt is mixed into
// what is stored and is itself never stored, logged or sent back.
type Salt string

// String hides the secret.
func (s Salt) String() string {
	if s == "" {
		return "none"
	}
	return "hidden"
}

// Format hides the secret from every verb.
func (s Salt) Format(f fmt.State, _ rune) { io.WriteString(f, s.String()) }

// MarshalText hides the secret from encoders of text, JSON among them. The empty salt is empty.
func (s Salt) MarshalText() ([]byte, error) {
	if s == "" {
		return nil, nil
	}
	return []byte(s.String()), nil
}

// UnmarshalText takes a secret as it is. It refuses, as Invalid, what String and MarshalText put in place of one.
func (s *Salt) UnmarshalText(b []byte) error {
	for _, shown := range []Salt{"", "s"} {
		if string(b) == shown.String() {
			return Invalidf("unmarshal", "salt", string(b), "the secret, which encoders do not write")
		}
	}
	*s = Salt(b)
	return nil
}

// LogValue hides the secret from slog.
func (s Salt) LogValue() slog.Value { return slog.StringValue(s.String()) }
