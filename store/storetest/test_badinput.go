package storetest

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// requireInvalid requires an Invalid error that says which field was what and what it
// may be.
func requireInvalid(t testing.TB, err error, msg ...any) {
	t.Helper()
	require.ErrorIs(t, err, skep.Invalid, msg...)
	var x *skep.Error
	require.True(t, errors.As(err, &x), "%v is a *skep.Error", err)
	require.NotEmpty(t, x.Field, "%v names the field", err)
	require.NotNil(t, x.Value, "%v names the value", err)
	require.NotNil(t, x.Limit, "%v names the limit", err)
}

// requireUnknown requires a NotFound error that says what was not found.
func requireUnknown(t testing.TB, err error, msg ...any) {
	t.Helper()
	require.ErrorIs(t, err, skep.NotFound, msg...)
	var x *skep.Error
	require.True(t, errors.As(err, &x), "%v is a *skep.Error", err)
	require.NotEmpty(t, x.Field, "%v names the field", err)
	require.NotNil(t, x.Value, "%v names the value", err)
}

// badCase is one bad call. Each starts from good arguments and spoils one of them.
type badCase struct {
	name string
	call func() error
}

// testBadInput: bad input gets a typed error that names the field, the value and the
// limit, and changes nothing.
func testBadInput(t *testing.T, open Open) {
	e := start(t, open, Config{})
	b := &bad{env: e, hnd: e.chain(e.space(hnd), 4).put(0, 3), nhd: e.chain(e.space(nhd), 4).put(0, 3), free: e.chain(e.space(free), 4).put(0, 3)}
	spec := specOf(free)
	spec.Chained = false
	b.unchained = e.chain(e.open(spec), 4).put(0, 3)
	was := standing(e.stats())
	b.many = make([]skep.Key, skep.MaxChainKeys+1)
	for group, cases := range map[string][]badCase{
		"OpenNamespace": b.namespaces(), "Lookup": b.lookups(), "Put": b.puts(), "Begin": b.begins(),
		"Restore": b.restores(), "Session": b.sessions(), "others": b.others(),
	} {
		for _, c := range cases {
			e.run(group+": "+c.name, func(e *env) { requireInvalid(e, c.call()) })
		}
	}
	for _, c := range b.unknown() {
		e.run("unknown namespace: "+c.name, func(e *env) { requireUnknown(e, c.call()) })
	}
	e.run("nothing changed", func(e *env) {
		require.Equal(e, was, standing(e.stats()))
		for _, c := range []*chain{b.hnd, b.nhd, b.free, b.unchained} {
			c.e = e
			require.Equal(e, 3, c.found())
			c.check(0, 3)
		}
	})
}

// standing is what of Stats only a call that was carried out may change.
func standing(s skep.Stats) map[string]any {
	return map[string]any{
		"blocks": s.Blocks, "bytes": s.BlockBytes, "lookups": s.Lookups, "keys": s.LookupKeys,
		"put": s.PutBlocks, "put bytes": s.PutBytes, "exists": s.PutExists, "differs": s.PutDiffers, "declined": sum(s.PutDeclined),
		"restored": s.RestoredBlocks, "misses": sum(s.RestoreMisses), "evicted": s.Evicted,
		"leases": s.Leases, "leased": s.LeasedBytes, "broken": s.BrokenPromises,
	}
}

// bad builds the cases: chains of four keys, three of them stored.
type bad struct {
	*env
	hnd, nhd, free, unchained *chain
	many                      []skep.Key
}

var longSalt = skep.Salt(strings.Repeat("s", skep.MaxSaltSize+1))

