package store

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

// EncryptionKey is a tenant's AES-256 key. However it is printed or logged, what comes
// out is not the key.
type EncryptionKey struct{ b [encryptionKeySize]byte }

const (
	encryptionKeySize = 32
	// maxTenantKeys bounds how many keys a tenant has at a time, and maxKeyText what they
	// are read from, in bytes.
	maxTenantKeys = 64
	maxKeyText    = 64 << 10
)

// NewEncryptionKey takes a key of 32 random bytes. Errors: Invalid for another length, and
// for zeros.
func NewEncryptionKey(b []byte) (k EncryptionKey, err error) {
	if len(b) != encryptionKeySize {
		return k, skep.Invalidf("encryption key", "bytes", len(b), encryptionKeySize)
	}
	copy(k.b[:], b)
	if k == (EncryptionKey{}) {
		return k, skep.Invalidf("encryption key", "bytes", "zero", "random")
	}
	return k, nil
}

// ParseEncryptionKeys reads keys from text: 64 hexadecimal digits a line, the newest
// first; blank lines and lines that begin with # are skipped. Errors, of kind Invalid,
// name the line and never what is in it.
func ParseEncryptionKeys(text []byte) (keys []EncryptionKey, err error) {
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
		if err != nil || len(raw) != encryptionKeySize {
			return nil, skep.Invalidf(op, fmt.Sprintf("line %d", n), "something else", "64 hexadecimal digits")
		}
		k, err := NewEncryptionKey(raw)
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
func (k EncryptionKey) ID() string { return k.id().String() }

func (k EncryptionKey) id() (id segment.KeyID) {
	copy(id[:], derive(k, nil, "skep key id 1", len(id)))
	return id
}

// derive is HKDF-SHA256 of the key.
func derive(k EncryptionKey, salt []byte, info string, n int) []byte {
	out, err := hkdf.Key(sha256.New, k.b[:], salt, info, n)
	if err != nil {
		panic(err) // only for lengths no caller here has
	}
	return out
}

// Format implements fmt.Formatter.
func (EncryptionKey) Format(f fmt.State, _ rune) { io.WriteString(f, "[encryption key]") }

// LogValue implements slog.LogValuer.
func (EncryptionKey) LogValue() slog.Value { return slog.StringValue("[encryption key]") }

// MarshalText implements encoding.TextMarshaler.
func (EncryptionKey) MarshalText() ([]byte, error) { return []byte("[encryption key]"), nil }

// keyring is the keys of all tenants that have some, and under "" those of all others; it
// does not change.
type keyring map[string]*tenantKeys

type tenantKeys struct {
	newest *sealKey
	all    map[segment.KeyID]*sealKey
}

type sealKey struct {
	id  segment.KeyID
	key EncryptionKey
}

func newKeyring(keys map[string][]EncryptionKey) (keyring, error) {
	const op = "encryption keys"
	ring := keyring{}
	for tenant, list := range keys {
		if len(list) < 1 || len(list) > maxTenantKeys {
			return nil, skep.Invalidf(op, "keys of tenant "+tenant, len(list), fmt.Sprintf("1 to %d", maxTenantKeys))
		}
		t := &tenantKeys{all: map[segment.KeyID]*sealKey{}}
		for _, k := range list {
			if k == (EncryptionKey{}) {
				return nil, skep.Invalidf(op, "key of tenant "+tenant, "zero", "made by NewEncryptionKey")
			}
			sk := &sealKey{k.id(), k}
			if t.all[sk.id] != nil {
				return nil, skep.Invalidf(op, "key of tenant "+tenant, k.ID()+" twice", "each once")
			}
			t.all[sk.id] = sk
			if t.newest == nil {
				t.newest = sk
			}
		}
		ring[tenant] = t
	}
	return ring, nil
}

// newest is what a tenant's blocks are encrypted with; nil: they are not.
func (r keyring) newest(tenant string) *sealKey {
	for _, t := range []*tenantKeys{r[tenant], r[""]} {
		if t != nil {
			return t.newest
		}
	}
	return nil
}

// find gives a tenant's key by its name. Error: Denied.
func (r keyring) find(tenant string, id segment.KeyID) (*sealKey, error) {
	for _, t := range []*tenantKeys{r[tenant], r[""]} {
		if t != nil && t.all[id] != nil {
			return t.all[id], nil
		}
	}
	return nil, &skep.Error{Op: "decrypt", Kind: skep.Denied, Field: "encryption key", Value: id.String(), Limit: "configured for tenant " + tenant}
}

// keyring is the keys in use.
func (s *Store) keyring() keyring { return *s.keys.Load() }

// SetEncryptionKeys replaces Options.EncryptionKeys while the store is open: what is put
// from now on is encrypted with each tenant's first key, and what was encrypted before is
// read as long as its key is among them. Blocks of a tenant that had no key stay as they
// are until they are put again.
//
// Errors: Invalid for what Open would refuse, and for a tenant that had keys and has none:
// its blocks would be written as they are put.
func (s *Store) SetEncryptionKeys(keys map[string][]EncryptionKey) error {
	ring, err := newKeyring(keys)
	if err != nil {
		return err
	}
	for {
		old := s.keys.Load()
		for tenant := range *old {
			if ring[tenant] == nil {
				return skep.Invalidf("encryption keys", "keys of tenant "+tenant, 0, "at least 1 while the store is open")
			}
		}
		if s.keys.CompareAndSwap(old, &ring) {
			return nil
		}
	}
}
