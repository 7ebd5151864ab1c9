package segment

import "encoding/hex"

// Sizes of a seal that are part of the format and should not be changed.
const (
	// KeyIDSize is the length of a key's name, in bytes.
	KeyIDSize = 16
	// NonceSize is the length of what makes a sealed block's key its own, in bytes.
	NonceSize = 16
	// TagSize is the length of the tag that authenticates a granule, in bytes.
	TagSize = 16

	sealSize = KeyIDSize + NonceSize
)

// KeyID names an encryption key and tells nothing of it.
type KeyID [KeyIDSize]byte

func (k KeyID) String() string { return hex.EncodeToString(k[:]) }

// Seal says what a block's payload is encrypted with. Its granule checksums are of the
// encrypted bytes then, and each part has, besides, a tag for each granule, and the
// checksums of the bytes that were put, encrypted, with a tag of their own.
type Seal struct {
	Key   KeyID
	Nonce [NonceSize]byte // random: no two blocks, nor two writes of one, have the same
}

// SealSize is the length of a part's seal: its granules' tags, their encrypted checksums,
// and the tag of those.
func SealSize(granules int) int { return granules*(TagSize+8) + TagSize }
