package remote_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/tools/internal/cli"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/command/commandtest"
	"github.com/skepkv/skep/tools/internal/serve"
	"github.com/skepkv/skep/wire"
)

func keysOf(t *testing.T, args ...string) commandtest.Output {
	t.Helper()
	return commandtest.Run(t, &cli.Program, "", args...)
}

// tellKeys puts what a connector would have told.
func tellKeys(t *testing.T, st skep.Store, tenant string, documents ...string) {
	t.Helper()
	ns, err := skep.OpenNamespace(t.Context(), st, skep.NamespaceSpec{Tenant: tenant, Name: "skepkv/keys",
		Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}})
	require.NoError(t, err)
	for _, d := range documents {
		res, err := ns.Put(t.Context(), []skep.Key{skep.KeyOf([]byte(d))}, 0, []byte(d))
		require.NoError(t, err)
		require.Equal(t, skep.Committed, res[0].Outcome)
	}
	require.NoError(t, st.Flush(t.Context()))
}

// What processes told a server, or logged, says which of them share, and of others why not.
func TestDoctorKeys(t *testing.T) {
	t.Parallel()
	s := begin(t, nil, nil)
	r := keysOf(t, "doctor", "keys", "--server", s.at["wire"])
	require.Equal(t, command.NotFound, r.Code)
	require.Contains(t, r.Stderr, "serve a prompt")

	st, err := wire.Dial(t.Context(), wire.Options{Addr: strings.TrimPrefix(s.at["wire"], "skep://")})
	require.NoError(t, err)
	defer st.Close()
	ns, err := skep.OpenNamespace(t.Context(), st, skep.NamespaceSpec{Tenant: "default", Name: "vllm/m/0/aa",
		Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}})
	require.NoError(t, err)
	_, err = ns.Put(t.Context(), []skep.Key{{1}, {2}}, 0, []byte("a"), []byte("b"))
	require.NoError(t, err)
	document := func(space, host string, pid int, about string) string {
		return fmt.Sprintf(`{"format":1,"space":%q,"host":"%s","pid":%d,"seen":179000000%d,"about":{%s}}`, space, host, pid, pid, about)
	}
	const vllm = `"engine":"vllm","model_name":"m","group":0,"none_hash":"00",`
	told := []string{
		document("vllm/m/0/aa", "one", 7, vllm+`"rank":0,"dtype":"bf16"`),
		document("vllm/m/0/bb", "two", 8, vllm+`"rank":0,"dtype":"fp8"`),
		document("vllm/m/0/cc", "two", 9, vllm+`"rank":1,"dtype":"fp8"`),
		document("lmcache/m@0@0", `\u001b[31mthree`, 9,
			`"engine":"lmcache","model":"m","rank":"0","group":"0","PYTHONHASHSEED":"random"`),
		`{"format":9,"space":"x"}`, `nothing of ours`, `[]`, `{"format":1,"about":7}`,
	}
	tellKeys(t, st, "default", told...)
	r = keysOf(t, "doctor", "keys", "--server", s.at["wire"], "-o", "json")
	require.Equal(t, command.Faults, r.Code, r.Stderr)
	check := func(groups []any, blocks float64) {
		require.Len(t, groups, 3)
		lmcache, first, second := groups[0].(map[string]any), groups[1].(map[string]any), groups[2].(map[string]any)
		require.Equal(t, []any{"lmcache", "vllm", "vllm"}, []any{lmcache["engine"], first["engine"], second["engine"]})
		require.Equal(t, "rank 0, group 0", first["part"])
		require.Empty(t, second["differ"], "another rank is no reason")
		differ := first["differ"].([]any)
		require.Len(t, differ, 1)
		require.Equal(t, map[string]any{"field": "dtype", "values": []any{"bf16", "fp8"},
			"do": "give all one dtype of the KV cache (--kv-cache-dtype)"}, differ[0])
		require.EqualValues(t, blocks, first["settings"].([]any)[0].(map[string]any)["blocks"])
		alone := lmcache["differ"].([]any)[0].(map[string]any)
		require.Equal(t, "PYTHONHASHSEED", alone["field"], "another one in each process, though one told")
	}
	check(r.JSON(t)["groups"].([]any), 2)
	r = keysOf(t, "doctor", "keys", "--server", s.at["wire"])
	require.Contains(t, r.Stdout, "bf16 | fp8")
	require.NotContains(t, r.Stdout, "\x1b", "what is told does nothing to a terminal")

	dir := t.TempDir()
	var logs []string
	for i, d := range told[:4] {
		path := filepath.Join(dir, strings.Repeat("l", i+1))
		text := "INFO 11-26 something else\n" + strings.Repeat("x", 100_000) + "\n"
		text += "INFO skepkv: skep: keys " + d + "\nskep: keys {broken\n"
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		logs = append(logs, path)
	}
	r = keysOf(t, append([]string{"doctor", "keys", "-o", "json"}, logs...)...)
	require.Equal(t, command.Faults, r.Code, r.Stderr)
	check(r.JSON(t)["groups"].([]any), -1)
	r = keysOf(t, "doctor", "keys", logs[2])
	require.Equal(t, command.OK, r.Code)
	require.Contains(t, r.Stdout, "shares its blocks")
	r = keysOf(t, "doctor", "keys", filepath.Join(dir, "none"))
	require.Equal(t, command.Input, r.Code)
}

