package skep

import (
	"context"
	"fmt"
	"time"
	"unicode/utf8"
)

// NamespaceID is a namespace's number in one store. It is never reused. A purge
// empties a namespace; its number stays valid for new puts.
type NamespaceID uint32

// Class says what an acknowledgement means. The numbers are stored.
type Class uint8

const (
	// Cache blocks may be lost to a crash (a miss), never be wrong: a crash of the machine
	// loses what was put in the last second or so, a crash of the process (kill -9) the
	// last hundredth of a second.
	Cache Class = 0
	// Durable blocks survive a crash once committed, and the loss of Copies-1 devices.
	Durable Class = 1
)

func (c Class) String() string {
	switch c {
	case Cache:
		return "cache"
	case Durable:
		return "durable"
	}
	return fmt.Sprintf("class %d", uint8(c))
}

// Limits of names and copies.
const (
	MaxNameSize = 512 // bytes of a tenant, namespace or model name
	MaxCopies   = 4
)

// NamespaceSpec says whose blocks a namespace holds and what they look like.
type NamespaceSpec struct {
	Tenant  string `json:"tenant"`  // who pays: quota and leases are counted here
	Name    string `json:"name"`    // unique within the tenant
	Model   string `json:"model"`   // fingerprint: weights revision, element type, RoPE scaling
	Shape   Shape  `json:"shape"`   //
	Class   Class  `json:"class"`   // what an acknowledgement means
	Copies  int    `json:"copies"`  // 1 to MaxCopies, each on another device; 0 means 1
	Chained bool   `json:"chained"` // blocks have parents, first writer wins; else keys stand alone, last writer wins
}

// Validate returns an Invalid error naming the first field outside its limits.
func (n NamespaceSpec) Validate() error {
	const op = "namespace"
	for _, f := range []struct{ field, value string }{{"tenant", n.Tenant}, {"name", n.Name}, {"model", n.Model}} {
		if f.field != "model" && f.value == "" {
			return Invalidf(op, f.field, "empty", fmt.Sprintf("1 to %d bytes", MaxNameSize))
		}
		if len(f.value) > MaxNameSize {
			return Invalidf(op, f.field+" length in bytes", len(f.value), fmt.Sprintf("at most %d", MaxNameSize))
		}
		if !utf8.ValidString(f.value) {
			return Invalidf(op, f.field, fmt.Sprintf("%q", f.value), "valid UTF-8")
		}
	}
	if n.Class != Cache && n.Class != Durable {
		return Invalidf(op, "class", n.Class, "cache or durable")
	}
	if n.Copies < 0 || n.Copies > MaxCopies {
		return Invalidf(op, "copies", n.Copies, fmt.Sprintf("1 to %d", MaxCopies))
	}
	return n.Shape.Validate()
}

// NamespaceInfo is a namespace as it stands.
type NamespaceInfo struct {
	ID NamespaceID `json:"id"`
	NamespaceSpec
	Created time.Time `json:"created"`
}

// Scope says whose blocks a call speaks of.
type Scope struct {
	Namespace NamespaceID
	Salt      Salt
}

// Namespacer makes and lists namespaces.
type Namespacer interface {
	// OpenNamespace returns the namespace with spec's tenant and name, making it when
	// it is not there. One that exists with another model, shape, class, number of
	// copies or order is a Conflict and stays as it is.
	OpenNamespace(ctx context.Context, spec NamespaceSpec) (NamespaceInfo, error)
	// Namespaces lists all, by number.
	Namespaces(ctx context.Context) ([]NamespaceInfo, error)
}
