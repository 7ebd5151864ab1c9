package crypt

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/segment"
)

// Keys are the encryption keys of one store's tenants. Its methods may be called at the same
// time.
type Keys struct {
	store segment.StoreID
	ring  atomic.Pointer[ring]
	used  sync.Map                 // by instance: *[]segment.KeyID, the keys that things of it are encrypted with
	found map[string]segment.KeyID // by Learn: of tenants without a key, one that their blocks are encrypted with
}

// ring has the keys of every tenant that has some, and under "" those of all others. It does not
// change.
type ring map[string]*tenantKeys

type tenantKeys struct {
	newest *Secret
	all    map[segment.KeyID]*Secret
}

// Check says whether NewKeys takes these keys. Error: Invalid.
func Check(keys map[string][]Key) error {
	_, err := newRing(segment.StoreID{}, keys)
	return err
}

// NewKeys takes each tenant's keys, the newest first; those under "" are of all tenants that have
// none of their own. Error: Invalid.
func NewKeys(store segment.StoreID, keys map[string][]Key) (*Keys, error) {
	r, err := newRing(store, keys)
	if err != nil {
		return nil, err
	}
	k := &Keys{store: store}
	k.ring.Store(&r)
	return k, nil
}

// Replace puts these keys in the place of those in use. Errors: Invalid for what NewKeys refuses,
// and for a tenant that had keys and has none: its blocks would be written as they are put. Denied
// for a tenant that had one of those its blocks are encrypted with, and has none of them. tenantOf is Learn's. missed are
// the uses of keys that were there and are not any more.
func (k *Keys) Replace(keys map[string][]Key, tenantOf func(instance uint32) (string, bool)) (missed []Use, err error) {
	r, err := newRing(k.store, keys)
	if err != nil {
		return nil, err
	}
	for {
		old := k.ring.Load()
		for tenant := range *old {
			if r[tenant] == nil {
				return nil, skep.Invalidf("encryption keys", "keys of tenant "+tenant, 0, "at least 1 while the store is open")
			}
		}
		if err := k.keeps(*old, r, tenantOf); err != nil {
			return nil, err
		}
		if k.ring.CompareAndSwap(old, &r) {
			return k.missed(*old, r, tenantOf), nil
		}
	}
}

// Newest is what a tenant's blocks are encrypted with from now on. Nil: they are not encrypted.
func (k *Keys) Newest(tenant string) *Secret {
	for _, t := range k.of(tenant) {
		if t != nil {
			return t.newest
		}
	}
	return nil
}

// Sealer is Newest for who writes. Error: Denied for a tenant that has no key, and blocks that are encrypted.
func (k *Keys) Sealer(op, tenant string) (*Secret, error) {
	s := k.Newest(tenant)
	if id, ok := k.found[tenant]; ok && s == nil {
		return nil, &skep.Error{Op: op, Kind: skep.Denied, Field: "encryption key of tenant " + tenant, Value: "not given",
			Limit: id.String() + ", which its blocks are encrypted with, or a new one; to stop encrypting, purge its namespaces while it has one"}
	}
	return s, nil
}

// Sealing is what the block of rec was encrypted with. Nil: it was not. Error: Denied when the
// tenant's keys do not have that key.
func (k *Keys) Sealing(tenant string, rec *segment.Record) (*Secret, error) {
	if rec.Sealed == nil {
		return nil, nil
	}
	for _, t := range k.of(tenant) {
		if t != nil && t.all[rec.Sealed.Key] != nil {
			return t.all[rec.Sealed.Key], nil
		}
	}
	return nil, &skep.Error{Op: "decrypt", Kind: skep.Denied, Field: "encryption key", Value: rec.Sealed.Key.String(),
		Limit: "configured for tenant " + tenant}
}

// of are a tenant's keys, in the order in which they count.
func (k *Keys) of(tenant string) [2]*tenantKeys { return (*k.ring.Load()).of(tenant) }

func (r ring) of(tenant string) [2]*tenantKeys { return [2]*tenantKeys{r[tenant], r[""]} }

func newRing(store segment.StoreID, keys map[string][]Key) (ring, error) {
	const op = "encryption keys"
	r := ring{}
	for tenant, list := range keys {
		if len(list) < 1 || len(list) > maxTenantKeys {
			return nil, skep.Invalidf(op, "keys of tenant "+tenant, len(list), fmt.Sprintf("1 to %d", maxTenantKeys))
		}
		t := &tenantKeys{all: map[segment.KeyID]*Secret{}}
		for _, k := range list {
			if k == (Key{}) {
				return nil, skep.Invalidf(op, "key of tenant "+tenant, "zero", "made by NewEncryptionKey")
			}
			s := &Secret{id: k.id(), key: k, store: store}
			if t.all[s.id] != nil {
				return nil, skep.Invalidf(op, "key of tenant "+tenant, k.ID()+" twice", "each once")
			}
			t.all[s.id] = s
			if t.newest == nil {
				t.newest = s
			}
		}
		r[tenant] = t
	}
	return r, nil
}
