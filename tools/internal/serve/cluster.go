package serve

import (
	"reflect"
	"strings"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
)

// clusterMap reads the map of the cluster that the server is a node of, and finds the node; nil where it is of none.
func (c *Config) clusterMap() (*clustermap.Map, *clustermap.Node, error) {
	switch {
	case c.Cluster == "" && c.Node == "":
		return nil, nil, nil
	case c.Cluster == "":
		return nil, nil, problem("cluster", "empty", "a file, where node is set")
	case c.Node == "":
		return nil, nil, problem("node", "empty", "the name of a node of the map, where cluster is set")
	}
	text, err := readFile(c.Cluster, clustermap.MaxBytes)
	if err != nil {
		return nil, nil, &skep.Error{Op: "serve", Kind: skep.Invalid, Field: "cluster", Value: c.Cluster, Err: err}
	}
	m, err := clustermap.Parse(text)
	if err != nil {
		return nil, nil, err
	}
	n, err := m.Node(c.Node)
	return m, n, err
}

// replaceMap goes on by another map of the cluster, where the file has one.
func (s *server) replaceMap(next *Config) {
	if s.cluster == nil {
		return
	}
	m, _, err := next.clusterMap()
	if err == nil && m == nil {
		return
	}
	if err == nil {
		if reflect.DeepEqual(m, s.cluster) {
			return
		}
		err = m.Succeeds(s.cluster)
	}
	var text []byte
	if err == nil {
		text, err = m.Encode()
	}
	if err == nil {
		err = s.wire.SetCluster(text, m.Epoch)
	}
	if err != nil {
		s.log.Error("map of the cluster not reloaded: the one in use stays", "error", err)
		return
	}
	s.cluster = m
	s.log.Info("map of the cluster reloaded", "epoch", m.Epoch, "nodes", len(m.Nodes))
}

// listenAsNode has the server listen where the map says, unless it was told otherwise.
func (c *Config) listenAsNode() []error {
	_, n, err := c.clusterMap()
	if err != nil {
		return []error{err}
	}
	if n == nil || c.Listen != Default().Listen {
		return nil
	}
	c.Listen = n.Addr
	if path, ok := strings.CutPrefix(n.Addr, "unix:"); ok {
		c.Listen = None
		if c.Unix == "" {
			c.Unix = path
		}
	}
	return nil
}
