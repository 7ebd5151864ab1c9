package store

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"github.com/skepkv/skep/store/internal/locks"
	"iter"
	"sync"
	"sync/atomic"

	"github.com/dchest/siphash"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/segment"
)

// tag stands for a salt in what is stored: zero for none, else 16 bytes of
// SHA-256(store secret, salt's purge epoch, salt). Who does not hold the salt and
// the secret can neither make one nor test a guess against it.
type tag [16]byte

// namespace is an open namespace. Instance is what its blocks carry: a purge gives
// the namespace a new one, and everything under the old is unreachable at once.
type namespace struct {
	info     skep.NamespaceInfo
	instance uint32
	tenant   uint16
	geometry layout.Geometry // zero for opaque shapes of any size
	count    *observe.Spaces // shared by what it is renewed as
	stored   *atomic.Int64   // payload of its blocks, in bytes, which goes with a purge
}

// partSize is the size part must have, or -1 when any will do.
func (n *namespace) partSize(part string) int64 {
	s := n.info.Shape
	if part != skep.PartKV {
		return -1
	}
	if s.Kind == skep.Opaque && s.Bytes == 0 {
		return -1
	}
	return n.geometry.PartBytes()
}

// instanceTag names a purged salt.
type instanceTag struct {
	instance uint32
	tag      tag
}

// names is the table of namespaces, tenants and purges: the catalog's rows, in memory.
// Lookups read it without a lock; who makes, purges or deletes namespaces (Store.naming)
// changes it entry by entry, after the catalog's commit.
type names struct {
	byID       published[skep.NamespaceID, *namespace]
	byName     published[[2]string, *namespace] // tenant, name
	byInstance published[uint32, *namespace]
	saltEpoch  published[instanceTag, uint64] // of purged salts, by their tag of epoch 0
	deadTags   published[instanceTag, bool]

	mu struct { // held for moments, never over a commit
		locks.RWMutex[locks.Names]
		tenants     map[string]uint16
		tenantNames []string
		of          map[string][]skep.NamespaceID // namespaces by tenant, in order
	}
	secret [16]byte
	k0, k1 uint64
}

func newNames(secret [16]byte) *names {
	n := &names{secret: secret}
	n.k0 = binary.LittleEndian.Uint64(secret[:8])
	n.k1 = binary.LittleEndian.Uint64(secret[8:])
	n.mu.tenants, n.mu.of = map[string]uint16{}, map[string][]skep.NamespaceID{}
	return n
}

// published is a map whose readers never wait for who changes it.
type published[K comparable, V any] struct {
	m sync.Map
	n atomic.Int64
}

// get is the zero V where there is none.
func (p *published[K, V]) get(k K) (v V) {
	if x, ok := p.m.Load(k); ok {
		v = x.(V)
	}
	return v
}

func (p *published[K, V]) set(k K, v V) {
	if _, there := p.m.Swap(k, v); !there {
		p.n.Add(1)
	}
}

func (p *published[K, V]) delete(k K) {
	if _, there := p.m.LoadAndDelete(k); there {
		p.n.Add(-1)
	}
}

// all goes over the entries as they are met: others may change them meanwhile.
func (p *published[K, V]) all() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		p.m.Range(func(k, v any) bool { return yield(k.(K), v.(V)) })
	}
}

func (p *published[K, V]) len() int { return int(p.n.Load()) }

// fingerprint is 96 bits of keyed, so that no client can make two keys collide, in its own
// namespace or another's.
func (n *names) fingerprint(instance uint32, t tag, key skep.Key) index.Fingerprint {
	h := n.keyed(instance, t, key)
	return index.Fingerprint(h[:])
}

// keyed is SipHash-128 of (instance, tag, key) under the store's secret.
func (n *names) keyed(instance uint32, t tag, key skep.Key) (h [16]byte) {
	var b [4 + 16 + skep.KeySize]byte
	binary.LittleEndian.PutUint32(b[:4], instance)
	copy(b[4:20], t[:])
	copy(b[20:], key[:])
	lo, hi := siphash.Hash128(n.k0, n.k1, b[:])
	binary.LittleEndian.PutUint64(h[:8], lo)
	binary.LittleEndian.PutUint64(h[8:], hi)
	return h
}

