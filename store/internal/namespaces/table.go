package namespaces

import (
	"crypto/sha256"
	"encoding/binary"
	"iter"
	"slices"
	"sync/atomic"

	"github.com/dchest/siphash"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/locks"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/segment"
)

// Table is the table of namespaces, tenants and purges: the catalog's rows, in memory.
// Lookups read it without a lock; who makes, purges or deletes namespaces, one at a time,
// changes it entry by entry, after the catalog's commit.
type Table struct {
	byID       published[skep.NamespaceID, *Namespace]
	byName     published[[2]string, *Namespace] // tenant, name
	byInstance published[uint32, *Namespace]
	saltEpoch  published[SaltTag, uint64] // of purged salts, by their tag of epoch 0
	deadTags   published[SaltTag, bool]

	mu struct { // held for moments, never over a commit
		locks.RWMutex[locks.Names]
		tenants     map[string]uint16
		tenantNames []string
		of          map[string][]skep.NamespaceID // namespaces by tenant, in order
	}
	secret [16]byte
	k0, k1 uint64
}

// NewTable is an empty table, of a store with such a secret.
func NewTable(secret [16]byte) *Table {
	n := &Table{secret: secret}
	n.k0 = binary.LittleEndian.Uint64(secret[:8])
	n.k1 = binary.LittleEndian.Uint64(secret[8:])
	n.mu.tenants, n.mu.of = map[string]uint16{}, map[string][]skep.NamespaceID{}
	return n
}

// Fingerprint is 96 bits of keyed, so that no client can make two keys collide, in its own
// namespace or another's.
func (n *Table) Fingerprint(instance uint32, t Tag, key skep.Key) index.Fingerprint {
	h := n.keyed(instance, t, key)
	return index.Fingerprint(h[:])
}

// keyed is SipHash-128 of (instance, tag, key) under the store's secret.
func (n *Table) keyed(instance uint32, t Tag, key skep.Key) (h [16]byte) {
	var b [4 + 16 + skep.KeySize]byte
	binary.LittleEndian.PutUint32(b[:4], instance)
	copy(b[4:20], t[:])
	copy(b[20:], key[:])
	lo, hi := siphash.Hash128(n.k0, n.k1, b[:])
	binary.LittleEndian.PutUint64(h[:8], lo)
	binary.LittleEndian.PutUint64(h[8:], hi)
	return h
}

// TagAt is the tag of a salt in a purge epoch of its; 0 before it was purged.
func (n *Table) TagAt(instance uint32, salt skep.Salt, epoch uint64) Tag {
	h := sha256.New()
	h.Write(n.secret[:])
	var b [12]byte
	binary.LittleEndian.PutUint32(b[:4], instance)
	binary.LittleEndian.PutUint64(b[4:], epoch)
	h.Write(b[:])
	h.Write([]byte(salt))
	return Tag(h.Sum(nil)[:16])
}

// tagOf is the salt's tag now.
func (n *Table) tagOf(ns *Namespace, salt skep.Salt) Tag {
	if salt == "" {
		return Tag{}
	}
	t := n.TagAt(ns.Instance, salt, 0)
	epoch := n.saltEpoch.get(SaltTag{ns.Instance, t})
	if epoch == 0 {
		return t
	}
	return n.TagAt(ns.Instance, salt, epoch)
}

// EpochOf is the purge epoch of a salt, named by its first tag.
func (n *Table) EpochOf(first SaltTag) uint64 {
	return n.saltEpoch.get(first)
}

// Resolve gives a scope's namespace and tag.
func (n *Table) Resolve(op string, s skep.Scope) (*Namespace, Tag, error) {
	ns := n.byID.get(s.Namespace)
	if ns == nil {
		return nil, Tag{}, &skep.Error{Op: op, Kind: skep.NotFound, Field: "namespace", Value: s.Namespace}
	}
	if len(s.Salt) > skep.MaxSaltSize {
		return nil, Tag{}, skep.Invalidf(op, "salt length in bytes", len(s.Salt), skep.MaxSaltSize)
	}
	return ns, n.tagOf(ns, s.Salt), nil
}

