package lookup

import (
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/segment"
)

// lookAtOnce is how many blocks of all namespaces one call of ListKeys looks at in the index: some milliseconds.
const lookAtOnce = 1 << 20

// CheckList refuses a listing of less than a key.
func CheckList(op string, n int) error {
	if n < 1 {
		return skep.Invalidf(op, "keys", n, "at least 1")
	}
	return nil
}

// Keys is a stretch of a namespace's keys, and the place where the next begins; 0: there is none. A place is one in the
// index of this run: it is told in disguise, since it depends on what others store. One of another run begins anew.
func (l *Finder) Keys(space skep.NamespaceID, from uint64, n int) (keys []skep.Key, next uint64, err error) {
	_, next, err = l.listed("list keys", space, from, n, func(r *segment.Record) { keys = append(keys, r.Key) })
	return keys, next, err
}

// Blocks is Keys with what each block is. A block names the first of its group of so many; one of which that is not
// known is left out.
func (l *Finder) Blocks(space skep.NamespaceID, group int, from uint64, n int) (out []skep.StoredBlock, next uint64,
	err error,
) {
	ns, next, err := l.listed("list blocks", space, from, n, func(rec *segment.Record) { out = append(out, rec.Block()) })
	if err != nil {
		return nil, 0, err
	}
	known := map[index.Fingerprint]skep.Key{}
	for i := range out {
		b := &out[i]
		if up := b.Depth % group; up == 0 {
			b.First = b.Key
		} else if e, ok := l.Index.Above(l.Names.Fingerprint(ns.Instance, namespaces.Tag{}, *b.Parent), up-1); ok {
			if _, ok = known[e.FP]; !ok {
				if rec, err := l.Rows.RecordNow(l.Rows.Context, e.FP, e); err == nil {
					known[e.FP] = rec.Key
				}
			}
			b.First = known[e.FP]
		}
	}
	return slices.DeleteFunc(out, func(b skep.StoredBlock) bool { return b.First == skep.Key{} }), next, nil
}

// listed calls add with the records of blocks without a salt from a place on, and says where to go on. A record is
// lent for the call. REQUIRES: CheckList.
func (l *Finder) listed(op string, space skep.NamespaceID, from uint64, n int, add func(*segment.Record)) (
	ns *namespaces.Namespace, next uint64, err error) {
	ns, _, err = l.Names.Resolve(op, skep.Scope{Namespace: space})
	if err != nil {
		return nil, 0, err
	}
	found, end := l.Index.Walk(ns.Instance, ns.Tenant, l.place(from), n, lookAtOnce)
	plain := func(rec *segment.Record) {
		if rec.Instance == ns.Instance && namespaces.Tag(rec.SaltTag) == (namespaces.Tag{}) {
			add(rec)
		}
	}
	var locs []layout.Location
	var at []index.Fingerprint // of locs
	accepted := map[index.Fingerprint]bool{}
	for i := range found {
		if e := &found[i]; e.Accepted() {
			accepted[e.FP] = true
		} else {
			locs, at = append(locs, layout.Unpack(e.Location)), append(at, e.FP)
		}
	}
	seen := make([]bool, len(locs))
	if err := l.Rows.Records(locs, func(i int, rec *segment.Record) error {
		seen[i] = true
		plain(rec)
		return nil
	}); err != nil {
		return nil, 0, err
	}
	l.Puts.Records.Among(accepted, plain)
	for fp := range accepted { // committed since
		at, seen = append(at, fp), append(seen, false)
	}
	for i, fp := range at {
		if seen[i] {
			continue
		}
		if e, ok := l.Index.Resolve(fp); ok { // moved since
			if rec, err := l.Rows.RecordNow(l.Rows.Context, fp, e); err == nil {
				plain(&rec)
			}
		}
	}
	if end != 0 {
		next = (l.Epoch&0x7fff|0x8000)<<slotBits | uint64(l.Names.Shuffle(uint32(end), false))
	}
	return ns, next, nil
}

// A cursor is the run's epoch and, in disguise, a slot of the index.
const slotBits = 32

// place is where a cursor goes on; the beginning, when it is of another run.
func (l *Finder) place(cursor uint64) index.ID {
	if cursor>>slotBits != l.Epoch&0x7fff|0x8000 {
		return 1
	}
	return index.ID(max(l.Names.Shuffle(uint32(cursor), true), 1))
}
