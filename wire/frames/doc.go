// Package frames is the protocol's form on a connection, as docs/reference/protocol.md describes it: types of frames,
// the header, and the body of each message. The client is in package wire, the server in wire/server.
//
// A frame is a Header with a checksum of its own, a body of fixed fields, and, where bytes travel, a payload. A Message
// has one method, Walk, that takes a Coder through its fields in the order of the protocol: the same walk writes them,
// reads them, and counts what reading them makes, so that the two cannot differ. What a body may make a reader allocate
// is asked of the Coder's Spend before it is made.
//
// The zero of an added field means what peers without it mean. Nothing here knows a connection or waits.
package frames
