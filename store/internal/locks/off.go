//go:build !invariants

package locks

import "sync"

// Mutex is a sync.Mutex of the lock that R names.
type Mutex[R any] = sync.Mutex

// RWMutex is a sync.RWMutex of the lock that R names.
type RWMutex[R any] = sync.RWMutex

// Requires says that the caller holds m. The tag invariants asserts it.
func Requires(*sync.Mutex) {}
