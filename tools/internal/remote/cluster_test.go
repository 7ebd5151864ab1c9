package remote

import (
	"bytes"
	"crypto/tls"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
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

// A token that goes to another node unencrypted is told of once, also where the server that was named is on this
// machine.
func TestATokenThatNodesGetInTheClearIsToldOf(t *testing.T) {
	t.Parallel()
	m := &clustermap.Map{Nodes: []clustermap.Node{{Name: "a", Addr: "127.0.0.1:7420"},
		{Name: "b", Addr: "10.255.255.1:7420"}, {Name: "c", Addr: "10.255.255.2:7420"}}}
	for _, x := range []struct {
		target Target
		told   bool
	}{
		{Target{addr: "127.0.0.1:7420", token: "t"}, true}, {Target{addr: "unix:/s", token: "t"}, true},
		{Target{addr: "127.0.0.1:7420"}, false},
		{Target{addr: "127.0.0.1:7420", token: "t", secure: &tls.Config{}}, false},
		{Target{addr: "10.255.255.1:7420", token: "t"}, false}, // it was told of when it was dialled
	} {
		var out bytes.Buffer
		x.target.Err = &out
		x.target.warnOfNodes(m)
		require.Equal(t, x.told, out.Len() > 0, out.String())
		if x.told {
			require.Contains(t, out.String(), "goes to node b at 10.255.255.1:7420 unencrypted")
			require.NotContains(t, out.String(), "node c")
		}
	}
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