func (b *bad) namespaces() (out []badCase) {
	for name, spoil := range map[string]func(*skep.NamespaceSpec){
		"no tenant":               func(s *skep.NamespaceSpec) { s.Tenant = "" },
		"no name":                 func(s *skep.NamespaceSpec) { s.Name = "" },
		"a long tenant":           func(s *skep.NamespaceSpec) { s.Tenant = strings.Repeat("t", skep.MaxNameSize+1) },
		"a long model":            func(s *skep.NamespaceSpec) { s.Model = strings.Repeat("m", skep.MaxNameSize+1) },
		"a name not in UTF-8":     func(s *skep.NamespaceSpec) { s.Name = "\xff" },
		"an unknown class":        func(s *skep.NamespaceSpec) { s.Class = 9 },
		"too many copies":         func(s *skep.NamespaceSpec) { s.Copies = skep.MaxCopies + 1 },
		"negative copies":         func(s *skep.NamespaceSpec) { s.Copies = -1 },
		"no tokens":               func(s *skep.NamespaceSpec) { s.Shape.BlockTokens = 0 },
		"no layers":               func(s *skep.NamespaceSpec) { s.Shape.Layers = 0 },
		"negative heads":          func(s *skep.NamespaceSpec) { s.Shape.KVHeads = -1 },
		"an unknown element":      func(s *skep.NamespaceSpec) { s.Shape.Element = 77 },
		"an unknown kind":         func(s *skep.NamespaceSpec) { s.Shape.Kind = 77 },
		"an unknown order":        func(s *skep.NamespaceSpec) { s.Shape.Order = 7 },
		"a block of half a byte":  func(s *skep.NamespaceSpec) { s.Shape.Element, s.Shape.HeadDim = skep.FP4, 3 },
		"a block that is too big": func(s *skep.NamespaceSpec) { s.Shape.Layers, s.Shape.BlockTokens = skep.MaxLayers, skep.MaxBlockTokens },
	} {
		out = append(out, badCase{name, func() error {
			s := specOf(hnd)
			spoil(&s)
			_, err := b.st.OpenNamespace(b.ctx, s)
			return err
		}})
	}
	return out
}

func (b *bad) lookups() (out []badCase) {
	for name, spoil := range map[string]func(*skep.LookupRequest){
		"too many keys":    func(r *skep.LookupRequest) { r.Keys = b.many },
		"a negative lease": func(r *skep.LookupRequest) { r.Lease = -2 },
		"a huge lease":     func(r *skep.LookupRequest) { r.Lease = skep.MaxLease + 1 },
		"a long salt":      func(r *skep.LookupRequest) { r.Salt = longSalt },
	} {
		out = append(out, badCase{name, func() error {
			r := &skep.LookupRequest{Scope: b.hnd.scope, Keys: b.hnd.keys}
			spoil(r)
			_, err := b.st.Lookup(b.ctx, r)
			return err
		}})
	}
	for name, spoil := range map[string]func(*skep.RunsRequest){
		"runs without a key":        func(r *skep.RunsRequest) { r.Runs = append(r.Runs, nil) },
		"too many keys of all runs": func(r *skep.RunsRequest) { r.Runs = [][]skep.Key{b.many[2:], b.many[:2]} },
		"too many runs":             func(r *skep.RunsRequest) { r.Runs = make([][]skep.Key, len(b.many)) },
		"runs, a negative lease":    func(r *skep.RunsRequest) { r.Lease = -2 },
		"runs, a huge lease":        func(r *skep.RunsRequest) { r.Lease = skep.MaxLease + 1 },
		"runs, a long salt":         func(r *skep.RunsRequest) { r.Salt = longSalt },
		"runs, a negative cost":     func(r *skep.RunsRequest) { r.Cost = &skep.RecomputeCost{PerToken: -1} },
	} {
		out = append(out, badCase{name, func() error {
			r := &skep.RunsRequest{Scope: b.hnd.scope, Runs: [][]skep.Key{b.hnd.keys}}
			spoil(r)
			_, err := b.st.LookupRuns(b.ctx, r)
			return err
		}})
	}
	return out
}

