package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/wire/auth"
)

// The right admin of a tenant is about that tenant: what is the whole store's, and other tenants', it does not show. Who
// asks is told what would do.
func TestATenantsAdminIsNoOperator(t *testing.T) {
	t.Parallel()
	f := newFixture(t, false)
	_, err := f.store.OpenNamespace(context.Background(), skep.NamespaceSpec{Tenant: "b", Name: "of-b", Shape: f.space.Shape})
	require.NoError(t, err)
	for _, path := range []string{"/metrics", "/debug/pprof/", "/api/v1/stats", "/api/v1/segments", "/api/v1/jobs"} {
		w := f.ask("GET", path, tokenAdmin, "")
		assert.Equal(t, http.StatusForbidden, w.Code, path)
		assert.Contains(t, w.Body.String(), `a credential of tenant \"*\" with the right admin`, path)
		assert.Equal(t, http.StatusOK, f.ask("GET", path, tokenOperator, "").Code, path)
	}
	for path, others := range map[string]string{"/api/v1/namespaces": "of-b", "/api/v1/tenants": `"b"`, "/api/v1/calls": "SECRETCALL"} {
		own := f.ask("GET", path, tokenAdmin, "")
		assert.Equal(t, http.StatusOK, own.Code, path)
		if path != "/api/v1/calls" { // that one is a's
			assert.NotContains(t, own.Body.String(), others, path)
		}
		assert.Contains(t, f.ask("GET", path, tokenOperator, "").Body.String(), others, path)
		assert.NotContains(t, f.ask("GET", path, tokenOther, "").Body.String(), "SECRETCALL", path)
	}
	assert.Equal(t, http.StatusForbidden, f.ask("POST", "/api/v1/jobs/scrub/start", tokenAdmin, "{}").Code)
	assert.Empty(t, f.jobs.did)
}

// A tenant sees how much it holds, and nobody else's.
func TestATenantSeesItsUse(t *testing.T) {
	t.Parallel()
	f := newFixture(t, false)
	for _, token := range []string{tokenAdmin, tokenOperator} {
		var list []TenantView
		require.NoError(t, json.Unmarshal(f.ask("GET", "/api/v1/tenants", token, "").Body.Bytes(), &list))
		i := slices.IndexFunc(list, func(v TenantView) bool { return v.Tenant == "a" })
		require.GreaterOrEqual(t, i, 0)
		require.NotNil(t, list[i].Bytes)
		assert.Positive(t, *list[i].Bytes)
	}
	var list []TenantView
	require.NoError(t, json.Unmarshal(f.ask("GET", "/api/v1/tenants", tokenOther, "").Body.Bytes(), &list))
	assert.False(t, slices.ContainsFunc(list, func(v TenantView) bool { return v.Tenant == "a" }))
}

// An answer that takes long ends with the credential of who asked for it.
func TestALongAnswerEndsWithItsCredential(t *testing.T) {
	t.Parallel()
	d, err := auth.New([]auth.Credential{credential(t, auth.AnyTenant, tokenOperator, auth.All)}, nil, nil)
	require.NoError(t, err)
	began := make(chan struct{})
	st := memstore.New(memstore.Options{})
	defer st.Close()
	h, err := New(Options{Store: st, Auth: d, Timeout: time.Hour, Segments: func(ctx context.Context) (Segments, error) {
		close(began)
		<-ctx.Done()
		return Segments{}, ctx.Err()
	}})
	require.NoError(t, err)
	over := make(chan struct{})
	for _, path := range []string{"/api/v1/segments", "/debug/pprof/profile?seconds=3600"} {
		go func() {
			r := httptest.NewRequest("GET", "http://localhost"+path, nil)
			r.Header.Set("Authorization", "Bearer "+tokenOperator)
			h.ServeHTTP(httptest.NewRecorder(), r)
			over <- struct{}{}
		}()
	}
	<-began
	require.NoError(t, d.Replace([]auth.Credential{credential(t, "a", tokenReader, auth.Read)}, nil))
	<-over
	<-over
}
