package httpapi

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// How a cluster stands is an operator's to see, where there is one.
func TestTheClusterIsAnOperatorsToSee(t *testing.T) {
	t.Parallel()
	f := newFixture(t, false)
	require.Equal(t, 403, f.ask("GET", "/api/v1/cluster", tokenReader, "").Code)
	w := f.ask("GET", "/api/v1/cluster", tokenOperator, "")
	require.Equal(t, 200, w.Code)
	require.JSONEq(t, `{"node": "a", "epoch": 0, "leader": "", "replicas": 0, "down_after": 0, "nodes": []}`, w.Body.String())
	f.cluster = nil
	require.Equal(t, 501, f.ask("GET", "/api/v1/cluster", tokenOperator, "").Code)
}
