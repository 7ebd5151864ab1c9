// Package resp lets everything that speaks Redis use a Store: RESP2 and RESP3 on a
// port of their own, in front of any skep.Store.
//
// # The story
//
// A tenant has sixteen numbered databases. A database is two unchained, opaque
// namespaces of the store:
//
//	resp/3        heads:  one block a key, named by the SHA-256 of the key. It holds the key
//	                      itself, which is compared, the value's size, its expiry, and the
//	                      value when that is at most 16 KiB
//	resp/3/data   pieces: larger values, cut into blocks of 1 MiB under an id no other value has
//
// SET stores the pieces as they arrive and the head when all are stored: the head is
// the moment the value appears, whole, in place of the one before. Heads of up to 512
// bytes live in the store's records and take no page of a drive. EXPIRE and PERSIST
// write the head again and touch no piece, and since the expiry is in the head it
// survives whatever the head does. A value that was replaced lives on until the last
// GET under way has sent it, then its pieces are deleted in batches.
//
// GET reads the head, leases the pieces, restores them and sends each as soon as it has
// been checked, straight from the store's memory; a value is never held as a whole.
// When a piece fails after the length of the value was sent, the connection is closed.
//
//	client ── commands ──▶ parser ──▶ dispatch ─▶ database ─▶ Store
//	          values 1 MiB at a time ─▶ Alloc ─▶ Put           │
//	client ◀── writev ◀── in order ◀── as they land ◀── Restore ┘
//
// Pipelined GETs that have arrived whole are answered by one session, read ahead like a
// chain; so are the keys of an MGET. Pipelined EXISTS become one lookup of heads and,
// since who asks for several keys is about to load them, a hint to the store. Heads of
// pipelined SETs go into one put, which places them together.
//
// EXISTS also grants a lease, out of a small budget a tenant: see leases.
//
// # Lockstep
//
// Clients exist that read as many bytes as the reply they hope for has, and never find their place again. To such a
// client an error is a shift of everything that follows: a later GET takes the value of another key, which no checksum
// sees. On a connection of ServeLockstep every reply to SET, GET and EXISTS therefore has the length that its client
// reads, or does not come. Declined is a SET that is OK and leaves nothing under its key. What is
// lacked for the moment is waited for, five seconds. An EXISTS in trouble is 0. A GET without a value is a nil with
// zeros in it, as long as the header the client waits for: that of the key's value as it was last set, found or got there,
// or the one that all values of the credential have which were, since this server began. All else ends the connection.
//
// # Why not all of redcon
//
// Replies are written with tidwall/redcon. Its reader is not used: it holds a whole
// command, so a SET of 512 MiB, in a buffer that doubles and is then copied; its
// server copies values into its write buffer; and a negative bulk length ("$-2")
// makes its parser panic (TestRedconsReaderPanics keeps watch on that). parser is a small reader of our own
// that takes memory only as bytes arrive and hands values on.
//
// # Invariants
//
//   - No head without its pieces: pieces are stored before the head that names them.
//   - What is told of a key is what the store has of it now: no head is kept. A value that lost a piece is not there.
//   - Nothing is answered before AUTH but AUTH, HELLO, QUIT, and then only in small
//     commands; every command checks the identity again.
//   - An expired key is found by nobody, from the millisecond of its expiry on.
//   - No byte of a piece is sent before the store has checked all of that piece.
//   - Replies are in the order of commands.
//   - No error is a reply of a lockstep connection.
//   - Memory a peer can take is bounded: some 64 KiB a connection; larger commands, and values in
//     flight, over all connections (Options.SendBytes, ReceiveBytes). Who finds none is
//     told when to try again; in the midst of a command's arguments it is hung up on as well.
//   - Every read of a started command, every write and every call of the store has a
//     deadline.
//   - One goroutine a connection, one for each piece being put, ended before its SET is
//     answered; one for deleting behind. Shutdown waits for all.
//
// # What differs from Redis
//
// Values are strings; there are no other types. MSET is atomic for each key, not over
// all. DBSIZE and SCAN count keys whose value the store has evicted since, and whose expiry has passed but who
// were not looked at. INFO's figures are the tenant's own. SET has no GET option.
package resp
