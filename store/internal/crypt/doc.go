// Package crypt encrypts what a store keeps at rest: the payload of blocks and the catalog's
// side rows. It holds the tenants' keys and works on bytes in memory; it does no I/O, takes no
// lock and starts no goroutine.
//
// # Seams
//
//	Keys     the keys of all tenants, replaced as a whole while they are in use, and which things are encrypted with
//	Secret   one key of one store: it seals a block (NewBlock) or a row (SealRow)
//	Block    one write of one block: Part encrypts a part and completes its record
//	Opener   decrypts what was read of a part of a sealed block
//
// A block is encrypted granule by granule, with the same lengths and at the same places, after
// it was placed and before a byte of it goes to a drive or the catalog. From there to the
// worker that checks a chunk, everything handles ciphertext and checksums of it, without a key:
// garbage collection, repair, defragmentation, scrub, verify, rebuild. docs/reference/format.md draws the
// bytes.
//
// # Invariants
//
//   - Every write of a block, and every row, has an AES-256 key of its own: HKDF-SHA256 of the
//     tenant's key, a random nonce and the store's id. So GCM nonces need to be unique in the
//     block only, and a counter will do: the part's and the granule's number.
//   - The ciphertext is bound to what it is of: namespace instance, salt tag, key, write
//     version, size and name of the part. Ciphertext of one block never opens as another's.
//   - A Key is printed by nothing. Its ID names it and tells nothing of it.
package crypt