// A rank that is null is none, as one that is not told: it does not part processes that share.
func TestDoctorKeysTakesNullForNothing(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	text := ""
	for i, about := range []string{`"dp_rank":null,"model":null`, `"dp_rank":"None"`, ``} {
		about = strings.TrimSuffix(`"engine":"vllm","model_name":"m","rank":0,`+about, ",")
		text += fmt.Sprintf(`skep: keys {"format":1,"space":"s","host":"h","pid":%d,"seen":1,"about":{%s}}`+"\n", i, about)
	}
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	r := keysOf(t, "doctor", "keys", "-o", "json", path)
	require.Equal(t, command.OK, r.Code, r.Stderr)
	groups := r.JSON(t)["groups"].([]any)
	require.Len(t, groups, 1)
	require.Equal(t, "rank 0", groups[0].(map[string]any)["part"])
	require.Equal(t, "m", groups[0].(map[string]any)["model"])
}

// counting is a store that counts how often it is asked for a number of blocks.
type counting struct {
	*memstore.Store
	n atomic.Int64
}

func (c *counting) CountBlocks(ctx context.Context, n skep.NamespaceID) (int64, error) {
	c.n.Add(1)
	return c.Store.CountBlocks(ctx, n)
}

// A namespace is counted once, by however many processes it was told of.
func TestDoctorKeysCountsANamespaceOnce(t *testing.T) {
	t.Parallel()
	inner := &counting{Store: memory(t)}
	s := begin(t, inner, nil)
	st, err := wire.Dial(t.Context(), wire.Options{Addr: strings.TrimPrefix(s.at["wire"], "skep://")})
	require.NoError(t, err)
	defer st.Close()
	var told []string
	for i := range 5 {
		told = append(told, fmt.Sprintf(`{"format":1,"space":"skepkv/keys","seen":%d,"about":{}}`, i))
	}
	tellKeys(t, st, "default", told...)
	r := keysOf(t, "doctor", "keys", "--server", s.at["wire"], "-o", "json")
	settings := r.JSON(t)["groups"].([]any)[0].(map[string]any)["settings"].([]any)
	require.EqualValues(t, 5, settings[0].(map[string]any)["blocks"])
	require.EqualValues(t, 2, inner.n.Load(), "with its keys, and by itself")
}

// Two tenants share nothing, however alike their engines are.
func TestDoctorKeysOfTwoTenants(t *testing.T) {
	t.Parallel()
	token := file(t, "operator", []byte(operatorToken))
	s := begin(t, nil, func(c *serve.Config) {
		c.Credentials = []serve.CredentialConfig{
			{Name: "operator", Tenant: "*", Rights: []string{"read", "write"}, TokenFile: token},
		}
	})
	at := strings.TrimPrefix(s.at["wire"], "skep://")
	st, err := wire.Dial(t.Context(), wire.Options{Addr: at, Token: operatorToken})
	require.NoError(t, err)
	defer st.Close()
	d := `{"format":1,"space":"sglang/m","host":"h","pid":1,"seen":1,"about":{"engine":"sglang","model":"m"}}`
	tellKeys(t, st, "a", d, strings.Replace(d, `"seen":1`, `"seen":2`, 1))
	r := keysOf(t, "doctor", "keys", "--server", s.at["wire"], "-o", "json", "--token-file", token)
	require.Equal(t, command.OK, r.Code, "the same, told twice")
	require.Len(t, r.JSON(t)["groups"].([]any)[0].(map[string]any)["settings"], 1)
	tellKeys(t, st, "b", d)
	r = keysOf(t, "doctor", "keys", "--server", s.at["wire"], "-o", "json", "--token-file", token)
	require.Equal(t, command.Faults, r.Code)
	differ := r.JSON(t)["groups"].([]any)[0].(map[string]any)["differ"].([]any)
	require.Len(t, differ, 1)
	require.Equal(t, "tenant", differ[0].(map[string]any)["field"])
}
