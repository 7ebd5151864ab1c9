package skep

import (
	"context"
	"fmt"
)

// Sidecars is a Store that keeps what a block says in its metadata as well, cut into rows by
// what it is: the engine does, in Pebble. Medoid vectors and route tables of clustered contexts
// are kept so (docs/explanation/sparse.md). The block stays the source: rows are made from it, are of one
// version of it only, and go when it goes. Over a network the calls are Unsupported; a Store in front of another
// has what that one has.
type Sidecars interface {
	// PutSidecar keeps pieces as rows of the block of key: put together they must be the bytes of
	// its one part, as it is stored. They take the place of those kept before, all at once: a
	// crash leaves the ones or the others, or none. What a crash has lost is not there, and
	// never half there; it survives one as the block does, in a Durable namespace.
	//
	// Errors: Invalid (pieces outside the limits below), NotFound (no such block, or it is not
	// committed yet), Conflict (the block says something else), Denied (it is encrypted, and its
	// key is not there), Full, and those of Put.
	PutSidecar(ctx context.Context, s Scope, key Key, pieces []SidecarPiece) error
	// Sidecar gives the pieces kept of the block, in their order, the caller's own. NotFound: no
	// such block, or nothing is kept of the version that is stored. Damaged: what is kept is not
	// what the block says. The block can be read in both cases.
	Sidecar(ctx context.Context, s Scope, key Key) ([]SidecarPiece, error)
}

// SidecarPiece is one row.
type SidecarPiece struct {
	Kind  SidecarKind
	Bytes []byte
}

// SidecarKind is what a piece is of. The numbers are stored.
type SidecarKind uint8

const (
	SidecarHeader   SidecarKind = 1 // what describes the rest
	SidecarRoutes   SidecarKind = 2 // which entry is in which slot of which drive
	SidecarClusters SidecarKind = 3 // which entries form a cluster
	SidecarMedoids  SidecarKind = 4 // vectors of the clusters' medoids
)

func (k SidecarKind) String() string {
	switch k {
	case SidecarHeader:
		return "header"
	case SidecarRoutes:
		return "routes"
	case SidecarClusters:
		return "clusters"
	case SidecarMedoids:
		return "medoids"
	}
	return "unknown"
}

const (
	// MaxSidecarPieceBytes is the longest piece: a row stays a small part of a table.
	MaxSidecarPieceBytes = 256 << 10
	// MaxSidecarPieces is how many pieces a block may have: 1 GiB.
	MaxSidecarPieces = 4096
)

// ValidateSidecar returns an Invalid error naming the first of pieces outside its limits.
func ValidateSidecar(pieces []SidecarPiece) error {
	const op = "put sidecar"
	if len(pieces) < 1 || len(pieces) > MaxSidecarPieces {
		return Invalidf(op, "pieces", len(pieces), fmt.Sprintf("1 to %d", MaxSidecarPieces))
	}
	for i, p := range pieces {
		if p.Kind < SidecarHeader || p.Kind > SidecarMedoids {
			return Invalidf(op, fmt.Sprintf("kind of piece %d", i), int(p.Kind), fmt.Sprintf("%d to %d", SidecarHeader, SidecarMedoids))
		}
		if len(p.Bytes) < 1 || len(p.Bytes) > MaxSidecarPieceBytes {
			return Invalidf(op, fmt.Sprintf("piece %d in bytes", i), len(p.Bytes), fmt.Sprintf("1 to %d", MaxSidecarPieceBytes))
		}
	}
	return nil
}
