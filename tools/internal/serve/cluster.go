package serve

import (
	"log/slog"
	"reflect"
	"strings"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
)

// clusterMap reads the map of the cluster that the server is a node of, and finds the node; nil where it is of none.
// The map is a file's, or the last that a node which agrees on it knew.
func (c *Config) clusterMap() (*clustermap.Map, *clustermap.Node, error) {
	id, m, err := c.member()
	switch {
	case err != nil:
		return nil, nil, err
	case id != nil && c.Cluster != "":
		return nil, nil, problem("cluster", c.Cluster, "empty: dir is that of node "+id.Name+", which agrees on the map with the others")
	case id != nil && c.Node != "" && c.Node != id.Name:
		return nil, nil, problem("node", c.Node, id.Name+", whose dir it is, or empty")
	case id != nil:
		n := &clustermap.Node{ID: id.ID, Name: id.Name, Addr: id.Addr, Peer: id.Peer}
		if now, err := m.Node(id.Name); err == nil {
			n.Addr, n.RESP = now.Addr, now.RESP
		}
		return m, n, nil
	case c.Cluster == "" && (c.Node == "" || len(c.Join.Seeds) > 0):
		return nil, nil, nil
	case c.Cluster == "":
		return nil, nil, problem("cluster", "empty", "a file, where node is set and dir is no node's (skep cluster init and add make it one)")
	case c.Node == "":
		return nil, nil, problem("node", "empty", "the name of a node of the map, where cluster is set")
	}
	if m, err = c.fileMap(); err != nil {
		return nil, nil, err
	}
	n, err := m.Node(c.Node)
	return m, n, err
}

// fileMap is the map in the file.
func (c *Config) fileMap() (*clustermap.Map, error) {
	text, err := readFile(c.Cluster, clustermap.MaxBytes)
	if err != nil {
		return nil, &skep.Error{Op: "settings", Kind: skep.Invalid, Field: "cluster", Value: c.Cluster, Err: err}
	}
	m, err := clustermap.Parse(text)
	if err == nil && len(m.Down()) > 0 {
		return nil, problem("cluster", "node "+m.Down()[0].Name+" is down",
			"up or out: nodes that do not agree on the map remember nothing for one that is down")
	}
	return m, err
}

// replaceMap goes on by another map of the cluster, where the file has one. A map that has this node no more is taken
// as well: clients that go by the old one are to hear of it. It says whether the file could be read.
func (s *server) replaceMap(next *Config) (read bool) {
	if s.cluster == nil || next.Cluster == "" {
		return true
	}
	m, err := next.fileMap()
	read = err == nil
	if err == nil {
		if reflect.DeepEqual(m, s.cluster) {
			return read
		}
		err = m.Succeeds(s.cluster)
	}
	var text []byte
	if err == nil {
		text, err = m.Encode()
	}
	if err == nil {
		id := uint64(0)
		if n, err := m.Node(s.node); err == nil {
			id = n.ID // another one where it was taken out and added again
		}
		err = s.wire.SetCluster(text, m.Epoch, id)
	}
	if err != nil {
		s.log.Error("map of the cluster not reloaded: the one in use stays", "error", err)
		return read
	}
	s.cluster = m
	s.followed(m.Public())
	s.log.Info("map of the cluster reloaded", "epoch", m.Epoch, "nodes", len(m.Nodes))
	if _, err := m.Node(s.node); err != nil {
		sayOut(s.log, s.node)
	}
	return read
}

// sayOut warns that the map has this node no more.
func sayOut(log *slog.Logger, node string) {
	log.Warn("this node is not in the map any more: nobody looks for what it has", "node", node)
}

// listenAsNode has the server listen where the map says, unless it was told otherwise.
func (c *Config) listenAsNode() []error {
	_, n, err := c.clusterMap()
	if err != nil {
		return []error{err}
	}
	if n == nil {
		return nil
	}
	c.listenAt(n.Addr, n.RESP)
	return c.checkReached(n.Addr)
}

// checkReached refuses a node that is reached at a socket and has no listener at all.
func (c *Config) checkReached(addr string) []error {
	if !strings.HasPrefix(addr, "unix:") || c.Listen != None || c.Unix != None {
		return nil
	}
	return []error{problem("unix", None, "a path, or empty: the node is reached at "+addr)}
}

// listenAt has the server listen at a node's addresses, unless it was told otherwise.
func (c *Config) listenAt(addr, resp string) {
	if resp != "" && c.RESP == Default().RESP {
		c.RESP = resp
	}
	if c.Listen != Default().Listen {
		return
	}
	c.Listen = addr
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		c.Listen = None
		if c.Unix == "" {
			c.Unix = path
		}
	}
}
