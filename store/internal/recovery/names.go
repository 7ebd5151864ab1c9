package recovery

import (
	"context"

	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/watermark"
)

// Namespaces loads namespaces and purges, and forgets purges that nothing has any more.
func (ld *Loader) Namespaces(ctx context.Context) error {
	rows, err := ld.Catalog.Namespaces(ctx)
	if err != nil {
		return err
	}
	n := ld.Names
	for _, r := range rows {
		if _, err := n.Add(r.NamespaceInfo, r.Instance); err != nil {
			return err
		}
		ld.Root.PassNumbers(watermark.Numbers{Namespace: uint32(r.ID), Instance: r.Instance})
	}
	purges, err := ld.Catalog.Purges(ctx)
	if err != nil {
		return err
	}
	b := ld.Catalog.NewBatch()
	for _, p := range purges {
		// A salt's row is keyed by its first tag and holds the epoch of its next; rows of
		// later tags say only that those are dead.
		k := namespaces.SaltTag{Instance: p.Instance, Tag: namespaces.Tag(p.Tag)}
		if p.Seq > 0 {
			ld.Root.Pass(p.Seq) // a purge of that number again would make the salt's tag the one it makes dead
		}
		if n.Of(p.Instance) == nil { // nothing has it any more
			b.DeletePurge(p)
			continue
		}
		n.KillTag(k, p.Seq)
	}
	if b.Len() == 0 || ld.ReadOnly {
		return nil
	}
	return ld.Catalog.Commit(ctx, b, false)
}
