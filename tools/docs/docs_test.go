package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

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
	made := pages()
	for path, write := range made {
		want, err := write(root)
		require.NoError(t, err)
		assert.Equal(t, want, page(t, path), "%s is not up to date: make docs", path)
	}
	have, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(schemaDir), "*"))
	require.NoError(t, err)
	for _, f := range have {
		assert.Contains(t, made, schemaDir+filepath.Base(f), "%s is of no command: delete it", f)
	}
}

type told struct {
	Name  string           `json:"name"`            // of the block
	Sizes map[string]int64 `json:"sizes,omitempty"` // of its parts, by name
	// when it was put,
	// in UTC
	When time.Time `json:"when"`
	toldInside
	Other *toldInside `json:"other"` // the block before it
	Names []string    `json:"-"`
}

type toldInside struct {
	Shares []float64 `json:"shares"` // by device
}

func TestDocsSchemaHasWhatIsPrinted(t *testing.T) {
	t.Parallel()
	w := schemaWriter{comments: map[string]map[string]string{}}
	of, err := commentsIn(".")
	require.NoError(t, err)
	w.comments[reflect.TypeFor[told]().PkgPath()] = of
	s, err := w.of(reflect.TypeFor[told]())
	require.NoError(t, err)
	got, err := json.Marshal(s)
	require.NoError(t, err)
	inside := `{"shares":{"description":"by device","type":["array","null"],"items":{"type":"number"}}}`
	assert.JSONEq(t, `{"type":"object","required":["name","when","shares","other"],"properties":{
		"name":{"description":"of the block","type":"string"},
		"sizes":{"description":"of its parts, by name","type":["object","null"],"additionalProperties":{"type":"integer"}},
		"when":{"description":"when it was put, in UTC","type":"string","format":"date-time"},
		"shares":{"description":"by device","type":["array","null"],"items":{"type":"number"}},
		"other":{"description":"the block before it","type":["object","null"],"required":["shares"],"properties":`+inside+`}}}`, string(got))
}

func TestDocsSchemaNeedsAComment(t *testing.T) {
	t.Parallel()
	type silent struct {
		Bytes int64 `json:"bytes"`
	}
	w := schemaWriter{comments: map[string]map[string]string{reflect.TypeFor[silent]().PkgPath(): {}}}
	_, err := w.of(reflect.TypeFor[silent]())
	require.ErrorContains(t, err, "silent.Bytes has no comment that says what it means")
	_, err = w.of(reflect.TypeFor[func()]())
	require.ErrorContains(t, err, "there is no schema for func()")
}

func TestDocsMetricsFindsEveryWayOfDescribing(t *testing.T) {
	t.Parallel()
	text := page(t, "docs/reference/metrics.md")
	for _, row := range []string{
		"| `skep_blocks` | Blocks stored |",
		"| `skep_device_bytes_total{device,direction}` |",
		"| `skep_call_duration_seconds{protocol,call,outcome}` | Histogram: time",
		"| `skep_gpu_loan_units{socket,lender}` |",
		"| `skep_gpu_loan_lenders_lost_total{socket}` |",
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
