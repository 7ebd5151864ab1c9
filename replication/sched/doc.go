// Package sched loads chains that an engine computes at the same time, of a cluster's nodes: the I/O around
// twopointer.Scheduler, which decides. It calls no node and knows no session; it says which blocks a session is to ask
// which node for, and is told what became of them.
//
//	engine   claims from the head ──▶┐              ┌──▶ node a: begun, begun │ queued …
//	                                 │ two pointers │──▶ node b: begun        │
//	sessions Answered, Came ────────▶┘  one order   └──▶ node c: begun, begun │ queued
//
// A channel is the nodes that have a chain, together: chains of the same nodes share one, whose speed the Scheduler
// learns. Runs leave the tail in order, as the Scheduler hands them out, and go to the node that has their blocks,
// which has two under way at a time. What is handed out beyond that is queued here and can be called back. It is
// handed out as long as a node that has some of what comes next has nothing to do, so a slow one holds up no other.
//
// Each node has a speed of its own, by what came from it. By that, what is queued goes to another node that has the
// blocks where they would be there in half the time. And an engine with nothing else to do that has come to the tail
// is given the lowest of what is queued, as far as it computes that sooner than it is loaded: it meets a slow node a
// second time, within what that node has. For the Scheduler that is a piece that did not come, an island: computed
// when all before it is there. As long as something of a chain is queued, claims are not told that there is no more
// to come: Claim.Next is there, and claim words say More.
//
// A chain by layers is loaded a layer at a time, of all its nodes at once, and nothing of it is given back.
//
// One goroutine, while there are chains: it asks the Scheduler, reads claim words every 2 ms, and wakes the sessions
// that have something to begin. Locks: a session's, then the Scheduler's.
package sched
