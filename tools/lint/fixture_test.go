package lint

import (
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fixture types testdata/NAME and says which of its lines a rule must find.
func fixture(t *testing.T, name string) (p *program, want []string) {
	t.Helper()
	dir := filepath.Join("testdata", name)
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	abs, err := filepath.Abs(dir)
	require.NoError(t, err)
	var files []string
	for _, e := range list {
		files = append(files, e.Name())
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		for i, line := range strings.Split(string(b), "\n") {
			if strings.HasSuffix(line, "// found") {
				want = append(want, fmt.Sprintf("tools/lint/testdata/%s/%s:%d", name, e.Name(), i+1))
			}
		}
	}
	exports := exportsOf(t, ".", []string{"context", "testing", "testing/synctest", "time", "sync", "net/http", requirePath})
	p = &program{fset: token.NewFileSet()}
	compiled := importer.ForCompiler(p.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	_, err = p.check("fixture/"+name, abs, files, true, func(path string) (*types.Package, error) { return compiled.Import(path) })
	require.NoError(t, err)
	return p, want
}
