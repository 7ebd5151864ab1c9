package watermark

import "sync/atomic"

// Unsynced counts commits of one kind that were made without a sync, and how many of them have been synced since. The
// zero value has none.
type Unsynced struct{ made, synced atomic.Uint64 }

// Add counts one that was made.
func (u *Unsynced) Add() { u.made.Add(1) }

// Settle calls sync, which makes durable what was committed, unless everything that was made before the call has been
// synced already. It gives sync's error.
func (u *Unsynced) Settle(sync func() error) error {
	n := u.made.Load()
	if u.synced.Load() >= n {
		return nil
	}
	if err := sync(); err != nil {
		return err
	}
	for {
		have := u.synced.Load()
		if have >= n || u.synced.CompareAndSwap(have, n) {
			return nil
		}
	}
}
