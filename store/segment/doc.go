// Package segment is the format of what skep keeps on its devices, byte by byte:
// superblocks, segment headers, the record log and the records in it, and the
// checksums of payload. It encodes and decodes; it does no I/O and starts no
// goroutine. docs/reference/format.md draws the same bytes and is tested against this code.
//
// # The story
//
// A device is two superblock copies, a reserved 64 KiB, and segments. A stripe
// group is one segment on each of a list of devices, and each of its segments says
// so in its first page, the segment header, with the whole list: any one of them
// tells a rebuild where the others are.
//
// In a segment payload grows upwards from page 1, and the record log grows
// downwards from the end, until they meet:
//
//	| header | payload →            …            ← log page 2 | 1 | 0 |
//
// So the log needs no space set aside before anyone knows how many records there
// will be, the records of a full segment lie together at its end, where one
// sequential read fetches them, and no record lands in a reader's memory together
// with payload.
//
// The log is a sequence of appends: what one commit wrote. An append is a byte
// stream of entries (blocks, tombstones, purges, namespaces, marks, sealings) cut into pages that
// each verify themselves; an append one page of which is missing or damaged is
// discarded whole, which is what makes a commit whole or absent.
//
// The bytes of a block's record are the same in the log and in the catalog.
//
// # Invariants
//
//   - Little-endian throughout. Every page and every record ends in the xxh3-64 checksum
//     of all bytes before it, every page begins with a magic and a format; these three
//     places are the same in every format, so a program tells another format from
//     damage without knowing it.
//   - A program reads FormatVersion and no other format, but for log pages with a Sealing, which say the next one.
//   - Encodings are canonical: what decodes re-encodes to the same bytes, spare
//     bytes are zero, and unknown flags, kinds or trailing bytes are Damaged.
//   - Three failures stay apart: Foreign (not ours), Version (ours, of another format) and
//     Damaged (ours and broken).
//   - Decoding never panics, whatever the input, and never allocates more than about
//     the input's size.
//   - A log page is bound to its store, group, generation, device position and log
//     index, and its checksum is seeded with the store's secret, so that neither a
//     page of an earlier life of the segment, nor a misdirected one, nor payload made
//     to look like one is ever taken for one.
//   - A granule's checksum is bound to namespace instance, salt tag, key, part,
//     granule index and write version, so that misdirected and stale payload fails.
package segment
