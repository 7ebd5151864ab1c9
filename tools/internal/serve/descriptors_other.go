//go:build !unix

package serve

// raiseLimit is a system's that does not count descriptors.
func raiseLimit() int { return 1 << 20 }
