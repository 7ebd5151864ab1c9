package crypt

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/segment"
)

// testKey is the n-th key of the tests.
func testKey(n byte) Key {
	k, err := NewKey(bytes.Repeat([]byte{n, 0x5a}, 16))
	if err != nil {
		panic(err)
	}
	return k
}

func keysOf(t testing.TB, store byte, tenant string, numbers ...byte) *Keys {
	var list []Key
	for _, n := range numbers {
		list = append(list, testKey(n))
	}
	k, err := NewKeys(segment.StoreID{store}, map[string][]Key{tenant: list})
	require.NoError(t, err)
	return k
}

func requireKind(t testing.TB, want skep.Kind, err error) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, want, skep.KindOf(err), "%v", err)
}

var anySize = skep.Shape{Kind: skep.Opaque, BlockTokens: 16}

// sample is a sealed block of one part, and what was put.
type sample struct {
	rec    segment.Record
	g      layout.Granules
	data   []byte
	sums   []uint64
	sealed []byte // its padded form
}

func seal(t testing.TB, s *Secret, size int) *sample {
	g, err := layout.GranulesOf(anySize, "kv", int64(size))
	require.NoError(t, err)
	x := &sample{g: g, data: make([]byte, size), sums: make([]uint64, g.N()), sealed: bytes.Repeat([]byte{0xee}, size+100)}
	for i := range x.data {
		x.data[i] = byte(i*7 + i>>8)
	}
	x.rec = segment.Record{Instance: 3, SaltTag: segment.SaltTag{4}, Key: skep.KeyOf([]byte("block")), Version: 5,
		Parts: []segment.RecordPart{{Name: "kv", Size: int64(size)}}}
	for j := range x.sums {
		sp := g.Span(j)
		x.sums[j] = x.rec.Seed(0).Sum(j, x.data[sp.Off:sp.End()])
	}
	b, err := s.NewBlock()
	require.NoError(t, err)
	cut := size / 3
	x.rec.Parts[0] = b.Part(&x.rec, 0, g, x.sums, x.data, [][]byte{x.sealed[:cut], x.sealed[cut:]})
	x.rec.Sealed = &b.Seal
	return x
}

// pieces are buffers that follow one another from the part's start.
type pieces [][]byte

func (p pieces) Len() int { return len(p) }
func (p pieces) Piece(i int) (off int64, mem []byte) {
	for _, m := range p[:i] {
		off += int64(len(m))
	}
	return off, p[i]
}

// cut cuts what is stored of a part into pieces of n bytes.
func (x *sample) cut(n int) (list pieces) {
	rest := slices.Clone(x.sealed[:len(x.data)])
	for len(rest) > n {
		list, rest = append(list, rest[:n:n]), rest[n:]
	}
	return append(list, rest)
}

// What was sealed opens as it was put, however its bytes are cut into pieces; checksums are of
// the ciphertext, and the padding is zero.
func TestSealedBlockOpens(t *testing.T) {
	t.Parallel()
	keys := keysOf(t, 1, "t", 1)
	for _, size := range []int{1, 511, 4096, 65_536, 65_537, 200_000} {
		x := seal(t, keys.Newest("t"), size)
		require.Len(t, x.rec.Parts[0].Seal, segment.SealSize(x.g.N()))
		require.Equal(t, make([]byte, 100), x.sealed[size:])
		for j, sum := range x.rec.Parts[0].Sums {
			sp := x.g.Span(j)
			require.Equal(t, x.rec.Seed(0).Sum(j, x.sealed[sp.Off:sp.End()]), sum)
		}
		for _, n := range []int{size, 4096, 1000, 70_000} {
			if n > size || size/n > 500 {
				continue
			}
			o, err := keys.Opener("t", &x.rec, 0)
			require.NoError(t, err)
			require.Equal(t, x.sums, o.Sums())
			p := x.cut(n)
			require.NoError(t, o.Open(x.g, []layout.Span{{Off: 0, Len: int64(size)}}, p))
			require.True(t, bytes.Equal(x.data, slices.Concat(p...)), "%d bytes in pieces of %d", size, n)
		}
		all := slices.Clone(x.sealed[:size])
		o, err := keys.Opener("t", &x.rec, 0)
		require.NoError(t, err)
		require.NoError(t, o.OpenAll(x.g, all))
		require.True(t, bytes.Equal(x.data, all))
	}
}

