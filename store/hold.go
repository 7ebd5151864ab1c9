package store

import "github.com/skepkv/skep/store/internal/dirlock"

// Hold keeps every process from opening a store in a directory for writing, until release is called. The store need not
// have been made. Who only looks may hold a directory in which nothing can be written. Root may hold another user's to
// look alone: what root makes there the other one cannot open.
//
// Errors: Locked, which says who has the store open; Denied; Other.
func Hold(dir string, looking bool) (release func() error, err error) {
	if !looking {
		if err := dirlock.Owned(dir); err != nil {
			return nil, err
		}
	}
	lock, err := dirlock.Take(dir, looking)
	if err != nil {
		return nil, err
	}
	lock.Remove = lock.Made
	return lock.Release, nil
}