// Of gives the namespace that owns instance, nil when it was purged.
func (n *Table) Of(instance uint32) *Namespace {
	return n.byInstance.get(instance)
}

// Dead says whether a record of (instance, tag) was purged.
func (n *Table) Dead(instance uint32, t Tag) bool {
	return n.byInstance.get(instance) == nil || n.deadTags.get(SaltTag{instance, t})
}

// Prepare makes a namespace that could be entered now; nothing is changed.
func (n *Table) Prepare(info skep.NamespaceInfo, instance uint32) (*Namespace, error) {
	ns := &Namespace{Info: info, Instance: instance, Count: &observe.Spaces{}, Stored: new(atomic.Int64)}
	if info.Shape.Kind != skep.Opaque || info.Shape.Bytes > 0 {
		g, err := layout.Of(info.Shape)
		if err != nil {
			return nil, err
		}
		ns.Geometry = g
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	if _, ok := n.mu.tenants[info.Tenant]; !ok && len(n.mu.tenantNames) >= MaxTenants {
		return nil, skep.Invalidf("open namespace", "tenants", len(n.mu.tenantNames), MaxTenants)
	}
	return ns, nil
}

// Add enters a namespace.
func (n *Table) Add(info skep.NamespaceInfo, instance uint32) (*Namespace, error) {
	ns, err := n.Prepare(info, instance)
	if err != nil {
		return nil, err
	}
	n.Enter(ns)
	n.Publish(ns)
	return ns, nil
}

// Enter notes whose a new namespace is, and its instance: its entries in the logs count from now on.
func (n *Table) Enter(ns *Namespace) {
	n.mu.Lock()
	ns.Tenant = n.tenantLocked(ns.Info.Tenant)
	n.enterLocked(ns)
	n.mu.Unlock()
	n.byInstance.set(ns.Instance, ns)
}

// Publish enters ns in place of what its number and name stood for. REQUIRES: its instance is entered, since who
// finds a namespace by its number finds it by its instance.
func (n *Table) Publish(ns *Namespace) {
	n.byID.set(ns.Info.ID, ns)
	n.byName.set([2]string{ns.Info.Tenant, ns.Info.Name}, ns)
}

// tenantLocked is a tenant's number in this run. REQUIRES: n.mu.
func (n *Table) tenantLocked(name string) uint16 {
	t, ok := n.mu.tenants[name]
	if !ok {
		t = uint16(len(n.mu.tenantNames))
		n.mu.tenants[name] = t
		n.mu.tenantNames = append(n.mu.tenantNames, name)
	}
	return t
}

// What the table has room for.
const (
	MaxTenants    = 1<<16 - 1
	MaxNamespaces = 1 << 20
)

// Known gives the namespace of spec's name, whose other properties must agree; zero when
// there is none.
func (n *Table) Known(spec skep.NamespaceSpec) (skep.NamespaceInfo, error) {
	ns := n.byName.get([2]string{spec.Tenant, spec.Name})
	if ns == nil {
		return skep.NamespaceInfo{}, nil
	}
	if field, was, is := differs(ns.Info.NamespaceSpec, spec); field != "" {
		return skep.NamespaceInfo{}, &skep.Error{Op: "open namespace", Kind: skep.Conflict, Field: field, Value: is, Limit: was}
	}
	return ns.Info, nil
}

// differs names the first property in which two specs of one name disagree.
func differs(was, is skep.NamespaceSpec) (field string, a, b any) {
	switch {
	case was.Model != is.Model:
		return "model", was.Model, is.Model
	case was.Shape != is.Shape:
		return "shape", was.Shape, is.Shape
	case was.Class != is.Class:
		return "class", was.Class, is.Class
	case was.Copies != is.Copies:
		return "copies", was.Copies, is.Copies
	case was.Chained != is.Chained:
		return "chained", was.Chained, is.Chained
	}
	return "", nil, nil
}

// All goes over the namespaces as they are met: others may change them meanwhile.
func (n *Table) All() iter.Seq[*Namespace] {
	return func(yield func(*Namespace) bool) {
		for _, ns := range n.byID.all() {
			if !yield(ns) {
				return
			}
		}
	}
}

// Len is how many namespaces there are.
func (n *Table) Len() int { return n.byID.len() }

// Get gives the namespace of a number, nil when there is none.
func (n *Table) Get(id skep.NamespaceID) *Namespace { return n.byID.get(id) }

// Named gives a tenant's namespace by its name, nil when there is none.
func (n *Table) Named(tenant, name string) *Namespace { return n.byName.get([2]string{tenant, name}) }

// Supersede has a purged namespace go on as what it is renewed as, which was entered.
func (n *Table) Supersede(was, is *Namespace) {
	n.Publish(is)
	n.byInstance.delete(was.Instance)
}

// PurgedSalts are the salts of namespaces that have a new tag, by their first, with the epoch of the new one.
func (n *Table) PurgedSalts() iter.Seq2[SaltTag, uint64] { return n.saltEpoch.all() }

// DeadSalts are tags that no block has any more that is found, with the epoch of those that are a salt's first; else
// 0.
func (n *Table) DeadSalts() iter.Seq2[SaltTag, uint64] {
	return func(yield func(SaltTag, uint64) bool) {
		for k := range n.deadTags.all() {
			if !yield(k, n.saltEpoch.get(k)) {
				return
			}
		}
	}
}

// KillTag has blocks under a tag found no more; where it is a salt's first, those that come go under the tag of an
// epoch. An epoch of 0 is none.
func (n *Table) KillTag(k SaltTag, epoch uint64) {
	n.deadTags.set(k, true)
	if epoch > 0 {
		n.saltEpoch.set(k, epoch)
	}
}

// ForgetTag drops a tag that was killed: nothing has it any more.
func (n *Table) ForgetTag(k SaltTag) { n.deadTags.delete(k) }

// TenantNumber is a tenant's number in this run.
func (n *Table) TenantNumber(name string) uint16 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.tenantLocked(name)
}

