package clustermap

import (
	"slices"

	"github.com/skepkv/skep"
)

// What a map says of a tenant's encryption it says by namespaces of these names, which no server opens: a node of a
// version that knows nothing of it agrees on them as on any namespace, and keeps them, which it would not do with a
// field or a verb that it does not know.
const (
	beginsName = "\x00encryption begins"
	sealedName = "\x00encrypted"
)

// EveryTenant stands for all tenants, where some node has a key for those that have none of their own.
const EveryTenant = "*"

// Sealing is what the nodes agree on of a tenant's encryption.
type Sealing uint8

// The states of a tenant, in their order.
const (
	Plain  Sealing = iota // no node encrypts its blocks
	Begins                // a node is to: one that has no key for it takes none of its blocks from here on
	Sealed                // every node has heard so: those that have a key take its blocks
)

// Sealings are the tenants that are not Plain.
func (m *Map) Sealings() map[string]Sealing {
	var out map[string]Sealing
	for i := range m.Namespaces {
		n, is := &m.Namespaces[i], Plain
		switch n.Name {
		case beginsName:
			is = Begins
		case sealedName:
			is = Sealed
		default:
			continue
		}
		if out == nil {
			out = map[string]Sealing{}
		}
		out[n.Tenant] = max(out[n.Tenant], is)
	}
	return out
}

// Seal is the command that has a tenant be in a state, Begins or Sealed.
func Seal(tenant string, to Sealing) *Command {
	name := beginsName
	if to == Sealed {
		name = sealedName
	}
	return &Command{Do: OpenNamespace, Spec: &skep.NamespaceSpec{Tenant: tenant, Name: name,
		Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}}}
}

// Unseal are the commands that have a tenant be Plain by this map; none where it is.
func (m *Map) Unseal(tenant string) (out []Command) {
	for _, name := range []string{sealedName, beginsName} { // in between it is as it was when it began
		if slices.ContainsFunc(m.Namespaces, func(n Namespace) bool { return n.Tenant == tenant && n.Name == name }) {
			out = append(out, Command{Do: DeleteNamespace, Tenant: tenant, Name: name})
		}
	}
	return out
}

// LacksKeys are those of these tenants, which are encrypted, for which a node has no key that has some for has:
// EveryTenant among them is one for all.
func LacksKeys(encrypted, has []string) (out []string) {
	if slices.Contains(has, EveryTenant) {
		return nil
	}
	for _, t := range encrypted {
		if !slices.Contains(has, t) {
			out = append(out, t)
		}
	}
	return out
}
