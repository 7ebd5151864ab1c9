package httpapi

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/wire/auth"
)

// A connection that carries requests of several tenants, as a proxy's does, is one of theirs at a time: it uses up nobody's
// share.
func TestAConnectionIsOfTheTenantWhoAskedLast(t *testing.T) {
	t.Parallel()
	f := newFixture(t, false)
	conns := NewConns(8)
	d, err := auth.New([]auth.Credential{credential(t, "a", tokenAdmin, auth.All), credential(t, "b", tokenOther, auth.Read)}, nil, nil)
	require.NoError(t, err)
	handler, err := New(Options{Store: f.store, Auth: d, Conns: conns})
	require.NoError(t, err)
	s := httptest.NewUnstartedServer(handler)
	conns.Watch(s.Config)
	s.Start()
	defer s.Close()
	c := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
	for i := range 40 {
		r, err := http.NewRequestWithContext(t.Context(), "GET", s.URL+"/api/v1/namespaces", nil)
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+[]string{tokenAdmin, tokenOther}[i%2])
		a, err := c.Do(r)
		require.NoError(t, err)
		_, _ = io.Copy(io.Discard, a.Body)
		require.NoError(t, a.Body.Close())
		require.Equal(t, 200, a.StatusCode, "request %d", i)
		require.EqualValues(t, 1, conns.pool.Used(), "after request %d", i)
	}
	c.CloseIdleConnections()
	require.Eventually(t, func() bool { return conns.pool.Used() == 0 }, time.Minute, time.Millisecond)
}
