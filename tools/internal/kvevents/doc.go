// Package kvevents tells routers what a store holds, in the form of vLLM's KV events: a PUB socket of ZeroMQ, and a
// ROUTER socket that sends again what a subscriber missed.
//
// # What is sent
//
// A message has three frames, as vLLM's publisher sends them: topic, sequence number (8 bytes, the most significant
// first) and a batch in MessagePack, [seconds, events, null]. Events are maps: BlockStored, BlockRemoved and
// AllBlocksCleared, with the fields of vllm/distributed/kv_events.py. A block's hash is its key; as a number it is the
// key's last 64 bits, which is what vLLM makes of its own hashes. The server knows no tokens: token_ids is empty, as in
// what vLLM tells of its own secondary tiers. The medium is STORAGE, as theirs is.
//
//	store.Events(snapshot) ─▶ Publisher ─▶ ring ─┬─▶ connections of the PUB socket, each at its place
//	                          by topic           └─▶ connections of the ROUTER socket, which ask for one
//
// A block is told of once it is committed, and again when it is in no tier any more. What was only accepted is not told
// of, nor what a move, a cleaning or a repair does, nor salted blocks, whose keys mean nothing to others.
//
// # Sequence numbers
//
// One sequence goes through the whole socket, whatever the topic, since a request for what was missed names a number
// and no topic, and since routers keep one number for an endpoint. It begins at the clock's microseconds: so a server
// that was started again is seen as a gap, which every router looks after. Had it begun at zero, routers that skip
// numbers below the last one would hear nothing until it is passed.
//
// # Snapshots
//
// The stream begins with a snapshot: AllBlocksCleared in every topic, then every block that is stored, then what
// happens. It begins anew in the same way, without a break of the sequence, when the store's events were lost to the
// publisher, when a purge or the deletion of a namespace took blocks that nobody lists, and when somebody asks for what
// the ring has no more. So a subscriber needs no other protocol than vLLM's. AllBlocksCleared alone would not do for a
// purge: routers take it as the end of everything that the endpoint has, and the other namespaces' blocks are there.
// Snapshots begin a minute apart, after the first few.
//
// A request for numbers that the ring has is answered from there. One from before it, or for numbers that were never
// sent, is answered from the beginning of the last snapshot, or from the oldest batch where that is no longer held.
//
// # Invariants
//
//   - What waits for subscribers is the ring, a set number of batches and bytes, shared by all. One that is slower
//     than it loses what falls out, sees the gap in the sequence, and holds up neither the store nor others.
//   - A peer is nobody in particular: ZeroMQ has no credentials here. A frame of a peer is at most a kilobyte, its
//     subscriptions at most 64, and nothing is allocated by the length that it says.
//   - A connection that takes nothing for a minute is cut. The ring, snapshots and connections end with Run.
//
// # Why no library of ZeroMQ
//
// github.com/go-zeromq/zmq4 v0.17.0, the one in pure Go, had its last change in June 2024. It allocates what the length
// of a peer's frame says before anyone was asked who he is: a frame that claims 2^62 bytes ends the process. Its queues
// count messages and no bytes, its ROUTER writes to all peers under one lock, and its handshake has no deadline.
// libzmq needs cgo. What PUB and ROUTER need of ZMTP 3.1 is zmtp.go.
package kvevents
