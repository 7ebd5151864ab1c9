package skep_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// requireInvalid requires an Invalid error about a field that says what it was and
// what it may be.
func requireInvalid(t *testing.T, err error, field string) {
	t.Helper()
	require.ErrorIs(t, err, skep.Invalid)
	var x *skep.Error
	require.True(t, errors.As(err, &x))
	require.Equal(t, field, x.Field)
	require.NotNil(t, x.Value)
	require.NotNil(t, x.Limit)
}

var (
	gqa    = skep.Shape{Kind: skep.Attention, Layers: 32, KVHeads: 8, HeadDim: 128, Element: skep.BF16, BlockTokens: 16}
	mla    = skep.Shape{Kind: skep.Latent, Layers: 61, HeadDim: 576, Element: skep.BF16, BlockTokens: 64}
	opaque = skep.Shape{Kind: skep.Opaque, BlockTokens: 1}
)

func TestShapeValidate(t *testing.T) {
	t.Parallel()
	const size = "block size in bytes"
	with := func(s skep.Shape, f func(*skep.Shape)) skep.Shape { f(&s); return s }
	for _, c := range []struct {
		name  string
		shape skep.Shape
		field string // at fault; "" when there is none
	}{
		{"GQA", gqa, ""},
		{"MQA", with(gqa, func(s *skep.Shape) { s.KVHeads = 1 }), ""},
		{"token-major", with(gqa, func(s *skep.Shape) { s.Order = skep.NHD }), ""},
		{"every element: f16", with(gqa, func(s *skep.Shape) { s.Element = skep.F16 }), ""},
		{"every element: f32", with(gqa, func(s *skep.Shape) { s.Element = skep.F32 }), ""},
		{"every element: fp8", with(gqa, func(s *skep.Shape) { s.Element = skep.FP8 }), ""},
		{"every element: i8", with(gqa, func(s *skep.Shape) { s.Element = skep.I8 }), ""},
		{"every element: fp4", with(gqa, func(s *skep.Shape) { s.Element = skep.FP4 }), ""},
		{"MLA", mla, ""},
		{"opaque", opaque, ""},
		{"opaque of one size", with(opaque, func(s *skep.Shape) { s.Bytes = skep.MaxPartBytes }), ""},
		{"exactly as large as may be", skep.Shape{Kind: skep.Attention, Layers: 1024, KVHeads: 16, HeadDim: 64, Element: skep.F32, BlockTokens: 64}, ""},
		{"a latent exactly as large as may be", skep.Shape{Kind: skep.Latent, Layers: 1024, HeadDim: 2048, Element: skep.F32, BlockTokens: 64}, ""},

		{"nothing", skep.Shape{}, "block tokens"},
		{"no tokens", with(gqa, func(s *skep.Shape) { s.BlockTokens = 0 }), "block tokens"},
		{"negative tokens", with(opaque, func(s *skep.Shape) { s.BlockTokens = -1 }), "block tokens"},
		{"too many tokens", with(gqa, func(s *skep.Shape) { s.BlockTokens = skep.MaxBlockTokens + 1 }), "block tokens"},
		{"unknown kind", with(gqa, func(s *skep.Shape) { s.Kind = 3 }), "kind"},
		{"no layers", with(gqa, func(s *skep.Shape) { s.Layers = 0 }), "layers"},
		{"too many layers", with(mla, func(s *skep.Shape) { s.Layers = skep.MaxLayers + 1 }), "layers"},
		{"no dimension", with(gqa, func(s *skep.Shape) { s.HeadDim = 0 }), "head dimension"},
		{"too large a dimension", with(gqa, func(s *skep.Shape) { s.HeadDim = skep.MaxDim + 1 }), "head dimension"},
		{"half a byte", with(gqa, func(s *skep.Shape) { s.Element, s.HeadDim = skep.FP4, 127 }), "head dimension"},
		{"no element", with(gqa, func(s *skep.Shape) { s.Element = 0 }), "element"},
		{"unknown element", with(gqa, func(s *skep.Shape) { s.Element = 7 }), "element"},
		{"no heads", with(gqa, func(s *skep.Shape) { s.KVHeads = 0 }), "kv heads"},
		{"too many heads", with(gqa, func(s *skep.Shape) { s.KVHeads = skep.MaxKVHeads + 1 }), "kv heads"},
		{"unknown order", with(gqa, func(s *skep.Shape) { s.Order = 2 }), "order"},
		{"a latent with heads", with(mla, func(s *skep.Shape) { s.KVHeads = 1 }), "kv heads and order"},
		{"a latent with an order", with(mla, func(s *skep.Shape) { s.Order = skep.NHD }), "kv heads and order"},
		{"attention of a size", with(gqa, func(s *skep.Shape) { s.Bytes = 1 }), "bytes"},
		{"negative opaque size", with(opaque, func(s *skep.Shape) { s.Bytes = -1 }), "bytes"},
		{"too large an opaque size", with(opaque, func(s *skep.Shape) { s.Bytes = skep.MaxPartBytes + 1 }), "bytes"},
		{"opaque with layers", with(opaque, func(s *skep.Shape) { s.Layers = 1 }), "layers, heads, dimension, element and order"},
		{"too large by one token", skep.Shape{Kind: skep.Attention, Layers: 1024, KVHeads: 16, HeadDim: 64, Element: skep.F32, BlockTokens: 65}, size},
		{"a latent too large by one token", skep.Shape{Kind: skep.Latent, Layers: 1024, HeadDim: 2048, Element: skep.F32, BlockTokens: 65}, size},
		{"everything at its limit", skep.Shape{Kind: skep.Attention, Layers: skep.MaxLayers, KVHeads: skep.MaxKVHeads, HeadDim: skep.MaxDim, Element: skep.F32, BlockTokens: skep.MaxBlockTokens}, size},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.shape.Validate()
			if c.field == "" {
				require.NoError(t, err)
				return
			}
			requireInvalid(t, err, c.field)
		})
	}
}

