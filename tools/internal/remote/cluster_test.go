package remote

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/replication/consensus"
)

// Of a node whose figures are not known, status does not say that it has none.
func TestFiguresThatAreNotKnown(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	clusterText(&out, &consensus.Status{Nodes: []consensus.NodeStatus{{ID: 1, Name: "a", Reached: true}}})
	require.Contains(t, out.String(), "not known")
}