func (n *names) tagAt(instance uint32, salt skep.Salt, epoch uint64) tag {
	h := sha256.New()
	h.Write(n.secret[:])
	var b [12]byte
	binary.LittleEndian.PutUint32(b[:4], instance)
	binary.LittleEndian.PutUint64(b[4:], epoch)
	h.Write(b[:])
	h.Write([]byte(salt))
	return tag(h.Sum(nil)[:16])
}

// tagOf is the salt's tag now.
func (n *names) tagOf(ns *namespace, salt skep.Salt) tag {
	if salt == "" {
		return tag{}
	}
	t := n.tagAt(ns.instance, salt, 0)
	epoch := n.saltEpoch.get(instanceTag{ns.instance, t})
	if epoch == 0 {
		return t
	}
	return n.tagAt(ns.instance, salt, epoch)
}

// epochOf is the purge epoch of a salt, named by its first tag.
func (n *names) epochOf(first instanceTag) uint64 {
	return n.saltEpoch.get(first)
}

// resolve gives a scope's namespace and tag.
func (n *names) resolve(op string, s skep.Scope) (*namespace, tag, error) {
	ns := n.byID.get(s.Namespace)
	if ns == nil {
		return nil, tag{}, &skep.Error{Op: op, Kind: skep.NotFound, Field: "namespace", Value: s.Namespace}
	}
	if len(s.Salt) > skep.MaxSaltSize {
		return nil, tag{}, skep.Invalidf(op, "salt length in bytes", len(s.Salt), skep.MaxSaltSize)
	}
	return ns, n.tagOf(ns, s.Salt), nil
}

// of gives the namespace that owns instance, nil when it was purged.
func (n *names) of(instance uint32) *namespace {
	return n.byInstance.get(instance)
}

// dead says whether a record of (instance, tag) was purged.
func (n *names) dead(instance uint32, t tag) bool {
	return n.byInstance.get(instance) == nil || n.deadTags.get(instanceTag{instance, t})
}