func (b *bad) puts() (out []badCase) {
	add := func(name string, c *chain, from, to int, spoil func(*skep.PutRequest)) {
		out = append(out, badCase{name, func() error {
			r := c.request(from, to)
			spoil(r)
			_, err := b.st.Put(b.ctx, r)
			return err
		}})
	}
	add("a long salt", b.hnd, 3, 4, func(r *skep.PutRequest) { r.Salt = longSalt })
	add("too many blocks", b.hnd, 3, 4, func(r *skep.PutRequest) { r.Blocks = make([]skep.Block, skep.MaxPutBlocks+1) })
	add("an unknown ack", b.hnd, 3, 4, func(r *skep.PutRequest) { r.Ack = 9 })
	add("a parent at depth 0", b.hnd, 3, 4, func(r *skep.PutRequest) { r.Depth = 0 })
	add("no parent at depth 3", b.hnd, 3, 4, func(r *skep.PutRequest) { r.Parent = nil })
	add("a negative depth", b.hnd, 3, 4, func(r *skep.PutRequest) { r.Depth = -1 })
	add("too deep", b.hnd, 3, 4, func(r *skep.PutRequest) { r.Depth = skep.MaxDepth + 1 })
	add("a parent where blocks have none", b.unchained, 3, 4, func(r *skep.PutRequest) { r.Parent = &b.unchained.keys[0] })
	add("a depth where blocks have none", b.unchained, 3, 4, func(r *skep.PutRequest) { r.Depth = 1 })
	add("a parent where each block begins a chain", b.hnd, 3, 4, func(r *skep.PutRequest) { r.Each = true })
	add("a name that is too long", b.hnd, 3, 4, func(r *skep.PutRequest) { r.Blocks[0].Name = make([]byte, skep.MaxBlockNameSize+1) })
	add("more valid tokens than a block has", b.hnd, 3, 4, func(r *skep.PutRequest) { r.Blocks[0].ValidTokens = hnd.BlockTokens + 1 })
	add("negative valid tokens", b.hnd, 3, 4, func(r *skep.PutRequest) { r.Blocks[0].ValidTokens = -1 })
	add("a block that replaces itself", b.hnd, 3, 4, func(r *skep.PutRequest) { r.Blocks[0].Replaces = &r.Blocks[0].Key })
	add("no parts", b.hnd, 3, 4, func(r *skep.PutRequest) { r.Blocks[0].Parts = nil })
	add("too many parts", b.hnd, 3, 4, func(r *skep.PutRequest) {
		for i := range skep.MaxParts {
			r.Blocks[0].Parts = append(r.Blocks[0].Parts, skep.Part{Name: strings.Repeat("p", i+1)})
		}
	})
	more := func(name string) func(*skep.PutRequest) {
		return func(r *skep.PutRequest) { r.Blocks[0].Parts = append(r.Blocks[0].Parts, skep.Part{Name: name}) }
	}
	add("a part named twice", b.hnd, 3, 4, more(skep.PartKV))
	add("a part with a long name", b.hnd, 3, 4, more(strings.Repeat("p", skep.MaxPartNameSize+1)))
	for name, p := range map[string][]byte{"no bytes": nil, "a byte less": make([]byte, sizeOf(hnd, 0)-1), "a byte more": make([]byte, sizeOf(hnd, 0)+1)} {
		add(name+" than the shape says", b.hnd, 3, 4, func(r *skep.PutRequest) { r.Blocks[0].Parts[0].Bytes = p })
	}
	add("a good block before a bad one", b.hnd, 3, 4, func(r *skep.PutRequest) {
		next := r.Blocks[0]
		next.Key, next.Parts = skep.KeyOf([]byte("next")), []skep.Part{{Bytes: []byte("short")}}
		r.Blocks = append(r.Blocks, next)
	})
	return out
}

