package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every path answers a method it does not have with 405, and says which it has.
func TestEveryPathNamesItsMethods(t *testing.T) {
	t.Parallel()
	f := newFixture(t, false)
	has := map[string][]string{
		"/healthz": {"GET", "HEAD"}, "/readyz": {"GET", "HEAD"}, "/metrics": {"GET", "HEAD"}, "/debug/pprof/": {"GET", "HEAD"},
		"/debug/pprof/profile": {"GET", "HEAD"}, "/api/v1/openapi.json": {"GET", "HEAD"},
	}
	for _, op := range operations {
		path, _ := f.call(op)
		has[path] = append(has[path], op.method)
		if op.method == "GET" {
			has[path] = append(has[path], "HEAD")
		}
	}
	for path, methods := range has {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
			if strings.Contains(strings.Join(methods, " "), method) {
				continue
			}
			w := f.ask(method, path, tokenOperator, "")
			assert.Equal(t, http.StatusMethodNotAllowed, w.Code, "%s %s", method, path)
			assert.Equal(t, strings.Join(methods, ", "), w.Header().Get("Allow"), "%s %s", method, path)
			if method != "HEAD" {
				var said Failure
				require.NoError(t, json.Unmarshal(w.Body.Bytes(), &said), "%s %s: %s", method, path, w.Body)
				assert.Equal(t, "method", said.Error.Field)
			}
		}
	}
	assert.Empty(t, f.jobs.did, "nothing was done")
}

// A request without a body is one with an empty object: it is done where nothing is needed, and else what is
// missing is named, as it is for {}.
func TestEveryOperationTakesNoBodyForAnEmptyOne(t *testing.T) {
	t.Parallel()
	f := newFixture(t, false)
	for _, op := range operations {
		if op.method != "POST" {
			continue
		}
		path, _ := f.call(op)
		want := f.ask(op.method, path, tokenOperator, "{}")
		for _, length := range []int64{0, -1} { // none, and none in chunks
			path, _ := f.call(op)
			r := httptest.NewRequest(op.method, "http://localhost"+path, http.NoBody)
			r.ContentLength = length
			r.Header.Set("Authorization", "Bearer "+tokenOperator)
			if length < 0 {
				r.Header.Set("Content-Type", "application/json")
			}
			w := httptest.NewRecorder()
			f.handler.ServeHTTP(w, r)
			assert.Equal(t, want.Code, w.Code, "%s: %s", op.id, w.Body)
			assert.NotContains(t, w.Body.String(), "EOF", op.id)
			assert.Equal(t, want.Body.String(), w.Body.String(), op.id)
		}
	}
	assert.Equal(t, "[start start start]", fmt.Sprint(f.jobs.did))
}