// prepare makes a namespace that could be entered now; nothing is changed.
func (n *names) prepare(info skep.NamespaceInfo, instance uint32) (*namespace, error) {
	ns := &namespace{info: info, instance: instance, count: &observe.Spaces{}, stored: new(atomic.Int64)}
	if info.Shape.Kind != skep.Opaque || info.Shape.Bytes > 0 {
		g, err := layout.Of(info.Shape)
		if err != nil {
			return nil, err
		}
		ns.geometry = g
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	if _, ok := n.mu.tenants[info.Tenant]; !ok && len(n.mu.tenantNames) >= maxTenants {
		return nil, skep.Invalidf("open namespace", "tenants", len(n.mu.tenantNames), maxTenants)
	}
	return ns, nil
}

// add enters a namespace.
func (n *names) add(info skep.NamespaceInfo, instance uint32) (*namespace, error) {
	ns, err := n.prepare(info, instance)
	if err != nil {
		return nil, err
	}
	n.enter(ns)
	n.publish(ns)
	return ns, nil
}

// enter notes whose a new namespace is, and its instance: its entries in the logs count from now on.
func (n *names) enter(ns *namespace) {
	n.mu.Lock()
	ns.tenant = n.tenantLocked(ns.info.Tenant)
	n.enterLocked(ns)
	n.mu.Unlock()
	n.byInstance.set(ns.instance, ns)
}

// publish enters ns in place of what its number and name stood for. REQUIRES: its instance is entered, since who
// finds a namespace by its number finds it by its instance.
func (n *names) publish(ns *namespace) {
	n.byID.set(ns.info.ID, ns)
	n.byName.set([2]string{ns.info.Tenant, ns.info.Name}, ns)
}

// tenantLocked is a tenant's number in this run. REQUIRES: n.mu.
func (n *names) tenantLocked(name string) uint16 {
	t, ok := n.mu.tenants[name]
	if !ok {
		t = uint16(len(n.mu.tenantNames))
		n.mu.tenants[name] = t
		n.mu.tenantNames = append(n.mu.tenantNames, name)
	}
	return t
}

const (
	maxTenants    = 1<<16 - 1
	maxNamespaces = 1 << 20
)

// OpenNamespace implements skep.Namespacer.
func (s *Store) OpenNamespace(ctx context.Context, spec skep.NamespaceSpec) (skep.NamespaceInfo, error) {
	const op = "open namespace"
	var zero skep.NamespaceInfo
	if err := spec.Validate(); err != nil {
		return zero, err
	}
	if spec.Copies == 0 {
		spec.Copies = 1
	}
	if err := s.enter(ctx); err != nil {
		return zero, err
	}
	defer s.leave()
	if spec.Copies > s.usableDrives() {
		return zero, skep.Invalidf(op, "copies", spec.Copies, "at most the number of devices, "+itoa(s.usableDrives()))
	}
	if info, err := s.names.known(spec); info.ID != 0 || err != nil {
		return info, err
	}
	if s.options.ReadOnly {
		return zero, &skep.Error{Op: op, Kind: skep.ReadOnly}
	}
	if err := s.take(ctx, s.naming, op, "namespace being made"); err != nil {
		return zero, err
	}
	defer s.naming.give()
	if info, err := s.names.known(spec); info.ID != 0 || err != nil {
		return info, err
	}
	n := s.names
	next, have := s.root.Numbers(), n.byID.len()
	if have >= maxNamespaces {
		return zero, skep.Invalidf(op, "namespaces", have, maxNamespaces)
	}
	if have, most := n.has(spec.Tenant), s.options.TenantNamespaces; have >= most {
		return zero, &skep.Error{Op: op, Kind: skep.Quota, Field: "namespaces of the tenant", Value: have, Limit: "at most " + itoa(most)}
	}
	next.Namespace++
	next.Instance++
	info := skep.NamespaceInfo{ID: skep.NamespaceID(next.Namespace), NamespaceSpec: spec, Created: s.options.Wall().UTC()}
	// A row that cannot be entered would keep the store from opening.
	ns, err := n.prepare(info, next.Instance)
	if err != nil {
		return zero, err
	}
	row := &catalog.Namespace{NamespaceInfo: info, Instance: next.Instance}
	b := s.catalog.NewBatch()
	b.PutNamespace(row)
	var w segment.LogWriter
	if err := w.Namespace(&segment.Namespace{Seq: s.root.Next(), Instance: row.Instance, Info: info}); err != nil {
		return zero, err
	}
	todo := s.intend(b, &w)
	if err := s.saveNames(b, next); err != nil {
		return zero, err
	}
	n.enter(ns)
	s.carryOut(ctx, todo) // before anybody can put a block of it
	n.publish(ns)
	return ns.info, nil
}

// known gives the namespace of spec's name, whose other properties must agree; zero when
// there is none.
func (n *names) known(spec skep.NamespaceSpec) (skep.NamespaceInfo, error) {
	ns := n.byName.get([2]string{spec.Tenant, spec.Name})
	if ns == nil {
		return skep.NamespaceInfo{}, nil
	}
	if field, was, is := differs(ns.info.NamespaceSpec, spec); field != "" {
		return skep.NamespaceInfo{}, &skep.Error{Op: "open namespace", Kind: skep.Conflict, Field: field, Value: is, Limit: was}
	}
	return ns.info, nil
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

// Namespaces implements skep.Namespacer.
func (s *Store) Namespaces(ctx context.Context) ([]skep.NamespaceInfo, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	out := make([]skep.NamespaceInfo, 0, s.names.byID.len())
	for _, ns := range s.names.byID.all() {
		out = append(out, ns.info)
	}
	sortBy(out, func(a, b skep.NamespaceInfo) bool { return a.ID < b.ID })
	return out, nil
}

// stored is the payload of all namespaces, in bytes.
func (n *names) stored() (bytes int64) {
	for _, ns := range n.byID.all() {
		bytes += ns.stored.Load()
	}
	return bytes
}

// unstored notes that a block of so many bytes is gone. Those of a purged namespace went with it.
func (s *Store) unstored(instance uint32, bytes int64) {
	if ns := s.names.of(instance); ns != nil {
		ns.stored.Add(-bytes)
	}
}
