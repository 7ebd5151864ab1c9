// Package near sets up connections to a peer on this machine.
//
// The kernel lets the send buffer of a loopback connection grow to megabytes. Then bytes are copied
// into pages that have left the processor's caches, and out of them again: a quarter of the sender's
// work, for nothing, since a peer this near needs no bytes ahead. A buffer that fits a
// cache does the same with less.
//
// Under TLS, records go to the kernel several at a time (Gatherer).
package near