func TestNamespaceSpecValidate(t *testing.T) {
	t.Parallel()
	good := skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: gqa}
	require.NoError(t, good.Validate(), "a model is not required, and no copies means one")
	for field, spoil := range map[string]func(*skep.NamespaceSpec){
		"tenant":                func(s *skep.NamespaceSpec) { s.Tenant = "" },
		"name":                  func(s *skep.NamespaceSpec) { s.Name = "a\xffb" },
		"model length in bytes": func(s *skep.NamespaceSpec) { s.Model = strings.Repeat("é", skep.MaxNameSize/2+1) },
		"class":                 func(s *skep.NamespaceSpec) { s.Class = 2 },
		"copies":                func(s *skep.NamespaceSpec) { s.Copies = skep.MaxCopies + 1 },
		"block tokens":          func(s *skep.NamespaceSpec) { s.Shape.BlockTokens = 0 },
	} {
		spec := good
		spoil(&spec)
		requireInvalid(t, spec.Validate(), field)
	}
}

func TestValidateBlock(t *testing.T) {
	t.Parallel()
	chained, alone := &skep.NamespaceSpec{Shape: gqa, Chained: true}, &skep.NamespaceSpec{Shape: gqa}
	parent := skep.KeyOf([]byte("parent"))
	kv := skep.Manifest{{Name: skep.PartKV, Size: 10}}
	for _, c := range []struct {
		name          string
		n             *skep.NamespaceSpec
		depth, tokens int
		parent        *skep.Key
		blockName     int
		m             skep.Manifest
		field         string
	}{
		{"a first block", chained, 0, 0, nil, 0, kv, ""},
		{"a deep block", chained, skep.MaxDepth, 16, &parent, skep.MaxBlockNameSize, kv, ""},
		{"a partial tail", chained, 3, 1, &parent, 0, kv, ""},
		{"a block that stands alone", alone, 0, 0, nil, 0, kv, ""},
		{"an empty part", alone, 0, 0, nil, 0, skep.Manifest{{Name: "x"}}, ""},

		{"a long name", chained, 0, 0, nil, skep.MaxBlockNameSize + 1, kv, "name length in bytes"},
		{"too many tokens", chained, 0, 17, nil, 0, kv, "valid tokens"},
		{"negative tokens", chained, 0, -1, nil, 0, kv, "valid tokens"},
		{"a parent and no depth", chained, 0, 0, &parent, 0, kv, "depth"},
		{"a depth and no parent", chained, 1, 0, nil, 0, kv, "depth"},
		{"a negative depth", chained, -1, 0, &parent, 0, kv, "depth"},
		{"too deep", chained, skep.MaxDepth + 1, 0, &parent, 0, kv, "depth"},
		{"a parent where there are none", alone, 0, 0, &parent, 0, kv, "parent and depth"},
		{"a depth where there is none", alone, 1, 0, nil, 0, kv, "parent and depth"},
		{"no parts", chained, 0, 0, nil, 0, nil, "parts"},
		{"too many parts", chained, 0, 0, nil, 0, make(skep.Manifest, skep.MaxParts+1), "parts"},
		{"a part without a name", chained, 0, 0, nil, 0, skep.Manifest{{Size: 1}}, "part name length in bytes"},
		{"a part with a long name", chained, 0, 0, nil, 0, skep.Manifest{{Name: strings.Repeat("p", skep.MaxPartNameSize+1)}}, "part name length in bytes"},
		{"a negative size", chained, 0, 0, nil, 0, skep.Manifest{{Name: "x", Size: -1}}, "size of part x"},
		{"a huge size", chained, 0, 0, nil, 0, skep.Manifest{{Name: "x", Size: 1 << 62}}, "size of part x"},
		{"a part named twice", chained, 0, 0, nil, 0, skep.Manifest{{Name: "x"}, {Name: "y"}, {Name: "x"}}, "part x"},
		{"too large together", chained, 0, 0, nil, 0, skep.Manifest{{Name: "x", Size: skep.MaxPartBytes}, {Name: "y", Size: 1}}, "block size in bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := skep.ValidateBlock("put", c.n, c.depth, c.tokens, skep.Key{}, c.parent, make([]byte, c.blockName), c.m)
			if c.field == "" {
				require.NoError(t, err)
				return
			}
			requireInvalid(t, err, c.field)
		})
	}
}

