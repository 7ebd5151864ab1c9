// Package books holds no code: its test plays a server's life with clients that keep books.
//
//	clients ──▶ processes of their own: binary protocol over TCP, Unix socket and shared memory, RESP, HTTP
//	   │        each writes into its book what it is about to ask for, and then what was acknowledged
//	   ▼
//	server  ──▶ a process: killed, stopped, started again; its drives come, go and lie; its disk fills up;
//	            its clock jumps by days, both ways
//
// A book is a file, so a client that is killed goes on where it was. For each key it says which values may be there:
// one, once a put or a delete was acknowledged; more, where a call was refused, failed, or had no answer. What is read
// must be one of these, byte for byte. Namespaces are Durable with two copies, and one device lies at a time, with a
// scrub before the next: nothing acknowledged may be missing. Values of RESP are a cache: they may be missing, and
// those acknowledged within seconds of a kill may be the ones before; a deleted key stays deleted.
//
// TestBooks takes 10 seconds, or SKEP_SOAK_TIME; it prints its seed, and SKEP_SEED sets it. SKEP_SOAK_BINARY names a
// skep that serves in place of the test's own; its clock does not jump.
package books
