package remote_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/tools/internal/cli"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/command/commandtest"
	"github.com/skepkv/skep/tools/internal/serve"
)

func readyAt(t *testing.T, args ...string) commandtest.Output {
	t.Helper()
	return commandtest.Run(t, &cli.Program, "", append([]string{"ready"}, args...)...)
}

// Who has no token learns whether a server serves, and what is not well with it.
func TestReady(t *testing.T) {
	t.Parallel()
	s := begin(t, fenced{memory(t)}, nil)
	at := strings.Replace(s.at["http"], "skep://", "http://", 1)
	o := readyAt(t, at)
	require.Zero(t, o.Code, o.Stderr)
	assert.Equal(t, "The server at "+at+" serves, and is not well:\n\nNOT WELL  device 1: fenced\n\n"+
		"skep status says why.\n", o.Stdout)
	assert.Equal(t, []any{"device 1: fenced"}, readyAt(t, at, "--json").OK(t)["unwell"])

	s.stop()
	o = readyAt(t, at)
	assert.Equal(t, command.TryAgain, o.Code, o.Stderr)
}

// A server's certificate is checked as everywhere.
func TestReadyOverTLS(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	s := begin(t, memory(t), func(c *serve.Config) { c.TLS.Cert, c.TLS.Key = cert, key })
	at := strings.NewReplacer("skeps://", "https://", "skep://", "https://").Replace(s.at["http"])
	o := readyAt(t, at, "--ca", cert)
	assert.Zero(t, o.Code)
	assert.Equal(t, "The server at "+at+" serves.\n", o.Stdout)
	other, _ := certificate(t)
	assert.Equal(t, command.TryAgain, readyAt(t, at, "--ca", other).Code)
}

// Somebody who answers without serving is not ready, in the words of the answer.
func TestReadyTellsWhatAServerSays(t *testing.T) {
	t.Parallel()
	status, text := http.StatusServiceUnavailable, "it is going away"
	l := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(text))
	}))
	t.Cleanup(l.Close)
	o := readyAt(t, l.URL)
	assert.Equal(t, command.TryAgain, o.Code)
	assert.Contains(t, o.Stderr, "it is going away")
	status, text = http.StatusOK, "<html>"
	assert.Equal(t, command.Input, readyAt(t, l.URL).Code, "another's server")
}

func TestReadyRefuses(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"127.0.0.1:7422"}, {"skep://127.0.0.1:7422"}, {"http://"}, {"http://user@h"},
		{"--timeout", "0s"}, {"https://127.0.0.1:1", "--ca", "/no/such/file"}, {"a", "b"}} {
		o := readyAt(t, args...)
		assert.Contains(t, []int{command.Input, command.NotFound}, o.Code, "%v: %s", args, o.Stderr)
	}
}
