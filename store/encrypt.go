package store

import "github.com/skepkv/skep/store/internal/crypt"

// EncryptionKey is a tenant's AES-256 key. However it is printed or logged, what comes out is not
// the key: ID names it.
type EncryptionKey = crypt.Key

// NewEncryptionKey takes a key of 32 random bytes. Errors: Invalid for another length, and
// for zeros.
func NewEncryptionKey(b []byte) (EncryptionKey, error) { return crypt.NewKey(b) }

// ParseEncryptionKeys reads keys from text: 64 hexadecimal digits a line, the newest
// first; blank lines and lines that begin with # are skipped. Errors, of kind Invalid,
// name the line and never what is in it.
func ParseEncryptionKeys(text []byte) ([]EncryptionKey, error) { return crypt.ParseKeys(text) }

// SetEncryptionKeys replaces Options.EncryptionKeys while the store is open: what is put
// from now on is encrypted with each tenant's first key, and what was encrypted before is
// read as long as its key is among them. Blocks of a tenant that had no key stay as they
// are until they are put again.
//
// Errors: Invalid for what Open would refuse, and for a tenant that had keys and has none:
// its blocks would be written as they are put. Denied for a tenant that has none of the keys any more
// that its blocks are encrypted with: give it the new one above the old.
func (s *Store) SetEncryptionKeys(keys map[string][]EncryptionKey) error { return s.keys.Replace(keys) }
