package auth

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// However much one tenant, or two, take of what all use, there is some left for the next; what they give back is
// everybody's. A tenant that is the only one may have it all.
func TestNobodyTakesAll(t *testing.T) {
	t.Parallel()
	one := Credential{Name: "one", Tenant: "a", Rights: All, TokenSHA256: hash(t, tokenA)}
	d, err := New([]Credential{one, {Name: "two", Tenant: "b", Rights: All, TokenSHA256: hash(t, tokenB)}}, nil, nil)
	require.NoError(t, err)
	a, err := d.Identify(t.Context(), Presented{Token: tokenA})
	require.NoError(t, err)
	b, err := d.Identify(t.Context(), Presented{Token: tokenB})
	require.NoError(t, err)
	p := Pool{Limit: 1000}
	all := func(h *Held) (n int64) {
		for h.Take(1) {
			n++
		}
		return n
	}
	ha, hb := p.Of(a.Limits()), p.Of(b.Limits())
	assert.Same(t, ha, p.Of(a.Limits()))
	assert.EqualValues(t, 750, ha.Most())
	assert.False(t, ha.Take(751))
	assert.EqualValues(t, 750, all(ha))
	assert.EqualValues(t, 187, all(hb), "three quarters of what is left")
	assert.EqualValues(t, 937, p.Used())
	ha.Give(750)
	assert.EqualValues(t, 750-187, all(hb))
	hb.Give(750)
	assert.Zero(t, p.Used())

	require.NoError(t, d.Replace([]Credential{one}, nil))
	assert.EqualValues(t, 1000, ha.Most())
	assert.EqualValues(t, 1000, all(ha))
	assert.False(t, ha.Take(1))
}

// Who is let in by an open directory is the only tenant of its server, whatever it is called, and may have all of it.
func TestAnOpenDirectorysTenantIsAlone(t *testing.T) {
	t.Parallel()
	d, err := OpenAs("a", Read)
	require.NoError(t, err)
	anybody, err := d.Identify(t.Context(), Presented{})
	require.NoError(t, err)
	p := Pool{Limit: 1000}
	h := p.Of(anybody.Limits())
	assert.EqualValues(t, 1000, h.Most())
	assert.True(t, h.Take(1000))
}
