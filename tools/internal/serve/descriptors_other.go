//go:build !unix

package serve

import "os"

// narrow is a system's whose sockets have no mode.
func narrow(uintptr, os.FileMode) {}

// raiseLimit is a system's that does not count descriptors.
func raiseLimit() int { return 1 << 20 }
