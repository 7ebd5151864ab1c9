package frames

import "github.com/skepkv/skep"

// What both sides go by and no frame says.
const (
	PageSize    = 4096      // drives want memory aligned to it
	LeastWindow = 1 << 20   // bytes; the smallest window a session gets
	SlowestRate = 256 << 10 // bytes a second that a connection makes at least, unless a server's limits say otherwise
	MostListed  = 4096      // keys that one answer lists

	FileShift    = 48 // a place in attached memory has the file's number in the bits from here on; 0: the client's own
	MostAttached = 64 // files of a connection
)

// ErrStopped is the error of what was not sent because a session was told to stop.
var ErrStopped = &skep.Error{Op: "restore", Kind: skep.Stopped}

// ErrDraining is the error of calls to a server that is shutting down.
var ErrDraining = &skep.Error{Op: "server", Kind: skep.Unavailable, Field: "state", Value: "shutting down"}