func (b *bad) begins() (out []badCase) {
	kv := int64(sizeOf(hnd, 0))
	part := func(size int64) func(*skep.BeginRequest) {
		return func(r *skep.BeginRequest) { r.Manifest = append(r.Manifest, skep.PartSpec{Name: "x", Size: size}) }
	}
	for name, spoil := range map[string]func(*skep.BeginRequest){
		"a long salt":                          func(r *skep.BeginRequest) { r.Salt = longSalt },
		"a block that replaces itself":         func(r *skep.BeginRequest) { r.Replaces = &r.Key },
		"a negative timeout":                   func(r *skep.BeginRequest) { r.Timeout = -1 },
		"too long a timeout":                   func(r *skep.BeginRequest) { r.Timeout = skep.MaxPutTimeout + 1 },
		"a parent at depth 0":                  func(r *skep.BeginRequest) { r.Depth = 0 },
		"no parent at depth 3":                 func(r *skep.BeginRequest) { r.Parent = nil },
		"too deep":                             func(r *skep.BeginRequest) { r.Depth = skep.MaxDepth + 1 },
		"a name that is too long":              func(r *skep.BeginRequest) { r.Name = make([]byte, skep.MaxBlockNameSize+1) },
		"more valid tokens than a block has":   func(r *skep.BeginRequest) { r.ValidTokens = hnd.BlockTokens + 1 },
		"no parts":                             func(r *skep.BeginRequest) { r.Manifest = nil },
		"a part without a name":                func(r *skep.BeginRequest) { r.Manifest = append(r.Manifest, skep.PartSpec{Size: 1}) },
		"a part of negative size":              part(-1),
		"a part that is too large":             part(skep.MaxPartBytes + 1),
		"parts that are too large together":    part(skep.MaxPartBytes),
		"a part named twice":                   func(r *skep.BeginRequest) { r.Manifest = append(r.Manifest, r.Manifest[0]) },
		"another size than the shape's":        func(r *skep.BeginRequest) { r.Manifest[0].Size = kv + 1 },
		"another size than a partial tail has": func(r *skep.BeginRequest) { r.ValidTokens, r.Manifest[0].Size = 1, kv/int64(hnd.BlockTokens) },
	} {
		out = append(out, badCase{name, func() error {
			r := b.hnd.beginRequest(3)
			spoil(r)
			w, err := b.st.Begin(b.ctx, r)
			if err == nil {
				_ = w.Abort(b.ctx)
			}
			return err
		}})
	}
	out = append(out, badCase{"an unknown ack of a commit", func() error {
		w := b.hnd.begin(3)
		defer w.Abort(b.ctx)
		if err := w.Write(b.ctx, skep.PartKV, 0, b.hnd.payload(3)); err != nil {
			return err
		}
		_, err := w.Commit(b.ctx, 9)
		return err
	}})
	return out
}

