// Package server puts a skep.Store on connections, for the clients of package wire. What a connection carries is told
// there, and in docs/reference/protocol.md.
//
// # What always holds
//
//   - Nothing is done for a connection before it has authenticated, and no frame larger
//     than a Hello is read.
//   - A namespace of another tenant is answered like one that does not exist, before
//     anything is looked up in it.
//   - Every allocation is charged to Limits.Memory before it is made; what does not fit is
//     refused at once with Overloaded and a time to come back.
//   - A session holds at most its window of the Store's memory. A reader that gives no
//     credit stalls its own session only; a socket that takes nothing is closed after
//     Limits.Stall.
//   - When a connection ends, its sessions are stopped (the drives' queues are emptied of
//     their reads), its open blocks are aborted and its goroutines end.
//
// # Goroutines
//
// There is one accepting for each listener; for each connection a reader, and at most Limits.Calls for calls that
// wait, sessions and streams of events. They end with the connection; Serve returns when all have, or says
// NotReleased where a drive keeps one.
package server
