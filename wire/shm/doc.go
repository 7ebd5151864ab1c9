// Package shm is memory that a client shares with a server on the same machine: a
// sealed memfd both map, a ring of completions in it, and an eventfd that says when to
// look. The drives read straight into it, so nothing is copied between drive and client.
//
//	client                                         server
//	Create  memfd, sealed against shrink and grow
//	        eventfd
//	        ── both, over the Unix socket ──▶      Open  seals and size checked, mapped
//	                                               drives read into [destination]
//	        [ring] entry n    ◀────────────────    Writer.Put, sequence number last
//	        eventfd           ◀────────────────    Signal
//	Reader.Next  entries while the number is right
//
// # What the server trusts
//
// Of the ring nothing, because it reads nothing of it: its place is in its own memory, and how many
// entries are free comes as credit over the socket. A client that writes to the ring confuses
// itself. All it reads here are the words that a client has its claims granted through
// (skep.ClaimWord), and of those it believes only what a claim can have made of what it wrote.
// The seals keep the client from taking pages away under the server, which would be a SIGBUS.
// Descriptors are checked for what they are before anything is done with them, by questions that no file can
// make wait. The eventfd is signalled through the kernel and never written to: whether a write to
// it waits is for the client to say, at any time.
//
// A file that is there already (Map) has no seals: whoever has it may cut it short, and a page that is not there is a SIGBUS
// for who touches it. It is touched by Guarded only, and by the Store, which guards what it does with destinations; for
// the kernel such a page is an error of the call, EFAULT. Only files in memory are mapped: a page of another waits for
// its file system, which may be a client's own process.
//
// The bytes of a destination are the client's to overwrite at any time. The Store checks
// them where they land; what the client does to them afterwards, or meanwhile, reaches
// no other client: nothing is ever taken from there into the Store's own memory but the
// parts of a put, under the putter's own name.
package shm