func (b *bad) restores() (out []badCase) {
	add := func(name string, c *chain, spoil func(*skep.Chain)) {
		out = append(out, badCase{name, func() error {
			x := skep.Chain{Scope: c.scope, Keys: c.keys[:3]}
			spoil(&x)
			// A good chain comes first: nothing of a bad request may start.
			good := skep.Chain{Scope: b.hnd.scope, Keys: b.hnd.keys[:3]}
			return b.restoreError(good, x)
		}})
	}
	size, page := sizeOf(hnd, 0), pageBytes(hnd)
	out = append(out, badCase{"no chains", func() error { return b.restoreError() }},
		badCase{"too many keys of all chains", func() error {
			most, one := b.many[1:], b.many[:1]
			return b.restoreError(skep.Chain{Scope: b.hnd.scope, Keys: most}, skep.Chain{Scope: b.hnd.scope, Keys: one})
		}})
	out = append(out, badCase{"too many chains", func() error { return b.restoreError(make([]skep.Chain, skep.MaxChains+1)...) }})
	add("a long salt", b.hnd, func(c *skep.Chain) { c.Salt = longSalt })
	add("too many keys", b.hnd, func(c *skep.Chain) { c.Keys = b.many })
	add("a part with a long name", b.hnd, func(c *skep.Chain) { c.Part = strings.Repeat("p", skep.MaxPartNameSize+1) })
	add("an unknown direction", b.hnd, func(c *skep.Chain) { c.Direction = 9 })
	for name, r := range map[string]skep.Subset{
		"negative": skep.Only(-1, 1), "empty": skep.Only(1, 1), "empty at the beginning": skep.Only(0, 0), "backward": skep.Only(2, 1), "too far": skep.Only(0, 99),
	} {
		add(name+" blocks", b.hnd, func(c *skep.Chain) { c.Blocks = r })
		add(name+" layers", b.hnd, func(c *skep.Chain) { c.Layers = r })
		add(name+" heads", b.hnd, func(c *skep.Chain) { c.Heads = r })
	}
	add("heads in NHD order", b.nhd, func(c *skep.Chain) { c.Heads = skep.Only(0, 1) })
	add("heads of opaque blocks", b.free, func(c *skep.Chain) { c.Heads = skep.Only(0, 1) })
	add("layers of opaque blocks", b.free, func(c *skep.Chain) { c.Layers = skep.Only(0, 1) })
	add("opaque blocks by layer", b.free, func(c *skep.Chain) { c.Direction = skep.LayersUp })
	add("another part by layer", b.hnd, func(c *skep.Chain) { c.Part, c.Direction = "state", skep.LayersDown })
	add("memory and pages", b.hnd, func(c *skep.Chain) {
		c.Dest = skep.Destination{Memory: make([]byte, 3*4096), Paged: pagesFor(hnd, 3, 3)}
	})
	add("memory that is too small", b.hnd, func(c *skep.Chain) { c.Dest = skep.Destination{Memory: make([]byte, 2*4096+size-1)} })
	add("memory that is too small for the stride", b.hnd, func(c *skep.Chain) {
		c.Dest = skep.Destination{Memory: make([]byte, 3*4096), Stride: 1 << 40}
	})
	add("a negative stride", b.hnd, func(c *skep.Chain) { c.Dest = skep.Destination{Memory: make([]byte, 3*4096), Stride: -1} })
	add("a stride shorter than a block", b.hnd, func(c *skep.Chain) {
		c.Dest = skep.Destination{Memory: make([]byte, 3*4096), Stride: int64(size - 1)}
	})
	add("no stride for blocks of any size", b.free, func(c *skep.Chain) { c.Dest = skep.Destination{Memory: make([]byte, 3*4096)} })
	paged := func(name string, spoil func(p *skep.Paged)) {
		add(name, b.hnd, func(c *skep.Chain) {
			p := pagesFor(hnd, 3, 3)
			spoil(p)
			c.Dest.Paged = p
		})
	}
	paged("a page past the end", func(p *skep.Paged) { p.Pages[2] = 3 })
	paged("a page far past the end", func(p *skep.Paged) { p.Pages[2] = 1 << 60 })
	paged("a negative page", func(p *skep.Paged) { p.Pages[0] = -1 })
	paged("a page too few", func(p *skep.Paged) { p.Pages = p.Pages[:2] })
	paged("a page too many", func(p *skep.Paged) { p.Pages = append(p.Pages, 0) })
	paged("a layer too few", func(p *skep.Paged) { p.Planes = p.Planes[:2] })
	paged("a plane that is too small", func(p *skep.Paged) { p.Planes[2][1] = p.Planes[2][1][1:] })
	paged("a missing plane", func(p *skep.Paged) { p.Planes[1][0] = nil })
	paged("no page stride", func(p *skep.Paged) { p.PageStride = 0 })
	paged("a page stride shorter than a page", func(p *skep.Paged) { p.PageStride = int64(page - 1) })
	paged("a negative page stride", func(p *skep.Paged) { p.PageStride = -1 })
	paged("an unknown page order", func(p *skep.Paged) { p.Order = 9 })
	add("pages for opaque blocks", b.free, func(c *skep.Chain) { c.Dest.Paged = pagesFor(hnd, 3, 3) })
	return out
}