// Tenants are the names of tenants, by number.
func (n *Table) Tenants() []string {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return slices.Clone(n.mu.tenantNames)
}

// Hash is SipHash-64 of b under the store's secret.
func (n *Table) Hash(b []byte) uint64 { return siphash.Hash(n.k0, n.k1, b) }

// Shuffle is a permutation of numbers that only this store knows, and the way back: four rounds of a Feistel network.
func (n *Table) Shuffle(number uint32, back bool) uint32 {
	l, r := uint16(number>>16), uint16(number)
	round := func(i int, half uint16) uint16 {
		return uint16(n.Hash([]byte{'s', 'l', 'o', 't', byte(i), byte(half), byte(half >> 8)}))
	}
	for i := range 4 {
		if back {
			l, r = r^round(3-i, l), l
		} else {
			l, r = r, l^round(i, r)
		}
	}
	return uint32(l)<<16 | uint32(r)
}

// Stored is the payload of all namespaces, in bytes.
func (n *Table) Stored() (bytes int64) {
	for _, ns := range n.byID.all() {
		bytes += ns.Stored.Load()
	}
	return bytes
}

// Alone says that no two tenants have namespaces.
func (n *Table) Alone() bool {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return len(n.mu.of) < 2
}

// OfTenant are a tenant's namespaces, by number.
func (n *Table) OfTenant(tenant string) []*Namespace {
	n.mu.RLock()
	ids := slices.Clone(n.mu.of[tenant])
	n.mu.RUnlock()
	out := make([]*Namespace, 0, len(ids))
	for _, id := range ids {
		if ns := n.byID.get(id); ns != nil { // not deleted since
			out = append(out, ns)
		}
	}
	return out
}

// WithClusters is a namespace and those that hold its clustered contexts.
func (n *Table) WithClusters(ns *Namespace) []*Namespace {
	all := []*Namespace{ns}
	for _, o := range n.OfTenant(ns.Info.Tenant) {
		if ns.Info.Clusters(o.Info.NamespaceSpec) {
			all = append(all, o)
		}
	}
	return all
}