func TestLookupRequestValidate(t *testing.T) {
	t.Parallel()
	for _, lease := range []time.Duration{0, skep.NoLease, 1, skep.MaxLease} {
		require.NoError(t, (&skep.LookupRequest{Lease: lease}).Validate())
	}
	for field, r := range map[string]skep.LookupRequest{
		"keys":                 {Keys: make([]skep.Key, skep.MaxChainKeys+1)},
		"lease":                {Lease: skep.MaxLease + 1},
		"salt length in bytes": {Scope: skep.Scope{Salt: skep.Salt(strings.Repeat("s", skep.MaxSaltSize+1))}},
	} {
		requireInvalid(t, r.Validate(), field)
	}
	requireInvalid(t, (&skep.LookupRequest{Lease: -2}).Validate(), "lease")
}

func TestPurgeValidate(t *testing.T) {
	t.Parallel()
	for _, p := range []skep.Purge{{Tenant: "t"}, {Model: "m"}, {Namespace: 1}, {Salt: &skep.Scope{Namespace: 1, Salt: "s"}}} {
		require.NoError(t, p.Validate())
	}
	for _, p := range []skep.Purge{{}, {Tenant: "t", Model: "m"}, {Namespace: 1, Salt: &skep.Scope{}}} {
		requireInvalid(t, p.Validate(), "fields set")
	}
}

