package store

import "github.com/skepkv/skep"

// SetTenantBytes replaces Options.TenantBytes while the store is open: a tenant that is not named has no
// share any more.
//
// Errors: Invalid for what Open would refuse; then nothing changes.
func (s *Store) SetTenantBytes(shares map[string]int64) error {
	if err := checkTenantBytes("set tenant bytes", shares); err != nil {
		return err
	}
	for name := range shares {
		s.names.TenantNumber(name)
	}
	for t, name := range s.names.Tenants() {
		if err := s.index.SetShare(uint16(t), shares[name]); err != nil {
			return err
		}
	}
	return nil
}

func checkTenantBytes(op string, shares map[string]int64) error {
	for name, n := range shares {
		if n < 0 {
			return &skep.Error{Op: op, Kind: skep.Invalid, Field: "tenant bytes", Value: n, Limit: "0 or more, for " + name}
		}
	}
	return nil
}
