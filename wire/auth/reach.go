package auth

import (
	"context"

	"github.com/skepkv/skep"
)

// AnyTenant as a credential's tenant reaches the blocks of every tenant: for operators
// and for the nodes of a cluster.
const AnyTenant = "*"

// Reaches says whether the identity's blocks are tenant's.
func (i Identity) Reaches(tenant string) bool {
	return i.entry != nil && (i.Tenant == tenant || i.Tenant == AnyTenant)
}

// Namespaces lists the namespaces the identity reaches.
func (i Identity) Namespaces(ctx context.Context, st skep.Namespacer) ([]skep.NamespaceInfo, error) {
	switch {
	case i.entry == nil:
		return nil, nil
	case i.Tenant == AnyTenant:
		return st.Namespaces(ctx)
	}
	return st.NamespacesOf(ctx, i.Tenant)
}

// Namespace gives the namespace of that number if the identity reaches it. One of another tenant and one that is not
// there are the same to it: NotFound.
func (i Identity) Namespace(ctx context.Context, op string, st skep.Namespacer, id skep.NamespaceID) (skep.NamespaceInfo, error) {
	n, err := st.FindNamespace(ctx, id)
	if err == nil && i.Reaches(n.Tenant) {
		return n, nil
	}
	if err == nil || skep.KindOf(err) == skep.NotFound {
		err = &skep.Error{Op: op, Kind: skep.NotFound, Field: "namespace", Value: id}
	}
	return skep.NamespaceInfo{}, err
}
