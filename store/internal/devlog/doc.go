// Package devlog has the devices' logs say what the catalog says: of deletions, purges and namespaces, so that a
// rebuild that has nothing else resurrects none and knows whose blocks there are; of keys that things are encrypted
// with, so that it knows whose may not be written as they are put; and of records that no row speaks for.
//
// The catalog comes first: its commit decides, and carries the entries along as an intent (package intents). Then the
// entries are written to two drives and flushed, and the intent goes (CarryOut). What a crash or a full store keeps
// from the drives stays an intent and is tried again (Retry): by the cleaner, as soon as there is room, and by every
// open.
//
// A record that no row speaks for any more, in a group that goes on, makes that group stale: until a tombstone takes
// care of it (Reconcile), a deletion of something that is not there must leave one all the same.
package devlog
