package inspect

import (
	"cmp"
	"context"
	"slices"

	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/segment"
)

// KeyUse is what one encryption key of one tenant is needed for.
type KeyUse struct {
	Tenant     string `json:"tenant"`      // whose blocks they are
	KeyID      string `json:"key_id"`      // of the encryption key, as logs name it; empty: not encrypted
	Blocks     int64  `json:"blocks"`      // stored with it (blocks)
	BlockBytes int64  `json:"block_bytes"` // payload of them (bytes)
	Durable    int64  `json:"durable"`     // of these, durable ones (blocks)
}

// Keys is which encryption keys the blocks of a store need.
type Keys struct {
	Store
	Keys []KeyUse `json:"keys"` // by tenant and key
}

// Keys counts the stored blocks by tenant and encryption key; blocks that were purged are not counted. It needs no key.
// The rows of clustered contexts have the key of their block. Errors: Damaged where a row says nothing, for it may need
// a key.
func (v *View) Keys(ctx context.Context) (*Keys, error) {
	root, err := v.store(ctx)
	if err != nil {
		return nil, err
	}
	spaces, err := v.cat.Namespaces(ctx)
	if err != nil {
		return nil, err
	}
	tenants := map[uint32]string{}
	for _, n := range spaces {
		tenants[n.Instance] = n.Tenant
	}
	type use struct{ tenant, key string }
	uses := map[use]*KeyUse{}
	if err := v.scan(ctx, func(_ layout.Location, r *segment.Record) error {
		u := use{tenant: tenants[r.Instance]}
		if r.Sealed != nil {
			u.key = r.Sealed.Key.String()
		}
		k := uses[u]
		if k == nil {
			k = &KeyUse{Tenant: u.tenant, KeyID: u.key}
			uses[u] = k
		}
		k.Blocks++
		k.BlockBytes += r.Bytes()
		if r.Flags&segment.RecordDurable != 0 {
			k.Durable++
		}
		return nil
	}); err != nil {
		return nil, err
	}
	out := &Keys{Store: root, Keys: []KeyUse{}}
	for _, k := range uses {
		out.Keys = append(out.Keys, *k)
	}
	slices.SortFunc(out.Keys, func(a, b KeyUse) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.KeyID, b.KeyID))
	})
	return out, nil
}
