package remote

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/consensus"
	"github.com/skepkv/skep/tools/internal/command"
)

// Of a node whose figures are not known, status does not say that it has none.
func TestFiguresThatAreNotKnown(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	clusterText(&out, &consensus.Status{Nodes: []consensus.NodeStatus{{ID: 1, Name: "a", Reached: true}}})
	require.Contains(t, out.String(), "not known")
}

// Status names a node that lacks a tenant's key, and what to do.
func TestANodeThatLacksAKey(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	clusterText(&out, &consensus.Status{Encrypted: []string{"prod"}, Nodes: []consensus.NodeStatus{
		{ID: 1, Name: "a", Reached: true}, {ID: 2, Name: "b", Reached: true, LacksKeys: []string{"prod"}},
		{ID: 3, Name: "c", Reached: true, Load: &consensus.Load{}}}})
	require.Regexp(t, `encrypted tenants +prod`, out.String())
	require.Contains(t, out.String(), "node b has no encryption key of prod")
	require.NotContains(t, out.String(), "node a has no")
	require.Contains(t, out.String(), "node c does not say")
	target := &Target{}
	next := func(field string) string {
		return command.NextStep(target.Explain(&skep.Error{Op: "put", Kind: skep.Denied, Field: field}))
	}
	require.Contains(t, next("encryption key of tenant prod"), "skep cluster status")
	require.Contains(t, next(""), "token")
}
