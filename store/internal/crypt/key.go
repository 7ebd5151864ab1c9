package crypt

import (
	"bufio"
	"bytes"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/segment"
)

// Key is a tenant's AES-256 key. However it is printed or logged, what comes out is not the key.
type Key struct{ b [keySize]byte }

const (
	keySize = 32
	// maxTenantKeys bounds how many keys a tenant has at a time.
	maxTenantKeys = 64
	// maxKeyText bounds the text that keys are read from, in bytes.
	maxKeyText = 64 << 10
)

// NewKey takes a key of 32 random bytes. Errors: Invalid for another length, and for zeros.
func NewKey(b []byte) (k Key, err error) {
	if len(b) != keySize {
		return k, skep.Invalidf("encryption key", "bytes", len(b), keySize)
	}
	copy(k.b[:], b)
	if k == (Key{}) {
		return k, skep.Invalidf("encryption key", "bytes", "zero", "random")
	}
	return k, nil
}

// ParseKeys reads keys from text: 64 hexadecimal digits a line, the newest first; blank lines
// and lines that begin with # are skipped. Errors, of kind Invalid, name the line and never
// what is in it.
func ParseKeys(text []byte) (keys []Key, err error) {
	const op = "encryption keys"
	if len(text) > maxKeyText {
		return nil, skep.Invalidf(op, "bytes", len(text), fmt.Sprintf("at most %d", maxKeyText))
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxKeyText+1)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		raw, err := hex.DecodeString(line)
		if err != nil || len(raw) != keySize {
			return nil, skep.Invalidf(op, fmt.Sprintf("line %d", n), "something else", "64 hexadecimal digits")
		}
		k, err := NewKey(raw)
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	if len(keys) == 0 {
		return nil, skep.Invalidf(op, "keys", 0, "at least 1")
	}
	return keys, lines.Err()
}

// ID names the key: what records say, and errors and logs may.
func (k Key) ID() string { return k.id().String() }

func (k Key) id() (id segment.KeyID) {
	copy(id[:], k.derive(nil, "skep key id 1", len(id)))
	return id
}

// derive is HKDF-SHA256 of the key.
func (k Key) derive(salt []byte, info string, n int) []byte {
	out, err := hkdf.Key(sha256.New, k.b[:], salt, info, n)
	if err != nil {
		panic(err) // only for lengths no caller here has
	}
	return out
}

// Format implements fmt.Formatter.
func (Key) Format(f fmt.State, _ rune) { io.WriteString(f, "[encryption key]") }

// LogValue implements slog.LogValuer.
func (Key) LogValue() slog.Value { return slog.StringValue("[encryption key]") }

// MarshalText implements encoding.TextMarshaler.
func (Key) MarshalText() ([]byte, error) { return []byte("[encryption key]"), nil }
