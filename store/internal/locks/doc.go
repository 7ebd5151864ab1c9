// Package locks says in which order the engine's locks are taken, and checks it.
//
// Order is the table: from the outermost lock to the innermost. A goroutine takes a lock only while all that it holds
// come before it in the table, and none of them is a leaf. Each mutex names its entry in its type,
//
//	type space struct {
//		mu locks.Mutex[locks.Space]
//	}
//
// Built with the tag invariants, Mutex and RWMutex keep what each goroutine holds and panic when one is taken out of
// order, whether or not anybody happens to hold it: a deadlock that needs two goroutines to meet is found by one that
// passes. Without the tag both are sync's own, by an alias, and cost nothing.
//
// A lock that is new to the engine gets a type and a row here. What cannot be ordered (a lock that waits for its turn
// under a context) is no mutex, and stands in the table of package store's doc.go.
package locks
