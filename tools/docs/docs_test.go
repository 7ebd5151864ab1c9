package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

const root = "../.."

func page(t *testing.T, path string) string {
	b, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(path)))
	require.NoError(t, err)
	return string(b)
}

func TestDocsPagesAreUpToDate(t *testing.T) {
	t.Parallel()
	for path, write := range pages {
		want, err := write(root)
		require.NoError(t, err)
		assert.Equal(t, want, page(t, path), "%s is not up to date: make docs", path)
	}
}

func TestDocsMetricsFindsEveryWayOfDescribing(t *testing.T) {
	t.Parallel()
	text := page(t, "docs/reference/metrics.md")
	for _, row := range []string{
		"| `skep_blocks` | gauge |  | Blocks stored |",
		"| `skep_device_bytes_total` | counter | `device`, `direction` |",
		"| `skep_call_duration_seconds` | histogram | `protocol`, `call`, `outcome` |",
		"| `skep_gpu_loan_units` | gauge | `socket`, `lender` |",
		"| `skep_gpu_loan_lenders_lost_total` | counter | `socket` |",
	} {
		assert.Contains(t, text, row)
	}
}

func TestDocsErrorsHasEveryKind(t *testing.T) {
	t.Parallel()
	text := page(t, "docs/reference/errors.md")
	n := 0
	for k := skep.Kind(0); !strings.HasPrefix(k.Error(), "error kind"); k++ {
		n++
		assert.Contains(t, text, fmt.Sprintf("\n| %d | `%s` |", k, k))
	}
	rows := regexp.MustCompile(`(?m)^\| \d+ \|`).FindAllString(text, -1)
	assert.Len(t, rows, n, "the page has a kind that is not there")
}