// Only the granules that are asked for are decrypted, each once.
func TestOpenTouchesGranulesOnce(t *testing.T) {
	t.Parallel()
	keys := keysOf(t, 1, "t", 1)
	const size = 400_000
	x := seal(t, keys.Newest("t"), size)
	require.Greater(t, x.g.N(), 4)
	o, err := keys.Opener("t", &x.rec, 0)
	require.NoError(t, err)
	p := x.cut(size)
	second := x.g.Span(1)
	spans := []layout.Span{{Off: second.Off + 1, Len: 10}, {Off: second.Off + 100, Len: second.Len}}
	require.NoError(t, o.Open(x.g, spans, p))
	third := x.g.Span(2)
	require.Equal(t, x.sealed[:second.Off], p[0][:second.Off])
	require.Equal(t, x.data[second.Off:third.End()], p[0][second.Off:third.End()])
	require.Equal(t, x.sealed[third.End():size], p[0][third.End():])
}

// Bytes that are missing between two pieces are an error, and no panic.
func TestOpenWithAGap(t *testing.T) {
	t.Parallel()
	keys := keysOf(t, 1, "t", 1)
	x := seal(t, keys.Newest("t"), 9000)
	o, err := keys.Opener("t", &x.rec, 0)
	require.NoError(t, err)
	for _, p := range []pieces{{}, {x.sealed[:100]}} {
		requireKind(t, skep.Damaged, o.Open(x.g, []layout.Span{{Len: 9000}}, p))
	}
}

// What a granule, its tag, the checksums or the identity of the block were changed to does not
// open; nor does anything in a store of another id.
func TestForgedSealsDoNotOpen(t *testing.T) {
	t.Parallel()
	keys := keysOf(t, 1, "t", 1)
	for what, forge := range map[string]func(x *sample){
		"ciphertext":         func(x *sample) { x.sealed[17] ^= 1 },
		"tag":                func(x *sample) { x.rec.Parts[0].Seal[3] ^= 1 },
		"checksums":          func(x *sample) { x.rec.Parts[0].Seal[len(x.rec.Parts[0].Seal)-20] ^= 1 },
		"tag of checksums":   func(x *sample) { x.rec.Parts[0].Seal[len(x.rec.Parts[0].Seal)-1] ^= 1 },
		"nonce":              func(x *sample) { x.rec.Sealed.Nonce[0] ^= 1 },
		"instance":           func(x *sample) { x.rec.Instance++ },
		"salt":               func(x *sample) { x.rec.SaltTag[0] ^= 1 },
		"key of the block":   func(x *sample) { x.rec.Key[0] ^= 1 },
		"write version":      func(x *sample) { x.rec.Version++ },
		"name of the part":   func(x *sample) { x.rec.Parts[0].Name = "vk" },
		"another store":      func(*sample) {},
		"another granule":    func(x *sample) { copy(x.sealed, x.sealed[x.g.Span(1).Off:x.g.Span(1).End()]) },
		"granules exchanged": exchange,
	} {
		t.Run(what, func(t *testing.T) {
			x := seal(t, keys.Newest("t"), 200_000)
			forge(x)
			with := keys
			if what == "another store" {
				with = keysOf(t, 2, "t", 1)
			}
			o, err := with.Opener("t", &x.rec, 0)
			if err == nil {
				err = o.OpenAll(x.g, x.sealed[:len(x.data)])
			}
			requireKind(t, skep.Damaged, err)
		})
	}
}

