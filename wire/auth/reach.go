package auth

// AnyTenant as a credential's tenant reaches the blocks of every tenant: for operators
// and for the nodes of a cluster.
const AnyTenant = "*"

// Reaches says whether the identity's blocks are tenant's.
func (i Identity) Reaches(tenant string) bool {
	return i.entry != nil && (i.Tenant == tenant || i.Tenant == AnyTenant)
}
