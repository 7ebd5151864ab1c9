package resp

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/tools/drawn"
)

// The slots that Redis gives: what is between the first { and the next } counts alone, where something is.
func TestKeySlots(t *testing.T) {
	t.Parallel()
	for key, slot := range map[string]int{
		"123456789": 12739, "foo": 12182, "bar": 5061, "": 0, "{foo}": 12182, "a{foo}b": 12182, "a{foo}{bar}": 12182, "foo{}{bar}": 8363,
	} {
		require.Equal(t, slot, slotOf([]byte(key)), "%q", key)
	}
	require.Equal(t, slotOf([]byte("{bar")), slotOf([]byte("foo{{bar}}zap")))
}

// Each slot is dealt once, to one that is there, about by weight; and who stays keeps his when another one goes.
func TestSlotsAreDealt(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(drawn.Seed(t), 1))
	for range 300 {
		nodes := make([]ClusterNode, 1+r.IntN(9))
		total := 0
		for i := range nodes {
			nodes[i].Weight = 1 + r.IntN(9)
			total += nodes[i].Weight
		}
		before := owners(t, nodes)
		for i := range nodes {
			require.InDelta(t, float64(slotCount*nodes[i].Weight)/float64(total), float64(before[i]), 1)
		}
		kept := deal(nodes)
		lost := r.IntN(len(nodes))
		nodes[lost].Away = len(nodes) > 1
		after := owners(t, nodes)
		if len(nodes) == 1 {
			continue
		}
		require.Zero(t, after[lost])
		for i, list := range deal(nodes) {
			for _, s := range kept[i] {
				if i == lost {
					continue
				}
				found := false
				for _, now := range list {
					found = found || now.from <= s.from && s.to <= now.to
				}
				require.True(t, found, "node %d has %v no more: %v", i, s, list)
			}
		}
	}
}

// owners is how many slots each node has; it requires that each slot is dealt once.
func owners(t *testing.T, nodes []ClusterNode) []int {
	t.Helper()
	out, seen := make([]int, len(nodes)), make([]bool, slotCount)
	for i, list := range deal(nodes) {
		for _, s := range list {
			for k := s.from; k < s.to; k++ {
				require.False(t, seen[k])
				seen[k] = true
				out[i]++
			}
		}
	}
	require.NotContains(t, seen, false)
	return out
}

func TestClusterCommands(t *testing.T) {
	t.Parallel()
	of := &Cluster{Epoch: 7, Self: strings.Repeat("a", 40), Nodes: []ClusterNode{
		{ID: strings.Repeat("a", 40), Host: "10.0.0.1", Port: 6379, Weight: 1},
		{ID: strings.Repeat("b", 40), Host: "10.0.0.2", Port: 6380, Weight: 1, Away: true},
		{ID: strings.Repeat("c", 40), Host: "10.0.0.3", Port: 6381, Weight: 2},
	}}
	c := serve(t, nil, Options{Cluster: func(context.Context) *Cluster { return of }}).dial()
	a, b, d := quoted([]byte(of.Nodes[0].ID)), quoted([]byte(of.Nodes[1].ID)), quoted([]byte(of.Nodes[2].ID))
	require.Equal(t, fmt.Sprintf(`*[*[0 5460 *["10.0.0.1" 6379 %s *[]]] *[5461 16383 *["10.0.0.3" 6381 %s *[]]]]`, a, d),
		c.do("CLUSTER", "SLOTS"))
	require.Equal(t, a, c.do("CLUSTER", "MYID"))
	require.Equal(t, "12182", c.do("CLUSTER", "KEYSLOT", "foo"))
	info := c.do("CLUSTER", "INFO")
	require.Contains(t, info, `cluster_state:ok\r\n`)
	require.Contains(t, info, `cluster_known_nodes:3\r\ncluster_size:2\r\ncluster_current_epoch:7\r\n`)
	nodes := c.do("CLUSTER", "NODES")
	require.Contains(t, nodes, `10.0.0.1:6379@0 myself,master - 0 0 7 connected 0-5460\n`)
	require.Contains(t, nodes, `10.0.0.2:6380@0 master,fail - 0 0 7 disconnected\n`)
	require.Contains(t, nodes, `10.0.0.3:6381@0 master - 0 0 7 connected 5461-16383\n`)
	shards := c.do("CLUSTER", "SHARDS")
	for _, id := range []string{a, b, d} {
		require.Contains(t, shards, id)
	}
	require.Equal(t, 2, strings.Count(shards, `"online"`))
	for _, ok := range []string{"READONLY", "READWRITE", "ASKING"} {
		require.Equal(t, "+OK", c.do(ok))
	}
	require.Contains(t, c.do("INFO", "cluster"), "cluster_enabled:1")
	require.Contains(t, c.do("HELLO"), `"mode" "cluster"`)
	require.Contains(t, c.do("CLUSTER", "FAILOVER"), "ERR unknown subcommand")

	alone := serve(t, nil, Options{Cluster: func(context.Context) *Cluster { return nil }}).dial()
	for _, refused := range []string{"CLUSTER SLOTS", "READONLY", "READWRITE", "ASKING"} {
		require.Equal(t, "-ERR This instance has cluster support disabled", alone.words(refused))
	}
	require.Contains(t, alone.do("HELLO"), `"mode" "standalone"`)
}
