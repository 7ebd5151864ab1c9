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
