package inspect

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/segment"
)

// Side is the side rows of one block: of a clustered context, those of one layer.
type Side struct {
	Key       string      `json:"key"`       // of the block they are of, in hexadecimal: one layer of a context
	Namespace uint32      `json:"namespace"` // its number; 0: of a purged one
	Instance  uint32      `json:"instance"`  // of the namespace
	Salted    bool        `json:"salted"`    // put under a salt
	Edition   uint64      `json:"edition"`   // the version of the block they are of
	Current   bool        `json:"current"`   // it is the version that is stored; else they are not used, and made anew
	Sealed    bool        `json:"sealed"`    // encrypted, as the block is
	Rows      int         `json:"rows"`      // rows of the block
	Bytes     int64       `json:"bytes"`     // before encryption and compression (bytes)
	Kinds     []SideKinds `json:"kinds"`     // by kind
}

// SideKinds is how much of a kind there is.
type SideKinds struct {
	Kind  string `json:"kind"`  // header, routes, clusters or medoids
	Rows  int    `json:"rows"`  // rows of the kind
	Bytes int64  `json:"bytes"` // of these rows (bytes)
}

// Sides is all side rows.
type Sides struct {
	Store
	Bytes int64  `json:"bytes"` // of all rows listed (bytes)
	Sides []Side `json:"side"`  // blocks with side rows
}

// Sides lists the blocks that have side rows, by instance, salt and key.
func (v *View) Sides(ctx context.Context) (*Sides, error) {
	root, err := v.store(ctx)
	if err != nil {
		return nil, err
	}
	roots, err := v.cat.SideRoots(ctx)
	if err != nil {
		return nil, err
	}
	names, err := v.cat.Namespaces(ctx)
	if err != nil {
		return nil, err
	}
	ids := map[uint32]uint32{}
	for _, n := range names {
		ids[n.Instance] = uint32(n.ID)
	}
	written := map[catalog.SideID]uint64{}
	for _, r := range roots {
		written[r.ID] = 0
	}
	if err := v.scan(ctx, func(_ layout.Location, r *segment.Record) error {
		id := catalog.SideID{Instance: r.Instance, Tag: r.SaltTag, Key: r.Key}
		if was, ok := written[id]; ok {
			written[id] = max(was, r.Written())
		}
		return nil
	}); err != nil {
		return nil, err
	}
	out := &Sides{Store: root, Sides: []Side{}}
	for _, r := range roots {
		s := Side{Key: r.ID.Key.String(), Namespace: ids[r.ID.Instance], Instance: r.ID.Instance, Salted: r.ID.Tag != [16]byte{}, Edition: r.Edition,
			Current: written[r.ID] == r.Edition, Sealed: r.Sealed, Rows: len(r.Pieces), Kinds: kindsOf(r.Pieces)}
		for _, k := range s.Kinds {
			s.Bytes += k.Bytes
		}
		out.Bytes += s.Bytes
		out.Sides = append(out.Sides, s)
	}
	return out, nil
}

func kindsOf(pieces []catalog.SidePiece) []SideKinds {
	out := []SideKinds{}
	for k := skep.SidecarHeader; k <= skep.SidecarMedoids; k++ {
		n := SideKinds{Kind: k.String()}
		for _, p := range pieces {
			if p.Kind == uint8(k) {
				n.Rows++
				n.Bytes += int64(p.Bytes)
			}
		}
		if n.Rows > 0 {
			out = append(out, n)
		}
	}
	return out
}
