package store

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"sync"
	"sync/atomic"

	"github.com/dchest/siphash"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
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
	count    *spaceCount     // shared by what it is renewed as
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

// names is the table of namespaces, tenants and purges: the catalog's rows, in
// memory.
type names struct {
	mu struct {
		sync.RWMutex
		byID        map[skep.NamespaceID]*namespace
		byName      map[[2]string]*namespace // tenant, name
		byInstance  map[uint32]*namespace
		tenants     map[string]uint16
		tenantNames []string
		saltEpoch   map[instanceTag]uint64 // of purged salts, by their tag of epoch 0
		deadTags    map[instanceTag]bool
		next        catalog.StoreState // NextNamespace and NextInstance
	}
	secret [16]byte
	k0, k1 uint64
}

func newNames(secret [16]byte) *names {
	n := &names{secret: secret}
	n.k0 = binary.LittleEndian.Uint64(secret[:8])
	n.k1 = binary.LittleEndian.Uint64(secret[8:])
	n.mu.byID = map[skep.NamespaceID]*namespace{}
	n.mu.byName = map[[2]string]*namespace{}
	n.mu.byInstance = map[uint32]*namespace{}
	n.mu.tenants = map[string]uint16{}
	n.mu.saltEpoch = map[instanceTag]uint64{}
	n.mu.deadTags = map[instanceTag]bool{}
	return n
}

// fingerprint is SipHash-128 of (instance, tag, key) under the store's secret, so
// that no client can make two keys collide, in its own namespace or another's.
func (n *names) fingerprint(instance uint32, t tag, key skep.Key) index.Fingerprint {
	var b [4 + 16 + skep.KeySize]byte
	binary.LittleEndian.PutUint32(b[:4], instance)
	copy(b[4:20], t[:])
	copy(b[20:], key[:])
	lo, hi := siphash.Hash128(n.k0, n.k1, b[:])
	var fp index.Fingerprint
	binary.LittleEndian.PutUint64(fp[:8], lo)
	binary.LittleEndian.PutUint64(fp[8:], hi)
	return fp
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
	n.mu.RLock()
	epoch := n.mu.saltEpoch[instanceTag{ns.instance, t}]
	n.mu.RUnlock()
	if epoch == 0 {
		return t
	}
	return n.tagAt(ns.instance, salt, epoch)
}

// epochOf is the purge epoch of a salt, named by its first tag.
func (n *names) epochOf(first instanceTag) uint64 {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.mu.saltEpoch[first]
}

// resolve gives a scope's namespace and tag.
func (n *names) resolve(op string, s skep.Scope) (*namespace, tag, error) {
	n.mu.RLock()
	ns := n.mu.byID[s.Namespace]
	n.mu.RUnlock()
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
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.mu.byInstance[instance]
}

// dead says whether a record of (instance, tag) was purged.
func (n *names) dead(instance uint32, t tag) bool {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.mu.byInstance[instance] == nil || n.mu.deadTags[instanceTag{instance, t}]
}

// prepareLocked makes a namespace that could be entered now; nothing is changed. REQUIRES:
// n.mu, for reading.
func (n *names) prepareLocked(info skep.NamespaceInfo, instance uint32) (*namespace, error) {
	ns := &namespace{info: info, instance: instance, count: &spaceCount{}, stored: new(atomic.Int64)}
	if info.Shape.Kind != skep.Opaque || info.Shape.Bytes > 0 {
		g, err := layout.Of(info.Shape)
		if err != nil {
			return nil, err
		}
		ns.geometry = g
	}
	if _, ok := n.mu.tenants[info.Tenant]; !ok && len(n.mu.tenantNames) >= maxTenants {
		return nil, skep.Invalidf("open namespace", "tenants", len(n.mu.tenantNames), maxTenants)
	}
	return ns, nil
}

// addLocked enters a namespace. REQUIRES: n.mu.
func (n *names) addLocked(info skep.NamespaceInfo, instance uint32) (*namespace, error) {
	ns, err := n.prepareLocked(info, instance)
	if err != nil {
		return nil, err
	}
	ns.tenant = n.tenantLocked(info.Tenant)
	n.mu.byID[info.ID] = ns
	n.mu.byName[[2]string{info.Tenant, info.Name}] = ns
	n.mu.byInstance[instance] = ns
	return ns, nil
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
	s.naming.Lock()
	defer s.naming.Unlock()
	if info, err := s.names.known(spec); info.ID != 0 || err != nil {
		return info, err
	}
	n := s.names
	n.mu.RLock()
	next, have := n.mu.next, len(n.mu.byID)
	n.mu.RUnlock()
	if have >= maxNamespaces {
		return zero, skep.Invalidf(op, "namespaces", have, maxNamespaces)
	}
	next.NextNamespace++
	next.NextInstance++
	info := skep.NamespaceInfo{ID: skep.NamespaceID(next.NextNamespace), NamespaceSpec: spec, Created: s.options.Clock().UTC()}
	n.mu.RLock()
	_, err := n.prepareLocked(info, next.NextInstance) // a row that cannot be entered would keep the store from opening
	n.mu.RUnlock()
	if err != nil {
		return zero, err
	}
	row := &catalog.Namespace{NamespaceInfo: info, Instance: next.NextInstance}
	b := s.catalog.NewBatch()
	b.PutNamespace(row)
	var w segment.LogWriter
	if err := w.Namespace(&segment.Namespace{Seq: s.nextSeq(), Instance: row.Instance, Info: info}); err != nil {
		return zero, err
	}
	todo := s.intend(b, &w)
	if err := s.saveNames(b, next); err != nil {
		return zero, err
	}
	s.carryOut(ctx, todo) // before anybody can put a block of it
	n.mu.Lock()
	defer n.mu.Unlock()
	ns, err := n.addLocked(info, row.Instance)
	if err != nil {
		return zero, err
	}
	return ns.info, nil
}

// known gives the namespace of spec's name, whose other properties must agree; zero when
// there is none.
func (n *names) known(spec skep.NamespaceSpec) (skep.NamespaceInfo, error) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	ns := n.mu.byName[[2]string{spec.Tenant, spec.Name}]
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
	n := s.names
	n.mu.RLock()
	defer n.mu.RUnlock()
	out := make([]skep.NamespaceInfo, 0, len(n.mu.byID))
	for _, ns := range n.mu.byID {
		out = append(out, ns.info)
	}
	sortBy(out, func(a, b skep.NamespaceInfo) bool { return a.ID < b.ID })
	return out, nil
}
