package store

import "github.com/skepkv/skep/store/internal/dirlock"

// Hold keeps every process from opening a store in a directory for writing, until release is called. The store need not
// have been made. Who only looks may hold a directory in which nothing can be written.
//
// Errors: Locked, which says who has the store open; Other.
func Hold(dir string, looking bool) (release func() error, err error) {
	lock, err := dirlock.Take(dir, looking)
	if err != nil {
		return nil, err
	}
	lock.Remove = lock.Made
	return lock.Release, nil
}
