package checks

import "github.com/skepkv/skep"

// Reason is the kind that a node that is away is missed by.
func Reason(err error) skep.Kind {
	switch k := skep.KindOf(err); k {
	case skep.Closed, skep.Behind, skep.StaleMap:
	default:
		return k
	}
	return skep.Unavailable
}

// NoRoom says of a put's error that the node has no room, or takes no changes: other nodes may.
func NoRoom(err error) bool {
	k := skep.KindOf(err)
	return k == skep.Full || k == skep.ReadOnly
}
