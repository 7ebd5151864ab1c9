package crypt

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/segment"
)

// Use is a key that things of a namespace's instance are encrypted with, or were.
type Use struct {
	Instance uint32
	Key      segment.KeyID
}

// Note notes uses that the catalog has.
func (k *Keys) Note(list ...Use) {
	for _, u := range list {
		for {
			was, _ := k.used.LoadOrStore(u.Instance, &[]segment.KeyID{})
			ids := was.(*[]segment.KeyID)
			if slices.Contains(*ids, u.Key) {
				break
			}
			more := append(slices.Clone(*ids), u.Key)
			if k.used.CompareAndSwap(u.Instance, was, &more) {
				break
			}
		}
	}
}

// Noted says whether a use is known.
func (k *Keys) Noted(u Use) bool { return slices.Contains(k.UsedBy(u.Instance), u.Key) }

// UsedBy are the keys that were noted of an instance. The caller does not change them.
func (k *Keys) UsedBy(instance uint32) []segment.KeyID {
	if ids, ok := k.used.Load(instance); ok {
		return *ids.(*[]segment.KeyID)
	}
	return nil
}

// Holds says whether a tenant has one of the keys that were noted of an instance of its.
func (k *Keys) Holds(tenant string, instance uint32) bool { return k.has(tenant, k.UsedBy(instance)) }

// uses are the keys that were noted, by instance.
func (k *Keys) uses(yield func(instance uint32, ids []segment.KeyID) bool) {
	k.used.Range(func(in, ids any) bool { return yield(in.(uint32), *ids.(*[]segment.KeyID)) })
}

// Forget forgets what was noted of an instance that is gone.
func (k *Keys) Forget(instance uint32) { k.used.Delete(instance) }

// Seen are the keys that an open meets in records of instances of which nothing is noted, or no key that is there.
type Seen map[uint32][]segment.KeyID

// Note notes the key that a block is encrypted with, by the block's record.
func (s *Seen) Note(instance uint32, record []byte) {
	var rec segment.Record
	if err := segment.DecodeRecord(record, &rec); err != nil || rec.Sealed == nil {
		return // a scrub says that it is damaged
	}
	if *s == nil {
		*s = Seen{}
	}
	if !slices.Contains((*s)[instance], rec.Sealed.Key) {
		(*s)[instance] = append((*s)[instance], rec.Sealed.Key)
	}
}

// Learn takes what an open saw, and gives the uses that are to be noted in the catalog: those that it did not have,
// and that of each tenant's newest key. From then on Sealer gives tenants without a key no leave to write as things
// are put. tenantOf is whose an instance is; false: it is gone. Error: Denied for a tenant that has none of the keys
// that its things are encrypted with, unless it is to go on without them. REQUIRES: nobody else has k yet.
func (k *Keys) Learn(seen []Seen, tenantOf func(instance uint32) (string, bool), without bool, log *slog.Logger) ([]Use, error) {
	all := maps.Collect(k.uses)
	var fresh []Use
	for _, s := range seen {
		for in, ids := range s {
			for _, id := range ids {
				if u := (Use{in, id}); !slices.Contains(all[in], id) {
					all[in], fresh = append(slices.Clone(all[in]), id), append(fresh, u)
				}
			}
		}
	}
	k.found = map[string]segment.KeyID{}
	told := map[string]bool{}
	for _, in := range slices.Sorted(maps.Keys(all)) {
		tenant, ok := tenantOf(in)
		if !ok || len(all[in]) == 0 {
			continue
		}
		id := all[in][len(all[in])-1]
		newest := k.Newest(tenant)
		if newest == nil {
			k.found[tenant] = id
		}
		_, err := k.Sealer("open store", tenant)
		if err == nil && !k.has(tenant, all[in]) {
			err = strange("open store", tenant, newest.id, all[in])
		}
		switch {
		case err != nil && !without:
			return nil, err
		case err != nil && !told[tenant]:
			told[tenant] = true
			log.Info("a tenant lacks the encryption key of its blocks: they are misses", "error", err)
		case err == nil && !slices.Contains(all[in], newest.id):
			fresh = append(fresh, Use{in, newest.id})
		}
	}
	k.Note(fresh...)
	return fresh, nil
}

// Renewed are the uses that are to be noted since keys were replaced: of the tenants' newest keys.
func (k *Keys) Renewed(tenantOf func(instance uint32) (string, bool)) (fresh []Use) {
	for in, ids := range k.uses {
		tenant, ok := tenantOf(in)
		if !ok || !k.has(tenant, ids) {
			continue
		}
		if newest := k.Newest(tenant); !slices.Contains(ids, newest.id) {
			fresh = append(fresh, Use{in, newest.id})
		}
	}
	return fresh
}

// keeps is Denied where what could be read with the keys of one ring cannot be with those of the next.
func (k *Keys) keeps(old, next ring, tenantOf func(instance uint32) (string, bool)) error {
	for in, ids := range k.uses {
		tenant, ok := tenantOf(in)
		if !ok || !old.has(tenant, ids) || next.has(tenant, ids) {
			continue
		}
		for _, t := range next.of(tenant) {
			if t != nil {
				return strange("encryption keys", tenant, t.newest.id, ids)
			}
		}
	}
	return nil
}

// missed are the uses of keys that one ring has and the next one has not.
func (k *Keys) missed(old, next ring, tenantOf func(instance uint32) (string, bool)) (uses []Use) {
	for in, ids := range k.uses {
		tenant, ok := tenantOf(in)
		if !ok {
			continue
		}
		for _, id := range ids {
			if one := []segment.KeyID{id}; old.has(tenant, one) && !next.has(tenant, one) {
				uses = append(uses, Use{in, id})
			}
		}
	}
	return uses
}

// has says whether a tenant has one of these keys.
func (k *Keys) has(tenant string, ids []segment.KeyID) bool { return (*k.ring.Load()).has(tenant, ids) }

func (r ring) has(tenant string, ids []segment.KeyID) bool {
	for _, t := range r.of(tenant) {
		if t != nil && slices.ContainsFunc(ids, func(id segment.KeyID) bool { return t.all[id] != nil }) {
			return true
		}
	}
	return false
}

// strange is the refusal of a key that nothing of a tenant is encrypted with.
func strange(op, tenant string, given segment.KeyID, used []segment.KeyID) error {
	names := fmt.Sprint(used[max(0, len(used)-maxTenantKeys):])
	return &skep.Error{Op: op, Kind: skep.Denied, Field: "encryption key of tenant " + tenant,
		Value: given.String() + ", which nothing of it is encrypted with", Limit: "one of " + names + ", or a new one above " +
			"that; skep inspect keys --dir D says which blocks need. Where it is lost, so are they: skep namespace delete " +
			"TENANT NAME"}
}
