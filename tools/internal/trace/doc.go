// Package trace reads recorded serving workloads: who asked when, for how
// many tokens, and which cache blocks the prompt consists of.
//
// Three shapes of file are understood, each plain or compressed with zstd, and
// told apart by what they contain, never by what they are called:
//
//	Mooncake JSONL    one request a line (Mooncake, FAST'25):
//	                  {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [..]}
//	                  512 tokens a block unless the line says "block_size": n
//	kv-cache-tester   one JSON document a session: block_size, hash_id_scope, requests[{t, in, out,
//	                  hash_ids, ..}]; an element with its own "requests" is a subagent, whose times
//	                  count from the moment it was started
//	tar               of kv-cache-tester documents: all sessions start together and their requests
//	                  are merged by time
//
// Both publishers name a block by everything from the start of the prompt to
// the block's end, so equal ids mean equal prefixes and the infinite-cache hit
// ratio of [Stats] can be computed from the ids alone. Mooncake names the last,
// partly filled block too; kv-cache-tester leaves it out.
//
// Invariants of every [Request] a [Reader] returns:
//
//   - Time never decreases from one request to the next and is never negative.
//   - len(Blocks) is InputTokens/BlockTokens, rounded down (every block is
//     full, LastValidTokens is 0) or up (the last block holds LastValidTokens).
//   - Two ids are equal only when the file says so: ids that are local to a
//     session are made distinct across the sessions of an archive.
//
// What does not fit is a [FormatError] that says where, what and which limit.
// Nothing is skipped or repaired: a replay of half a trace looks like a result
// and is none. The first error is final: Next repeats it.
//
// Memory is bounded. JSONL is streamed with a cap on the line. Sessions must
// be merged by time and are held, each request as what it adds to the one
// before it in its session, under a cap; the 71 M block references of the
// kv-cache-tester development set are held in 24 MB. Decompression adds the
// window the file was packed with, at most 128 MiB.
package trace
