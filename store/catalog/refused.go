package catalog

import "github.com/skepkv/skep"

// Refused says of a commit's error that the commit did not happen. Of one with another error it is not known whether
// it happened, or is still to happen.
func Refused(err error) bool {
	switch skep.KindOf(err) {
	case skep.Full, skep.ReadOnly, skep.Closed, skep.Invalid:
		return true
	}
	return false
}

// NoRoom says of an error that there is no room for what was asked for and may be later: in the store, or in the
// catalog's file system, which may also be for reading.
func NoRoom(err error) bool {
	k := skep.KindOf(err)
	return k == skep.Full || k == skep.ReadOnly
}
