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

// A tenant that keeps all the connections it can get leaves some for others; one that is closed is given back.
func TestConnectionsAreShared(t *testing.T) {
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
	ask := func(token string) (int, *http.Client) {
		c := &http.Client{Transport: &http.Transport{}}
		r, err := http.NewRequestWithContext(t.Context(), "GET", s.URL+"/api/v1/namespaces", nil)
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+token)
		a, err := c.Do(r)
		require.NoError(t, err)
		_, _ = io.Copy(io.Discard, a.Body)
		require.NoError(t, a.Body.Close())
		return a.StatusCode, c
	}
	var open []*http.Client
	for range 6 { // three quarters
		code, c := ask(tokenAdmin)
		require.Equal(t, 200, code)
		open = append(open, c)
	}
	code, _ := ask(tokenAdmin)
	require.Equal(t, 429, code)
	require.Eventually(t, func() bool { return conns.pool.Used() == 6 }, time.Minute, time.Millisecond, "who is refused is hung up on")
	code, other := ask(tokenOther)
	require.Equal(t, 200, code)
	other.CloseIdleConnections()
	for _, c := range open {
		c.CloseIdleConnections()
	}
	require.Eventually(t, func() bool { return conns.pool.Used() == 0 }, time.Minute, time.Millisecond)
	code, c := ask(tokenAdmin)
	require.Equal(t, 200, code)
	c.CloseIdleConnections()
}

// Those who show no credential, or a wrong one, keep connections as one tenant does: tenants and whoever looks whether the
// server is well find one.
func TestStrangersHaveAShareOfTheConnections(t *testing.T) {
	t.Parallel()
	f := newFixture(t, false)
	conns := NewConns(8)
	d, err := auth.New([]auth.Credential{credential(t, "a", tokenAdmin, auth.All)}, nil, nil)
	require.NoError(t, err)
	handler, err := New(Options{Store: f.store, Auth: d, Conns: conns})
	require.NoError(t, err)
	s := httptest.NewUnstartedServer(handler)
	conns.Watch(s.Config)
	s.Start()
	defer s.Close()
	ask := func(c *http.Client, path, token string) (status int, closed bool) {
		r, err := http.NewRequestWithContext(t.Context(), "GET", s.URL+path, nil)
		require.NoError(t, err)
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		a, err := c.Do(r)
		require.NoError(t, err)
		_, _ = io.Copy(io.Discard, a.Body)
		require.NoError(t, a.Body.Close())
		return a.StatusCode, a.Close
	}
	var all []*http.Client
	kept := 0
	for i := range 20 {
		c := &http.Client{Transport: &http.Transport{}}
		all = append(all, c)
		path, token, want := "/healthz", "", 200
		if i%2 == 0 {
			path, token, want = "/api/v1/namespaces", "no such token", 401
		}
		status, closed := ask(c, path, token)
		require.Equal(t, want, status, "all are answered")
		if !closed {
			kept++
		}
	}
	require.Equal(t, 6, kept, "three quarters")
	c := &http.Client{Transport: &http.Transport{}}
	all = append(all, c)
	status, closed := ask(c, "/api/v1/namespaces", tokenAdmin)
	require.Equal(t, 200, status)
	require.False(t, closed, "it is the tenant's")

	// Whoever shows a credential later has its connection counted as the tenant's.
	status, closed = ask(all[0], "/api/v1/namespaces", tokenAdmin)
	require.Equal(t, 200, status)
	require.False(t, closed)
	require.EqualValues(t, 7, conns.pool.Used())
	for _, c := range all {
		c.CloseIdleConnections()
	}
	require.Eventually(t, func() bool { return conns.pool.Used() == 0 }, time.Minute, time.Millisecond)
}
