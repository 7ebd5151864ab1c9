package wire

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/wire/httpapi"
	"github.com/skepkv/skep/wire/server"
)

// listed counts how often all namespaces are listed.
type listed struct {
	*memstore.Store
	all atomic.Int64
}

func (l *listed) Namespaces(ctx context.Context) ([]skep.NamespaceInfo, error) {
	l.all.Add(1)
	return l.Store.Namespaces(ctx)
}

// However many namespaces others have, nothing that a tenant does lists them: neither its calls, on what is not there
// either, nor its listings, nor the events of others that pass by.
func TestATenantListsNobodyElsesNamespaces(t *testing.T) {
	t.Parallel()
	st := &listed{Store: memstore.New(memstore.Options{})}
	defer st.Close()
	d := directory(t)
	r := serve(t, "tcp", st, server.Options{Auth: d})
	o := r.options()
	o.Token = tokenA
	a := r.dial(t, o)
	ch := chainOf(t, a, "a", 4)
	events, err := a.Events(t.Context(), skep.Cursor{}, true)
	require.NoError(t, err)
	others := chainOf(t, st, "others", 64)
	st.all.Store(0)

	for id := range skep.NamespaceID(10) {
		_, err := a.Delete(t.Context(), skep.Scope{Namespace: 900 + id}, ch.Keys)
		require.ErrorIs(t, err, skep.NotFound)
		_, err = a.Delete(t.Context(), others.Scope, ch.Keys)
		require.ErrorIs(t, err, skep.NotFound)
	}
	_, err = a.Lookup(t.Context(), &skep.LookupRequest{Scope: ch.Scope, Keys: ch.Keys, Lease: skep.NoLease})
	require.NoError(t, err)
	list, err := a.Namespaces(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, ch.Scope.Namespace, list[0].ID)
	n, err := a.Delete(t.Context(), ch.Scope, ch.Keys)
	require.NoError(t, err)
	require.Equal(t, 4, n)
	seen := map[skep.NamespaceID]int{}
	for into := make([]skep.Event, 64); seen[ch.Scope.Namespace] < 4+4; { // stored and deleted
		n, err := events.Next(t.Context(), into)
		require.NoError(t, err)
		for _, e := range into[:n] {
			seen[e.Namespace]++
		}
	}
	require.Zero(t, seen[others.Scope.Namespace])

	h, err := httpapi.New(httpapi.Options{Store: st, Auth: d, Timeout: time.Minute})
	require.NoError(t, err)
	for path, body := range map[string]string{"/api/v1/namespaces": "", "/api/v1/tenants": "", "/api/v1/lookup": `{"namespace": 999, "keys": []}`, "/api/v1/purge": `{"namespace": 999}`} {
		method := http.MethodGet
		if body != "" {
			method = http.MethodPost
		}
		q := httptest.NewRequest(method, "http://localhost"+path, strings.NewReader(body))
		q.Header.Set("Authorization", "Bearer "+tokenA)
		q.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, q)
		require.Contains(t, []int{http.StatusOK, http.StatusNotFound}, w.Code, w.Body)
		require.NotContains(t, w.Body.String(), `"others"`)
	}
	require.Zero(t, st.all.Load())

	o.Token = operator // whom everything concerns
	list, err = r.dial(t, o).Namespaces(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.EqualValues(t, 1, st.all.Load())
}