// pagesFor is a good destination of n pages for blocks 0 to blocks-1.
func pagesFor(s skep.Shape, n, blocks int) *skep.Paged {
	p := &skep.Paged{Order: s.Order, PageStride: int64(pageBytes(s)), Planes: make([][2][]byte, s.Layers)}
	for l := range p.Planes {
		for k := range planesOf(s) {
			p.Planes[l][k] = make([]byte, n*pageBytes(s))
		}
	}
	for i := range blocks {
		p.Pages = append(p.Pages, i)
	}
	return p
}

func (b *bad) restoreError(chains ...skep.Chain) error {
	s, err := b.st.Restore(b.ctx, &skep.RestoreRequest{Chains: chains})
	if err == nil {
		_ = s.Close(b.ctx)
	}
	return err
}

// sessions are bad calls on a good session, which is closed before any chunk is read.
func (b *bad) sessions() (out []badCase) {
	for name, call := range map[string]func(s skep.Session) error{
		"claim of a chain that is not there":     func(s skep.Session) error { _, err := s.Claim(b.ctx, 1, skep.All, skep.Idle); return err },
		"claim of a negative chain":              func(s skep.Session) error { _, err := s.Claim(b.ctx, -1, skep.All, skep.Idle); return err },
		"claim of negative tokens":               func(s skep.Session) error { _, err := s.Claim(b.ctx, 0, skep.Only(-1, 4), skep.Idle); return err },
		"claim of no tokens":                     func(s skep.Session) error { _, err := s.Claim(b.ctx, 0, skep.Only(4, 4), skep.Idle); return err },
		"claim of no tokens at the beginning":    func(s skep.Session) error { _, err := s.Claim(b.ctx, 0, skep.Only(0, 0), skep.Idle); return err },
		"claim past the end":                     func(s skep.Session) error { _, err := s.Claim(b.ctx, 0, skep.Only(0, 13), skep.Idle); return err },
		"reprioritise a chain that is not there": func(s skep.Session) error { return s.Reprioritise(b.ctx, 1, 0, time.Time{}) },
		"reprioritise all chains":                func(s skep.Session) error { return s.Reprioritise(b.ctx, -1, 0, time.Time{}) },
		"stop a chain that is not there":         func(s skep.Session) error { return s.Stop(b.ctx, 1) },
		"stop a chain that cannot be":            func(s skep.Session) error { return s.Stop(b.ctx, -2) },
		"next with nothing to fill":              func(s skep.Session) error { _, err := s.Next(b.ctx, nil); return err },
	} {
		out = append(out, badCase{name, func() error {
			// Unknown keys, so that what a Store counts as restored does not change.
			s, err := b.st.Restore(b.ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: b.hnd.scope, Keys: b.hnd.keys[:0:0]}}})
			if err != nil {
				return err
			}
			defer s.Close(b.ctx)
			return call(s)
		}})
	}
	return out
}