// exchange swaps two granules of equal length together with their tags.
func exchange(x *sample) {
	a, b := x.g.Span(0), x.g.Span(1)
	n := min(a.Len, b.Len)
	was := slices.Clone(x.sealed[a.Off : a.Off+n])
	copy(x.sealed[a.Off:], x.sealed[b.Off:b.Off+n])
	copy(x.sealed[b.Off:], was)
	tags := x.rec.Parts[0].Seal
	tag := slices.Clone(tags[:segment.TagSize])
	copy(tags, tags[segment.TagSize:2*segment.TagSize])
	copy(tags[segment.TagSize:], tag)
}

// Two writes of the same bytes have nothing in common.
func TestEveryWriteHasItsOwnKey(t *testing.T) {
	t.Parallel()
	s := keysOf(t, 1, "t", 1).Newest("t")
	a, b := seal(t, s, 100), seal(t, s, 100)
	require.NotEqual(t, a.rec.Sealed.Nonce, b.rec.Sealed.Nonce)
	require.NotEqual(t, a.sealed, b.sealed)
}

func TestRowsAreBound(t *testing.T) {
	t.Parallel()
	keys := keysOf(t, 1, "t", 1)
	s := keys.Newest("t")
	sealed, err := s.SealRow([]byte("a row"), []byte("of this"))
	require.NoError(t, err)
	require.NotContains(t, string(sealed), "a row")
	row, ok := s.OpenRow(slices.Clone(sealed), []byte("of this"))
	require.True(t, ok)
	require.Equal(t, "a row", string(row))
	for what, try := range map[string]func() ([]byte, bool){
		"of another":       func() ([]byte, bool) { return s.OpenRow(slices.Clone(sealed), []byte("of that")) },
		"a key of another": func() ([]byte, bool) { return keysOf(t, 1, "t", 2).Newest("t").OpenRow(sealed, []byte("of this")) },
		"another store's":  func() ([]byte, bool) { return keysOf(t, 2, "t", 1).Newest("t").OpenRow(sealed, []byte("of this")) },
		"cut":              func() ([]byte, bool) { return s.OpenRow(sealed[:segment.NonceSize-1], nil) },
		"empty":            func() ([]byte, bool) { return s.OpenRow(nil, nil) },
	} {
		_, ok := try()
		require.False(t, ok, what)
	}
}

// A tenant's own keys count before those of all tenants; a block is opened with the key that its
// record names, of either.
func TestWhoseKeys(t *testing.T) {
	t.Parallel()
	keys, err := NewKeys(segment.StoreID{1}, map[string][]Key{"t": {testKey(2), testKey(1)}, "": {testKey(3)}})
	require.NoError(t, err)
	require.Equal(t, testKey(2).ID(), keys.Newest("t").id.String())
	require.Equal(t, testKey(3).ID(), keys.Newest("another").id.String())
	require.Nil(t, keysOf(t, 1, "t", 1).Newest("another"))

	for n, who := range map[byte][]string{1: {"t"}, 2: {"t"}, 3: {"t", "another"}} {
		rec := segment.Record{Sealed: &segment.Seal{Key: testKey(n).id()}}
		for _, tenant := range []string{"t", "another"} {
			s, err := keys.Sealing(tenant, &rec)
			if slices.Contains(who, tenant) {
				require.NoError(t, err)
				require.Equal(t, testKey(n), s.key)
				continue
			}
			requireKind(t, skep.Denied, err)
			require.ErrorContains(t, err, testKey(n).ID())
		}
	}
	s, err := keys.Sealing("t", &segment.Record{})
	require.NoError(t, err)
	require.Nil(t, s)
	o, err := keys.Opener("t", &segment.Record{}, 0)
	require.NoError(t, err)
	require.Nil(t, o)
}

