package lint

import (
	"encoding/json"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// heavy are modules, and beginnings of their paths, that a program which embeds skep is not to require: a browser's
// driver, a Redis client, a CUDA binding, makers of packages and images. What needs them lies in modules of its own.
var heavy = []string{"github.com/chromedp/", "github.com/redis/go-redis", "gorgonia.org/cu",
	"github.com/goreleaser/", "github.com/google/go-containerregistry"}

// requiring lists who requires something heavy in what go mod graph printed.
func requiring(graph string) (found []string) {
	for line := range strings.Lines(graph) {
		who, what, _ := strings.Cut(strings.TrimSpace(line), " ")
		for _, h := range heavy {
			if strings.HasPrefix(what, h) {
				found = append(found, who+" requires "+what)
			}
		}
	}
	return found
}

// goMod runs go mod in a module's directory, by its path from the root, as who has the module alone would.
func goMod(t *testing.T, module string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command("go", append([]string{"mod"}, args...)...)
	cmd.Dir = filepath.Join(root, module)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	b, err := cmd.Output()
	require.NoError(t, err, "go mod %v in %s", args, module)
	return b
}

func TestTheEmbeddersGraphIsLean(t *testing.T) {
	t.Parallel()
	graph := string(goMod(t, ".", "graph"))
	require.Contains(t, graph, "github.com/cockroachdb/pebble", "the graph was looked at")
	for _, r := range requiring(graph) {
		t.Errorf("in the graph of %s: %s", module, r)
	}
}

func TestTheRuleOnTheGraphFindsIt(t *testing.T) {
	t.Parallel()
	found := requiring("a b@v1.0.0\na github.com/chromedp/cdproto@v0.1.0\nb@v1.0.0 github.com/redis/go-redis/v9@v9.7.0\na gorgonia.org/cu@v0.9.6\na gorgonia.org/tensor@v0.9.6\n")
	require.Equal(t, []string{"a requires github.com/chromedp/cdproto@v0.1.0", "b@v1.0.0 requires github.com/redis/go-redis/v9@v9.7.0", "a requires gorgonia.org/cu@v0.9.6"}, found)
}

// modFile is a go.mod as go mod edit -json prints it.
type modFile struct {
	Module  struct{ Path string }
	Go      string
	Require []struct{ Path, Version string }
	Replace []struct {
		Old, New struct{ Path, Version string }
	}
}

func modFileOf(t *testing.T, module string) (m modFile) {
	t.Helper()
	require.NoError(t, json.Unmarshal(goMod(t, module, "edit", "-json"), &m))
	return m
}

// The first module installs at a version, which a replace directive or a workspace would be in the way of. The
// others take it from beside them, are tested with the versions it has, and are what the Makefile goes through.
func TestModulesAgree(t *testing.T) {
	t.Parallel()
	list := modules(t)
	first := modFileOf(t, ".")
	assert.Equal(t, module, first.Module.Path)
	assert.Empty(t, first.Replace, "go install %s/tools/skep@version refuses replace directives", module)
	assert.NoFileExists(t, filepath.Join(root, "go.work"))
	versions := map[string]string{}
	for _, r := range first.Require {
		versions[r.Path] = r.Version
	}
	for _, dir := range list[1:] {
		m := modFileOf(t, dir)
		assert.Equal(t, path.Join(module, dir), m.Module.Path)
		assert.Equal(t, first.Go, m.Go, dir)
		replaced := map[string]string{}
		for _, r := range m.Replace {
			replaced[r.Old.Path] = path.Join(dir, r.New.Path)
		}
		assert.Equal(t, ".", replaced[module], "%s takes the first module from beside it", dir)
		for _, r := range m.Require {
			if of, ours := strings.CutPrefix(r.Path, module+"/"); ours {
				assert.Equal(t, of, replaced[r.Path], "%s takes %s from beside it", dir, r.Path)
			}
			if v, ok := versions[r.Path]; ok {
				assert.Equal(t, v, r.Version, "%s requires %s in another version than the first module", dir, r.Path)
			}
		}
	}
	named := regexp.MustCompile(`(?m)^MODULES +:= (.*)$`).FindSubmatch(read(t, "Makefile"))
	require.NotNil(t, named)
	assert.ElementsMatch(t, list[1:], strings.Fields(string(named[1])), "the Makefile's MODULES")
}
