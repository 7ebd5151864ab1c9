package skep

import (
	"context"
	"fmt"
)

// SideRows is a Store that keeps what a block says in its metadata as well, cut into rows by
// what it is: the engine does, in Pebble. Medoid vectors and route tables of clustered contexts
// are kept so (docs/sparse.md). The block stays the source: rows are made from it, are of one
// version of it only, and go when it goes. A Store that is reached over a network, or that
// stands in front of another, has none.
type SideRows interface {
	// PutSide keeps pieces as rows of the block of key: put together they must be the bytes of
	// its one part, as it is stored. They take the place of those kept before, all at once: a
	// crash leaves the ones or the others, or none. What a crash has lost is not there, and
	// never half there; it survives one as the block does, in a Durable namespace.
	//
	// Errors: Invalid (pieces outside the limits below), NotFound (no such block, or it is not
	// committed yet), Conflict (the block says something else), Denied (it is encrypted, and its
	// key is not there), Full, and those of Put.
	PutSide(ctx context.Context, s Scope, key Key, pieces []SidePiece) error
	// Side gives the pieces kept of the block, in their order, the caller's own. NotFound: no
	// such block, or nothing is kept of the version that is stored. Damaged: what is kept is not
	// what the block says. The block can be read in both cases.
	Side(ctx context.Context, s Scope, key Key) ([]SidePiece, error)
}

// SidePiece is one row.
type SidePiece struct {
	Kind  SideKind
	Bytes []byte
}

// SideKind is what a piece is of. The numbers are stored.
type SideKind uint8

const (
	SideHeader   SideKind = 1 // what describes the rest
	SideRoutes   SideKind = 2 // which entry is in which slot of which drive
	SideClusters SideKind = 3 // which entries form a cluster
	SideMedoids  SideKind = 4 // vectors of the clusters' medoids
)

func (k SideKind) String() string {
	switch k {
	case SideHeader:
		return "header"
	case SideRoutes:
		return "routes"
	case SideClusters:
		return "clusters"
	case SideMedoids:
		return "medoids"
	}
	return "unknown"
}

const (
	// MaxSidePieceBytes is the longest piece: a row stays a small part of a table.
	MaxSidePieceBytes = 256 << 10
	// MaxSidePieces is how many pieces a block may have: 1 GiB.
	MaxSidePieces = 4096
)

// ValidateSide returns an Invalid error naming the first of pieces outside its limits.
func ValidateSide(pieces []SidePiece) error {
	const op = "put side rows"
	if len(pieces) < 1 || len(pieces) > MaxSidePieces {
		return Invalidf(op, "pieces", len(pieces), fmt.Sprintf("1 to %d", MaxSidePieces))
	}
	for i, p := range pieces {
		if p.Kind < SideHeader || p.Kind > SideMedoids {
			return Invalidf(op, fmt.Sprintf("kind of piece %d", i), int(p.Kind), fmt.Sprintf("%d to %d", SideHeader, SideMedoids))
		}
		if len(p.Bytes) < 1 || len(p.Bytes) > MaxSidePieceBytes {
			return Invalidf(op, fmt.Sprintf("piece %d in bytes", i), len(p.Bytes), fmt.Sprintf("1 to %d", MaxSidePieceBytes))
		}
	}
	return nil
}
