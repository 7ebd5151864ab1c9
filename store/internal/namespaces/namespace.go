package namespaces

import (
	"sync/atomic"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/segment"
)

// Tag stands for a salt in what is stored: zero for none, else 16 bytes of
// SHA-256(store secret, salt's purge epoch, salt). Who does not hold the salt and
// the secret can neither make one nor test a guess against it.
type Tag [16]byte

// Namespace is an open namespace. Instance is what its blocks carry: a purge gives
// the namespace a new one, and everything under the old is unreachable at once.
type Namespace struct {
	Info     skep.NamespaceInfo
	Instance uint32
	Tenant   uint16
	Geometry layout.Geometry // zero for opaque shapes of any size
	Count    *observe.Spaces // shared by what it is renewed as
	Stored   *atomic.Int64   // payload of its blocks, in bytes, which goes with a purge
}

// PartSize is the size part must have, or -1 when any will do.
func (n *Namespace) PartSize(part string) int64 {
	s := n.Info.Shape
	if part != skep.PartKV {
		return -1
	}
	if s.Kind == skep.Opaque && s.Bytes == 0 {
		return -1
	}
	return n.Geometry.PartBytes()
}

// SaltTag names a purged salt.
type SaltTag struct {
	Instance uint32
	Tag      Tag
}

// Entry is what the devices' logs say of a namespace.
func (ns *Namespace) Entry(seq uint64) *segment.Namespace {
	return &segment.Namespace{Seq: seq, Instance: ns.Instance, Info: ns.Info}
}
