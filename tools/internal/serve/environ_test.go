package serve

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

func TestMisspeltVariablesAreRefused(t *testing.T) {
	t.Parallel()
	for name, says := range map[string]string{
		"STORE_POLCY": "SKEP_STORE_POLICY", "STORE_DRAMBYTES": "SKEP_STORE_DRAM_BYTES", "LIMITS_CONECTIONS": "SKEP_LIMITS_CONNECTIONS",
		"STORE_NONESUCH": "skep config show", "STOR_POLICY": "SKEP_STORE_POLICY", "RESPP": "SKEP_RESP", "DRAM_BYTES": "SKEP_STORE_DRAM_BYTES",
		"DRAM": "SKEP_STORE_DRAM_BYTES", "POLICY": "SKEP_STORE_POLICY", "CHANGE_CAPACITY": "SKEP_STORE_CHANGE_CAPACITY",
		"TENANTS_A_SHARE": "tenants in the configuration's file", "CREDENTIALS": "credentials in the configuration's file",
	} {
		_, err := Load("", []string{envPrefix + name + "=lru"}, map[string]string{"dir": "d"})
		require.ErrorIs(t, err, skep.Invalid, name)
		assert.ErrorContains(t, err, envPrefix+name+" is no setting, must be ", name)
		assert.ErrorContains(t, err, says, name)
	}
	many := make([]string, 0, 10_000)
	for i := range cap(many) {
		many = append(many, envPrefix+"STORE_"+strings.Repeat("X", i%100)+string(rune('A'+i%26))+"=1")
	}
	_, err := Load("", many, map[string]string{"dir": "d"})
	require.ErrorIs(t, err, skep.Invalid)
	assert.Less(t, len(err.Error()), 16<<10, "however many there are")
}

func TestVariablesOfOthersAreLeftAlone(t *testing.T) {
	t.Parallel()
	flags := map[string]string{"dir": "d"}
	_, err := Load("", []string{"PATH=/bin", "SKEP=1", "SKEP_=1", "SKEP_OTHERS=1", "STORE_POLCY=x", "novalue",
		"SKEP_PORT=tcp://10.0.0.1:7420", "SKEP_PORT_7420_TCP_ADDR=10.0.0.1", "SKEP_SERVICE_HOST=10.0.0.1",
		envPrefix + "STORE_SERVICE_HOST=10.0.0.1", envPrefix + "STORE_SERVICE_PORT_RESP=7421",
		envPrefix + "STORE_PORT_7421_TCP=tcp://10.0.0.1:7421", envPrefix + "REDIS_PORT=tcp://10.0.0.2:7421"}, flags)
	require.NoError(t, err)
	named := envPrefix + "STORE_TOKEN"
	file := write(t, "skep.yaml", "credentials: [{name: a, tenant: a, rights: [read], token_env: "+named+"}]\n")
	_, err = Load(file, []string{named + "=secret"}, flags)
	assert.NotContains(t, err.Error(), "no setting", "a credential names it (the process has no such variable here)")
}

var (
	quoted  = regexp.MustCompile(`["'](SKEP_[A-Z0-9_]+)["'=]`)
	unquote = regexp.MustCompile(`\b(SKEP_[A-Z0-9_]+)\b`)
)

// Whatever variable a program, a test or a script of the project reads or sets, a server that inherits it starts.
func TestVariablesOfThisProjectAreLeftAlone(t *testing.T) {
	t.Parallel()
	found := map[string]string{}
	root := filepath.Join("..", "..", "..")
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if d != nil && d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root && d.Name() != ".." {
				return fs.SkipDir
			}
			return err
		}
		at := quoted
		switch filepath.Ext(path) {
		case ".go", ".py":
		case ".sh", "":
			if d.Name() != "Makefile" && filepath.Ext(path) == "" {
				return nil
			}
			at = unquote
		default:
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range at.FindAllStringSubmatch(string(text), -1) {
			found[m[1]] = path
		}
		return err
	}))
	require.Contains(t, found, "SKEP_CONNECTIONS")
	require.Contains(t, found, "SKEP_SEED")
	c := Default()
	for name, path := range found {
		assert.Empty(t, c.misnamed(map[string]string{name: "1"}), "%s, read in %s", name, path)
	}
}