// A new key is what is sealed with from then on; what was sealed before opens while the old one is
// there.
func TestKeysAreReplaced(t *testing.T) {
	t.Parallel()
	keys := keysOf(t, 1, "t", 1)
	x := seal(t, keys.Newest("t"), 100)
	replace := func(next map[string][]Key) error {
		_, err := keys.Replace(next, nil)
		return err
	}
	require.NoError(t, replace(map[string][]Key{"t": {testKey(2), testKey(1)}}))
	require.Equal(t, testKey(2), keys.Newest("t").key)
	require.NoError(t, keys.ClearSums("t", &x.rec))
	require.Equal(t, x.sums, x.rec.Parts[0].Sums)

	require.NoError(t, replace(map[string][]Key{"t": {testKey(2)}, "u": {testKey(1)}}))
	requireKind(t, skep.Denied, keys.ClearSums("t", &x.rec))

	requireKind(t, skep.Invalid, replace(map[string][]Key{"t": {testKey(2)}}))
	requireKind(t, skep.Invalid, replace(map[string][]Key{"t": {}, "u": {testKey(1)}}))
	require.Equal(t, testKey(1), keys.Newest("u").key, "what was refused changed nothing")
}

func TestBadKeysAreRefused(t *testing.T) {
	t.Parallel()
	for _, bad := range []map[string][]Key{{"t": nil}, {"t": {{}}}, {"t": {testKey(1), testKey(1)}}, {"t": make([]Key, maxTenantKeys+1)}} {
		requireKind(t, skep.Invalid, Check(bad))
		_, err := NewKeys(segment.StoreID{}, bad)
		requireKind(t, skep.Invalid, err)
	}
	require.NoError(t, Check(nil))
}

// A key is printed by nothing.
func TestKeysAreNotPrinted(t *testing.T) {
	t.Parallel()
	k := testKey('K')
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("opened", "key", k)
	js, err := json.Marshal([]Key{k})
	require.NoError(t, err)
	all := fmt.Sprintf("%v %+v %#v %s %x %s", k, k, k, k, k, js) + log.String()
	for _, secret := range []string{"KZKZ", "4b5a", "75, 90", "75 90", "0x4b"} {
		require.NotContains(t, strings.ToLower(all), strings.ToLower(secret))
	}
}

func TestParseKeys(t *testing.T) {
	t.Parallel()
	line := strings.Repeat("4b5a", 16)
	keys, err := ParseKeys([]byte("# newest\n" + line + "\r\n\n  " + strings.Repeat("01", 32) + "  "))
	require.NoError(t, err)
	require.Len(t, keys, 2)
	require.Equal(t, testKey('K'), keys[0])
	for what, text := range map[string]string{
		"empty": "", "comments only": "# none\n", "short": line[1:], "long": line + "00", "not hex": strings.Repeat("zz", 32),
		"zero": strings.Repeat("00", 32), "too much": strings.Repeat(line+"\n", 2000),
	} {
		_, err := ParseKeys([]byte(text))
		requireKind(t, skep.Invalid, err)
		require.NotContains(t, err.Error(), "4b5a", what)
	}
}

// BenchmarkSealAndOpen is what encryption costs of a block of 2 MiB, apart from drives.
func BenchmarkSealAndOpen(b *testing.B) {
	const size = 2 << 20
	keys := keysOf(b, 1, "t", 1)
	x := seal(b, keys.Newest("t"), size)
	block, err := keys.Newest("t").NewBlock()
	require.NoError(b, err)
	into := [][]byte{make([]byte, size)}
	b.Run("seal", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			block.Part(&x.rec, 0, x.g, x.sums, x.data, into)
		}
	})
	o, err := keys.Opener("t", &x.rec, 0)
	require.NoError(b, err)
	b.Run("open", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			copy(into[0], x.sealed)
			require.NoError(b, o.OpenAll(x.g, into[0]))
		}
	})
}
