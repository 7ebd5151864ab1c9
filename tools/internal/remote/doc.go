// Package remote is what skep does with a server that runs: put, get, del and ls for values, ns and purge for
// namespaces, status for how it stands. All speak the binary protocol, over TCP, TLS or a Unix socket.
//
// A [Target] is the server as flags and the environment name it. Its Dial connects, and says of a connection that does
// not come about what is wrong in those flags' words: no server there, a token that is missing or wrong, a certificate
// that nobody vouches for, the port of another protocol.
//
// Values are those of Redis databases (package resp has their layout): what skep put puts, GET finds.
//
// Invariants:
//
//   - A value is held in memory a few MiB at a time, however large it is.
//   - A put that is cut off leaves what was there before; a get into a file leaves no half file.
//   - What deletes more than named keys counts first, and asks, unless --yes is given.
package remote
