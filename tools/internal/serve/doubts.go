package serve

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/skepkv/skep/wire/auth"
)

// Doubts lists what settings may say and hardly mean. capacity is the store's, in bytes; 0: as is set. now is what
// credentials end by.
func (c *Config) Doubts(capacity int64, now time.Time) (out []string) {
	if capacity == 0 {
		capacity = int64(c.Store.CapacityBytes)
	}
	sum := int64(0)
	for _, n := range c.shares() {
		sum += min(n, math.MaxInt64-sum)
	}
	if capacity > 0 && sum > capacity {
		out = append(out, fmt.Sprintf("the tenants' shares are %v together, and the store's capacity is %v: "+
			"not every tenant can have its share", Size(sum), Size(capacity)))
	}
	known, everybody := map[string]bool{}, false
	for _, cc := range c.Credentials {
		known[cc.Tenant], everybody = true, everybody || cc.Tenant == auth.AnyTenant
		switch left := cc.Expires.Sub(now); {
		case cc.Expires.IsZero():
		case left <= 0:
			out = append(out, fmt.Sprintf("credential %q ran out at %s: who shows it is denied",
				cc.Name, cc.Expires.UTC().Format(time.RFC3339)))
		case left < soon:
			out = append(out, fmt.Sprintf("credential %q runs out soon, at %s", cc.Name, cc.Expires.UTC().Format(time.RFC3339)))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Tenants)) {
		if len(known) > 0 && !everybody && !known[name] {
			out = append(out, fmt.Sprintf("tenants has %q, which no credential is of: its limits are nobody's", name))
		}
	}
	return out
}

// tellDoubts says in the log what c hardly means.
func (s *server) tellDoubts(c *Config, capacity int64) {
	for _, d := range c.Doubts(capacity, s.dir.Now()) {
		s.log.Warn(d)
	}
}

// unique refuses credentials that are known by the same as another: the first would be found for both.
func unique(creds []auth.Credential) (wrong []error) {
	type shown struct {
		token, cert [32]byte
		name        string
	}
	whose := map[shown]string{}
	for _, c := range creds {
		is := shown{c.TokenSHA256, c.CertSHA256, c.CertName}
		if other, ok := whose[is]; ok {
			what := "certificate"
			if is.token != [32]byte{} {
				what = "token"
			}
			wrong = append(wrong, problem(fmt.Sprintf("credential %q, %s", c.Name, what),
				fmt.Sprintf("that of credential %q", other), "one that no other credential has"))
			continue
		}
		whose[is] = c.Name
	}
	return wrong
}