// CountOf is how many namespaces a tenant has.
func (n *Table) CountOf(tenant string) int {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return len(n.mu.of[tenant])
}

// enterLocked notes whose a namespace is. REQUIRES: n.mu.
func (n *Table) enterLocked(ns *Namespace) {
	list := n.mu.of[ns.Info.Tenant]
	if i, there := slices.BinarySearch(list, ns.Info.ID); !there {
		n.mu.of[ns.Info.Tenant] = slices.Insert(list, i, ns.Info.ID)
	}
}

// Remove takes a namespace out. Its number first: who finds its instance finds what it was.
func (n *Table) Remove(ns *Namespace) {
	n.byID.delete(ns.Info.ID)
	n.byName.delete([2]string{ns.Info.Tenant, ns.Info.Name})
	n.byInstance.delete(ns.Instance)
	n.mu.Lock()
	defer n.mu.Unlock()
	list := n.mu.of[ns.Info.Tenant]
	if i, there := slices.BinarySearch(list, ns.Info.ID); there {
		list = slices.Delete(list, i, i+1)
	}
	if n.mu.of[ns.Info.Tenant] = list; len(list) == 0 {
		delete(n.mu.of, ns.Info.Tenant)
	}
}

// ForgetSalts drops what is known of purged salts of instances that no namespace has.
func (n *Table) ForgetSalts() {
	for k := range n.deadTags.all() {
		if n.byInstance.get(k.Instance) == nil {
			n.deadTags.delete(k)
			n.saltEpoch.delete(k)
		}
	}
}

// WithContexts are the instances of a namespace and of those that hold its clustered
// contexts.
func (n *Table) WithContexts(ns *Namespace) []uint32 {
	var all []uint32
	for _, o := range n.WithClusters(ns) {
		all = append(all, o.Instance)
	}
	return all
}

// Unstored notes that a block of so many bytes is gone. Those of a purged namespace went with it.
func (n *Table) Unstored(instance uint32, bytes int64) {
	if ns := n.Of(instance); ns != nil {
		ns.Stored.Add(-bytes)
	}
}

// Disguise is a key as events show it under a salt.
func (n *Table) Disguise(instance uint32, t Tag, k skep.Key) (out skep.Key) {
	h := n.keyed(instance, t, k)
	copy(out[:], h[:])
	return out
}

// Needed says whether entries still say what holds: not that a namespace is, which is deleted, nor that an instance
// that is gone is encrypted.
func (n *Table) Needed(entries []byte) bool {
	for e := range segment.Entries(entries) {
		if v, err := segment.DecodeSealing(e.Body); e.Kind == segment.KindSealing && err == nil {
			if n.Of(v.Instance) != nil {
				return true
			}
			continue
		}
		if e.Kind != segment.KindNamespace {
			return true
		}
		if v, err := segment.DecodeNamespace(e.Body); err != nil || v.Deleted || n.Of(v.Instance) != nil {
			return true
		}
	}
	return false
}

// LeastDrives is on how many drives stands, where there are as many, what is nobody's block: names, purges and
// deletions. One drive may be lost.
const LeastDrives = 2

// Drives is on how many drives entries that are no blocks are to stand: as many as the blocks that they tell of, and
// LeastDrives at least. So they are lost with no fewer drives than those.
func (n *Table) Drives(entries []byte) int {
	most := LeastDrives
	of := func(instance uint32, err error) {
		if ns := n.Of(instance); ns != nil && err == nil {
			most = max(most, ns.Info.Copies)
		}
	}
	for e := range segment.Entries(entries) {
		switch e.Kind {
		case segment.KindNamespace: // that of one that is deleted too
			if v, err := segment.DecodeNamespace(e.Body); err == nil {
				most = max(most, v.Info.Copies)
			}
		case segment.KindTombstone:
			v, err := segment.DecodeTombstone(e.Body)
			of(v.Instance, err)
		case segment.KindPurge:
			v, err := segment.DecodePurge(e.Body)
			of(v.Instance, err)
		case segment.KindSealing:
			v, err := segment.DecodeSealing(e.Body)
			of(v.Instance, err)
		}
	}
	return most
}
