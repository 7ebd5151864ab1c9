// Package admin is the Unix socket in a store's directory through which other processes of the same
// user see the store at work and have it do something: the protocol, who serves it and who asks. What
// can be asked for is told by who serves; the package knows no store.
//
// A client sends one line, a word and, after a blank, the request's JSON; it gets one JSON document
// and is hung up on. Views are answered at once. Calls take as long as it takes, and a client that
// hangs up ends them.
package admin