func (b *bad) others() []badCase {
	hint := func(h skep.Hint) func() error {
		return func() error { _, err := b.st.Hint(b.ctx, b.hnd.scope, b.hnd.keys, h); return err }
	}
	purge := func(p skep.Purge) func() error { return func() error { return b.st.Purge(b.ctx, p) } }
	salted := skep.Scope{Namespace: b.hnd.n.ID, Salt: longSalt}
	id := b.hnd.n.ID
	return []badCase{
		{"want too many keys", func() error {
			_, err := b.st.Want(b.ctx, &skep.WantRequest{Scope: b.hnd.scope, Keys: b.many})
			return err
		}},
		{"want with a long salt", func() error { _, err := b.st.Want(b.ctx, &skep.WantRequest{Scope: salted}); return err }},
		{"want negative bytes", func() error {
			_, err := b.st.Want(b.ctx, &skep.WantRequest{Scope: b.hnd.scope, Keys: b.hnd.keys, Bytes: -1})
			return err
		}},
		{"delete too many keys", func() error { _, err := b.st.Delete(b.ctx, b.hnd.scope, b.many); return err }},
		{"delete with a long salt", func() error { _, err := b.st.Delete(b.ctx, salted, b.hnd.keys); return err }},
		{"hint too many keys", func() error { _, err := b.st.Hint(b.ctx, b.hnd.scope, b.many, skep.Hint{}); return err }},
		{"hint with a long salt", func() error { _, err := b.st.Hint(b.ctx, salted, b.hnd.keys, skep.Hint{}); return err }},
		{"a pin that is too long", hint(skep.Hint{Pin: skep.MaxPin + 1})},
		{"a negative pin", hint(skep.Hint{Pin: -1})},
		{"a negative next use", hint(skep.Hint{NextUse: -1})},
		{"negative steps", hint(skep.Hint{Steps: -1})},
		{"a negative time to live", hint(skep.Hint{TTL: -1})},
		{"more steps than there can be", hint(skep.Hint{Steps: 1<<20 + 1})},
		{"a next use that is too far", hint(skep.Hint{NextUse: 366 * 24 * time.Hour})},
		{"pinned and dropped at once", hint(skep.Hint{Pin: time.Hour, Drop: true})},
		{"renew for less than no time", func() error { _, err := b.st.Renew(b.ctx, 1, skep.NoLease); return err }},
		{"renew for too long", func() error { _, err := b.st.Renew(b.ctx, 1, skep.MaxLease+1); return err }},
		{"purge nothing", purge(skep.Purge{})},
		{"purge two things", purge(skep.Purge{Tenant: b.hnd.n.Tenant, Namespace: id})},
		{"purge with a long salt", purge(skep.Purge{Salt: &salted})},
		{"alloc nothing", func() error { _, err := b.st.Alloc(b.ctx, -1); return err }},
	}
}

// unknown are good calls on a namespace that is not there.
func (b *bad) unknown() (out []badCase) {
	for name, id := range map[string]skep.NamespaceID{"none": 0, "never opened": 1 << 30} {
		sc := skep.Scope{Namespace: id}
		keys := b.hnd.keys
		for call, f := range map[string]func() error{
			"runs": func() error {
				_, err := b.st.LookupRuns(b.ctx, &skep.RunsRequest{Scope: sc, Runs: [][]skep.Key{keys}})
				return err
			},
			"lookup":  func() error { _, err := b.st.Lookup(b.ctx, &skep.LookupRequest{Scope: sc, Keys: keys}); return err },
			"want":    func() error { _, err := b.st.Want(b.ctx, &skep.WantRequest{Scope: sc, Keys: keys}); return err },
			"put":     func() error { r := b.hnd.request(3, 4); r.Scope = sc; _, err := b.st.Put(b.ctx, r); return err },
			"begin":   func() error { r := b.hnd.beginRequest(3); r.Scope = sc; _, err := b.st.Begin(b.ctx, r); return err },
			"restore": func() error { return b.restoreError(skep.Chain{Scope: sc, Keys: keys}) },
			"delete":  func() error { _, err := b.st.Delete(b.ctx, sc, keys); return err },
			"hint":    func() error { _, err := b.st.Hint(b.ctx, sc, keys, skep.Hint{}); return err },
			"purge a salt": func() error {
				return b.st.Purge(b.ctx, skep.Purge{Salt: &skep.Scope{Namespace: id, Salt: "s"}})
			},
		} {
			out = append(out, badCase{call + ", " + name, f})
		}
	}
	return append(out, badCase{"purge", func() error { return b.st.Purge(b.ctx, skep.Purge{Namespace: 1 << 30}) }},
		badCase{"delete namespace", func() error { return b.st.DeleteNamespace(b.ctx, 1<<30) }})
}
