// Package wire is the client's side of the protocol that carries a skep.Store over a connection: a Client is a
// Store. Package wire/server puts any Store on connections, wire/frames is the protocol's form, and
// docs/reference/protocol.md tells of it to people who write a client in another language.
//
// # The story
//
// A connection is TCP (with TLS or without) or a Unix socket. The client says Hello
// with its credentials, the server answers Welcome with the limits, and from then on
// both send frames. A frame is a header with a checksum of its own, a body of fixed
// fields, and, where bytes travel, a payload (package wire/frames). Each call has a number; answers
// come in any order.
//
//	client                                server
//	  Hello  credentials      ──────────▶   authenticate, nothing before it
//	                          ◀──────────   Welcome  limits
//	  Lookup keys             ──────────▶   answered by the reader itself, no I/O
//	                          ◀──────────   blocks, lease
//	  Restore chains, window  ──────────▶   a session of the Store behind
//	                          ◀──────────   Chunks   as they land, within the credit
//	  Credit, Claim, Stop …   ──────────▶
//	  Put blocks + payload    ──────────▶   payload is read into memory the Store lends
//	                          ◀──────────   one outcome a block
//
// # Bytes
//
// A put's payload goes from the socket into memory of Store.Alloc, is compared with the
// checksum the client sent, and is handed to Store.Put there. A restore's payload goes
// from the memory a session lends into writev. The client reads it from the socket into
// the caller's destination. With each piece travel the checksums that the Store made
// when the bytes were put (skep.Sum); the client compares what landed with those, so
// nothing between the two memories goes unseen. Where the Store keeps none for exactly
// these bytes (a range within a granule), the server makes one as it sends.
//
// Clients on the same machine lend the server a memfd (package wire/shm): chains whose
// destination lies in it are read by the drives straight into it.
//
// # What always holds
//
//   - The client never blocks its reader on its caller: what arrives has memory waiting
//     for it, because credit was given for it. One slow session holds up no other.
//   - A call of the client returns within its context, and within Options.Timeout when
//     that is nearer. A server that is slow, full or gone is a miss (Options.Strict: an
//     error).
//   - A call is sent again only when the server said that it did nothing, when not a byte
//     of it was sent, or when doing it twice is the same as once.
//
// # Goroutines
//
// For each connection there is a reader, which ends with it, and one pinger a client, which ends with Close. While
// nothing is under way but calls that are answered at once, one at a time, their callers read their own answers
// and the reader rests (client_read.go).
package wire
