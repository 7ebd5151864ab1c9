// Package demo shows skep at work in a minute: a chat workload on four file devices,
// a kill in the middle, recovery, and the rest of the workload on what was recovered.
//
// The first half runs in a process of its own (Work), which says what it did line by
// line and is sent SIGKILL in mid-put. Everything the page shows was measured in this
// run; the payload of every block that came back, before and after the kill, was
// compared byte by byte.
package demo
