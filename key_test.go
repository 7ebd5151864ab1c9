package skep_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

func TestParseKey(t *testing.T) {
	t.Parallel()
	b := bytes.Repeat([]byte{0xab}, skep.KeySize)
	k, err := skep.ParseKey(b)
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("ab", skep.KeySize), k.String())
	require.Equal(t, "abababab", k.Short())
	b[0] = 0
	require.EqualValues(t, 0xab, k[0], "a key is a value")
	for _, n := range []int{0, 1, skep.KeySize - 1, skep.KeySize + 1} {
		_, err := skep.ParseKey(make([]byte, n))
		requireInvalid(t, err, "key length in bytes")
	}
}

func TestParseHexKey(t *testing.T) {
	t.Parallel()
	want := skep.KeyOf([]byte("a name"))
	got, err := skep.ParseHexKey(want.String())
	require.NoError(t, err)
	require.Equal(t, want, got)
	for _, s := range []string{"", "ab", strings.Repeat("ab", 33), strings.Repeat("xy", 32), strings.Repeat("a", 63)} {
		_, err := skep.ParseHexKey(s)
		require.ErrorIs(t, err, skep.Invalid, s)
	}
}

// The figures come from sha256sum, not from this code.
func TestKeysAreSHA256(t *testing.T) {
	t.Parallel()
	require.Equal(t, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", skep.KeyOf([]byte("abc")).String())
	// printf '\x01\x00\x00\x00\x02\x00\x00\x00' | sha256sum
	first := skep.ChainKey(nil, []uint32{1, 2})
	require.Equal(t, firstKey, first.String())
	// (printf that | sha256sum, as bytes; printf '\x03\x00\x00\x00') | sha256sum
	require.Equal(t, secondKey, skep.ChainKey(&first, []uint32{3}).String())
}

func TestChainKeysDependOnAllTokensBefore(t *testing.T) {
	t.Parallel()
	a, b := skep.ChainKey(nil, []uint32{1}), skep.ChainKey(nil, []uint32{2})
	require.NotEqual(t, a, b)
	require.NotEqual(t, skep.ChainKey(&a, []uint32{3}), skep.ChainKey(&b, []uint32{3}))
	require.NotEqual(t, skep.ChainKey(nil, []uint32{3}), skep.ChainKey(&a, []uint32{3}))
	require.Equal(t, skep.ChainKey(&a, []uint32{3}), skep.ChainKey(&a, []uint32{3}))
}

// A salt is a secret: no way of printing it shows it.
func TestSaltIsHidden(t *testing.T) {
	t.Parallel()
	const secret = "correct horse battery staple"
	salt := skep.Salt(secret)
	scope := skep.Scope{Namespace: 7, Salt: salt}
	var text, js bytes.Buffer
	slog.New(slog.NewTextHandler(&text, nil)).Info("put", "salt", salt, "scope", scope)
	slog.New(slog.NewJSONHandler(&js, nil)).Info("put", "salt", salt)
	for verb, got := range map[string]string{
		"%v": fmt.Sprintf("%v", salt), "%x": fmt.Sprintf("%x", salt), "%q": fmt.Sprintf("%q", salt), "%#v": fmt.Sprintf("%#v", salt),
		"%+v of a scope": fmt.Sprintf("%+v", scope), "%#v of a scope": fmt.Sprintf("%#v", scope),
		"%+v of a request": fmt.Sprintf("%+v", skep.LookupRequest{Scope: scope}), "%#v of a request": fmt.Sprintf("%#v", skep.PutRequest{Scope: scope}),
		"an error":  errors.Join(skep.Invalidf("put", "salt", salt, "shorter")).Error(),
		"slog text": text.String(), "slog json": js.String(),
	} {
		for _, word := range strings.Fields(secret) {
			require.NotContains(t, got, word, verb)
			require.NotContains(t, got, hex.EncodeToString([]byte(word)), verb)
		}
	}
	require.Equal(t, "hidden", salt.String())
	require.Equal(t, "none", skep.Salt("").String())
	require.Contains(t, text.String(), "salt=hidden")
}

// Nor do verbs that are not for strings, or encoders.
func TestSaltIsHiddenFromEncoders(t *testing.T) {
	t.Parallel()
	salt := skep.Salt("secret")
	for _, shown := range []string{fmt.Sprintf("%d", salt), fmt.Sprintf("%t", salt), fmt.Sprint(salt)} {
		require.NotContains(t, shown, "secret")
		require.NotContains(t, shown, "736563726574")
	}
	js, err := json.Marshal(skep.Scope{Namespace: 1, Salt: salt})
	require.NoError(t, err)
	require.NotContains(t, string(js), "secret")
}

// What an encoder writes of a salt is not read back as one.
func TestSaltIsNotReadBack(t *testing.T) {
	t.Parallel()
	js, err := json.Marshal(skep.Scope{Namespace: 1, Salt: "secret"})
	require.NoError(t, err)
	back := skep.Scope{}
	require.ErrorIs(t, json.Unmarshal(js, &back), skep.Invalid)
	require.Empty(t, back.Salt)
	require.ErrorIs(t, json.Unmarshal([]byte(`{"Salt":"none"}`), &back), skep.Invalid)
	require.Empty(t, back.Salt)
	// Who has none, and who writes a secret down, has what was meant.
	js, err = json.Marshal(skep.Scope{Namespace: 1})
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(js, &back))
	require.Equal(t, skep.Scope{Namespace: 1}, back)
	require.NoError(t, json.Unmarshal([]byte(`{"Salt":"secret"}`), &back))
	require.Equal(t, skep.Salt("secret"), back.Salt)
}

const (
	firstKey  = "34fb5c825de7ca4aea6e712f19d439c1da0c92c37b423936c5f618545ca4fa1f"
	secondKey = "3ac5d352be720e428633fe34fc74591b2b80060a7764e195d8f34068203ae98f"
)