func TestSubset(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		s    skep.Subset
		n    int
		want skep.Range
		ok   bool
	}{
		{skep.All, 5, skep.Range{From: 0, To: 5}, true},
		{skep.All, 0, skep.Range{}, true},
		{skep.Only(0, 5), 5, skep.Range{From: 0, To: 5}, true},
		{skep.Only(4, 5), 5, skep.Range{From: 4, To: 5}, true},
		{skep.Only(4, 6), 5, skep.Range{From: 4, To: 6}, false},
		{skep.Only(3, 3), 5, skep.Range{From: 3, To: 3}, false},
		{skep.Only(3, 2), 5, skep.Range{From: 3, To: 2}, false},
		{skep.Only(-1, 2), 5, skep.Range{From: -1, To: 2}, false},
		{skep.Only(0, 1), 0, skep.Range{From: 0, To: 1}, false},
		{skep.Only(0, 0), 5, skep.Range{}, false},
		{skep.Only(0, 0), 0, skep.Range{}, false},
	} {
		got, ok := c.s.In(c.n)
		require.Equal(t, c.ok, ok, "%v in %d", c.s, c.n)
		require.Equal(t, c.want, got)
		require.Equal(t, c.s == skep.All, c.s.IsAll())
		some, only := c.s.Bounds()
		require.Equal(t, only, !c.s.IsAll())
		require.True(t, !only || some.Subset() == c.s)
	}
	require.Equal(t, skep.All, skep.Subset{}, "what is not set is everything")
	require.NotEqual(t, skep.All, skep.Range{}.Subset(), "an empty range is not everything")
	require.Equal(t, "all, 2 to 5", fmt.Sprint(skep.All, ", ", skep.Only(2, 5)))
	require.Equal(t, 3, skep.Range{From: 2, To: 5}.Len())
}

func TestRecomputeCost(t *testing.T) {
	t.Parallel()
	c := skep.RecomputeCost{Fixed: 10 * time.Microsecond, PerToken: time.Microsecond, PerTokenSquared: 2}
	require.Equal(t, 10*time.Microsecond, c.Of(0))
	require.Equal(t, 10*time.Microsecond+1000*time.Microsecond+2*1000*1000*time.Nanosecond, c.Of(1000))
}

func TestChunkRelease(t *testing.T) {
	t.Parallel()
	n := 0
	c := skep.Chunk{Data: [][]byte{{1}}, Free: func() { n++ }}
	c.Release()
	c.Release()
	require.Equal(t, 1, n)
	require.Nil(t, c.Data)
	(&skep.Chunk{}).Release()
}

// The numbers travel on the wire or are stored: a change here breaks peers or data.
func TestNumbersAndNames(t *testing.T) {
	t.Parallel()
	type named interface{ String() string }
	for i, all := range [][]named{
		{skep.HeadFirst, skep.TailFirst, skep.LayersUp, skep.LayersDown},
		{skep.TierNone, skep.TierDevice, skep.TierDRAM, skep.TierRemote, skep.TierGPU},
		{skep.Declined, skep.Committed, skep.Accepted, skep.Exists},
		{skep.Opaque, skep.Attention, skep.Latent},
		{skep.Cache, skep.Durable},
		{skep.HND, skep.NHD},
		{skep.ElementType(0), skep.BF16, skep.F16, skep.F32, skep.FP8, skep.I8, skep.FP4},
		{skep.EventKind(0), skep.EventAccepted, skep.EventCommitted, skep.EventEvicted, skep.EventMoved, skep.EventDamaged, skep.EventDeleted, skep.EventPurged, skep.EventGap, skep.EventStored, skep.EventDevice},
	} {
		want := [][]string{
			{"head-first", "tail-first", "layers-up", "layers-down"},
			{"none", "device", "dram", "remote", "gpu"},
			{"declined", "committed", "accepted", "exists"},
			{"opaque", "attention", "latent"},
			{"cache", "durable"},
			{"hnd", "nhd"},
			{"element type 0", "bf16", "f16", "f32", "fp8", "i8", "fp4"},
			{"", "accepted", "committed", "evicted", "moved", "damaged", "deleted", "purged", "gap", "stored", "device"},
		}[i]
		for j, v := range all {
			require.Equal(t, want[j], v.String())
			require.EqualValues(t, j, v)
		}
	}
	require.Equal(t, "direction 99", skep.Direction(99).String())
	require.Equal(t, "tier 99", skep.Tier(99).String())
	require.Equal(t, "outcome 99", skep.Outcome(99).String())
	require.Equal(t, "shape kind 99", skep.ShapeKind(99).String())
	require.Equal(t, "class 99", skep.Class(99).String())
	require.Equal(t, "axis order 99", skep.AxisOrder(99).String())
	require.Equal(t, "event", skep.EventKind(99).String())
	require.Zero(t, skep.ElementType(99).Bits())
}
